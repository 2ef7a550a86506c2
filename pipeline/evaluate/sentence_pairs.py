"""Which sentences of one image a model holds apart: the error analysis of Socher et al. 2014, section 6.6."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.metrics.paired import Draw, compare_draws
from pipeline.metrics.retrieval import Bootstrap, measure

VERBS = ("neither", "one", "both")
"""Sentences of a pair that have a verb."""
LENGTHS = ("0 to 2", "3 to 5", "6 or more")
BOUNDS = (3, 6)
"""Words by which the sentences of a pair differ in length."""
WORST = 0.01
"""Share of the pairs with the worst ranks that are looked at."""


def measure_pairs(
    pairs: np.ndarray, ranks: np.ndarray, owners: np.ndarray, verbs: np.ndarray, lengths: np.ndarray,
    bootstrap: Bootstrap,
) -> dict[str, Any]:  # fmt: skip
    """The mean rank of sentences of one image among the neighbours of each other, by their verbs and lengths.

    `pairs` (p, 2) and `ranks` (p,) as pipeline.metrics.ranks.pair_ranks gives them, `owners` (m,) the image of
    each sentence, `verbs` (m,) 1 for a sentence with a verb, 0 for one without, -1 where that is not known, whose pairs
    are left out; `lengths` (m,) in words. Intervals resample images. `one_minus_both` is the mean rank of pairs with
    one verb minus that of pairs with two, as compare_draws has it, where there are pairs of both kinds. `worst` counts,
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
    }


def _difference(
    ranks: np.ndarray, images: np.ndarray, first: np.ndarray, second: np.ndarray, bootstrap: Bootstrap
) -> Mapping[str, Any]:
    """The mean of the `first` ranks minus that of the `second`; empty where one of them has none, or no resample."""
    if not (first.any() and second.any() and bootstrap.resamples):
        return {}
    each, units = np.unique(images, return_inverse=True)

    def draw(chosen: np.ndarray) -> Draw:
        sums, sizes = (np.bincount(units[chosen], values, len(each)) for values in (ranks[chosen], None))
        return Draw(each, lambda weights: weights @ sums / n if (n := weights @ sizes) else np.nan)

    return compare_draws([draw(first)], [draw(second)], bootstrap)
