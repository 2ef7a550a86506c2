"""Which sentences of one image a model holds apart: the error analysis of Socher et al. 2014, section 6.6."""

from typing import Any

import numpy as np

from pipeline.metrics.retrieval import INTERVAL, Bootstrap, measure, resample

VERBS = ("neither", "one", "both")
"""Sentences of a pair that have a verb."""
LENGTHS = ("0 to 2", "3 to 5", "6 or more")
BOUNDS = (3, 6)
"""Words by which the sentences of a pair differ in length."""
WORST, SHOWN = 0.01, 10
"""Share of the pairs with the worst ranks that are looked at, and how many of these are listed."""


def measure_pairs(
    pairs: np.ndarray, ranks: np.ndarray, owners: np.ndarray, verbs: np.ndarray, lengths: np.ndarray,
    bootstrap: Bootstrap,
) -> dict[str, Any]:  # fmt: skip
    """The mean rank of sentences of one image among the neighbours of each other, by their verbs and lengths.

    `pairs` (p, 2) and `ranks` (p,) as pipeline.metrics.similarity.pair_ranks gives them, `owners` (m,) the image of
    each sentence, `verbs` (m,) 1 for a sentence with a verb, 0 for one without, -1 where that is not known, whose pairs
    are left out; `lengths` (m,) in words. Intervals resample images. `one_minus_both` is the mean rank of pairs with
    one verb minus that of pairs with two, in the same resamples, where there are pairs of both kinds. `worst` counts,
    among the share WORST of the pairs with the worst ranks, those by verbs.
    """
    known = (verbs[pairs] >= 0).all(axis=1)
    pairs, ranks = pairs[known], ranks[known]
    having = verbs[pairs].sum(axis=1)
    apart = np.digitize(np.abs(np.diff(lengths[pairs], axis=1)).ravel(), BOUNDS)

    def group(chosen: np.ndarray) -> dict[str, Any]:
        if not chosen.any():
            return {"n": 0}
        units = np.unique(owners[pairs[chosen, 0]], return_inverse=True)[1]
        found = measure(ranks[chosen], units, bootstrap)
        return {"n": int(chosen.sum()), **{key: value for key, value in found.items() if key.startswith("mean_rank")}}

    worst = np.argsort(-ranks, kind="stable")[: max(1, int(WORST * len(ranks)))] if len(ranks) else np.array([], int)
    return {
        "n_pairs": len(ranks),
        "n_unknown": int((~known).sum()),
        "verbs": {name: group(having == v) for v, name in enumerate(VERBS)},
        "one_minus_both": _difference(ranks, owners[pairs[:, 0]], having == 1, having == 2, bootstrap),
        "lengths": {
            verbs: {name: group((having == v) & (apart == k)) for k, name in enumerate(LENGTHS)}
            for v, verbs in enumerate(VERBS)
        },
        "worst": {name: int((having[worst] == v).sum()) for v, name in enumerate(VERBS)},
        "worst_pairs": [
            {"sentences": pairs[row].tolist(), "rank": int(ranks[row]), "verbs": VERBS[having[row]]}
            for row in worst[:SHOWN]
        ],
    }


def _difference(
    ranks: np.ndarray, images: np.ndarray, first: np.ndarray, second: np.ndarray, bootstrap: Bootstrap
) -> dict[str, Any]:
    """The mean of the `first` ranks minus that of the `second`, with `ci95`; empty where one of them has no rank."""
    if not (first.any() and second.any()):
        return {}
    units = np.unique(images, return_inverse=True)[1]
    n = units.max() + 1
    parts = [(np.bincount(units[own], ranks[own], n), np.bincount(units[own], minlength=n)) for own in (first, second)]

    def minus(weights: np.ndarray) -> float:
        means = [weights @ sums / counts if (counts := weights @ sizes) else np.nan for sums, sizes in parts]
        return float(means[0] - means[1])

    found: dict[str, Any] = {"difference": minus(np.ones(n, np.int64))}
    if bootstrap.resamples:
        rng = np.random.default_rng(bootstrap.seed)
        draws = [minus(resample(rng, n)) for _ in range(bootstrap.resamples)]
        found["ci95"] = np.nanpercentile(draws, INTERVAL).tolist()
    return found
