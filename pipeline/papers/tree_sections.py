"""Socher et al. 2014, sections 6.6 and 6.7, in the form of `pipeline.papers.page`: which sentences of one image a model
holds apart, by their verbs and lengths, and which relations it weighs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.metrics.paired import Draw, compare_draws
from pipeline.metrics.retrieval import Bootstrap
from pipeline.papers import page
from pipeline.papers.reproduction import Standing, verdict

VERBS = ("neither", "one", "both")
"""Sentences of a pair that have a verb."""
LENGTHS = ("0 to 2", "3 to 5", "6 or more")
BOUNDS = (3, 6)
"""Words by which the sentences of a pair differ in length."""
WORST = 0.01
"""Share of the pairs with the worst ranks that are looked at."""
SHOWN = 12
"""Relations that are listed of a system."""
FAILURE = (
    "As printed, SDT-RNN mostly fails for a sentence without a verb where the image's other sentences have one. Below:"
    " the mean rank of a sentence among the neighbours of another one of its image, by how many of the two have a verb,"
    f" and the share of pairs with exactly one verb, in percent, of all and of the {WORST:.0%} with the worst ranks."
)
ROBUST = (
    "As printed, among sentences that all have a verb, or none, SDT-RNN bears differences of length better than bags of"
    " words. Below: the mean rank where both have a verb, by the difference of their lengths in words; last in percent."
)
LARGEST = "As printed, by falling norm: nominal subject, possession, passive auxiliary, prepositions."


def pair_tables(
    systems: Mapping[str, Sequence[np.ndarray]],
    pairs: np.ndarray,
    owners: np.ndarray,
    verbs: np.ndarray,
    lengths: np.ndarray,
    bootstrap: Bootstrap,
) -> list[Mapping[str, Any]]:
    """Both tables of section 6.6, with the order that its first sentence states.

    `systems` are the ranks (p,) of each training of a system, by its label, of the `pairs` (p, 2), as
    pipeline.metrics.ranks.pair_ranks gives both; `owners` (m,) are the images of the sentences, `verbs` (m,) 1 for a
    sentence with a verb, 0 for one without, -1 where that is not known (left out); `lengths` (m,) are in words.
    """
    tagged = (verbs[pairs] >= 0).all(axis=1)
    pairs = pairs[tagged]
    having, images = verbs[pairs].sum(axis=1), owners[pairs[:, 0]]
    apart = np.digitize(np.abs(np.diff(lengths[pairs], axis=1)).ravel(), BOUNDS)
    by_verbs, by_lengths, orders = [], [], []
    for label, trainings in systems.items():
        ranks = [training[tagged] for training in trainings]
        worst = [np.argsort(-rank, kind="stable")[: max(1, int(WORST * len(rank)))] for rank in ranks]
        shares = [_shares(having, [np.arange(len(having))]), _shares(having, worst)]
        verbs_of = [_means(ranks, having == kind) for kind in range(len(VERBS))]
        by_verbs.append(page.row(f"`{label}`", [*verbs_of, *shares]))
        means = [_means(ranks, (having == 2) & (apart == kind)) for kind in range(len(LENGTHS))]
        first, last = means[0], means[-1]
        ratio = first and last and [100 * end / begin for begin, end in zip(first, last, strict=True)]
        by_lengths.append(page.row(f"`{label}`", [*means, ratio]))
        if bootstrap.resamples and (having == 1).any() and (having == 2).any():
            in_one, in_both = ([_draw(rank, images, having == kind) for rank in ranks] for kind in (1, 2))
            difference = compare_draws(in_one, in_both, bootstrap, 1 / len(ranks) if len(ranks) > 1 else None)
            judged = {**difference, "printed": None, "verdict": verdict(difference["ci95"], Standing(), Standing())}
            order = {"above": f"`{label}`, a verb in one of the two", "below": "in both", "systems": None}
            orders.append({**order, "found": [judged]})
    names = [*(f"verb in {kind}" for kind in VERBS), "pairs of one verb", "of the worst"]
    titles = ("sentences of one image that lie far apart, by their verbs", "the same by their lengths")
    first, second = (("Socher et al.", f"section 6.6, {title}") for title in titles)
    judged = {"printed_columns": [], "judged": ["mean rank, more being farther"]}
    lengths_by = [*LENGTHS, "last of first"]
    return [
        page.table(*first, said=[FAILURE], columns=names, rows=by_verbs, orders=orders, **judged),
        page.table(*second, said=[ROBUST], columns=lengths_by, rows=by_lengths, **judged),
    ]


def relation_table(relations: Mapping[str, Sequence[tuple[str, Sequence[float], int]]]) -> Mapping[str, Any]:
    """Section 6.7: `relations` are, of each system that has a matrix for them, by its label, a relation, the norms of
    its matrix, one a training, and how many training words have it."""
    notes = []
    for label, rows in relations.items():
        largest = sorted(rows, key=lambda row: -np.mean(row[1]))[:SHOWN]
        named = (f"{name} ({np.mean(norms):.2f}; {count:,})" for name, norms, count in largest)
        notes.append(f"- `{label}`, relation (norm; training words that have it): {', '.join(named)}.")
    title = "section 6.7, relations by the norm of their matrix"
    return page.table("Socher et al.", title, said=[LARGEST], notes=notes)


def _means(ranks: Sequence[np.ndarray], chosen: np.ndarray) -> list[float] | None:
    return [float(rank[chosen].mean()) for rank in ranks] if chosen.any() else None


def _shares(having: np.ndarray, subsets: Sequence[np.ndarray]) -> list[float] | None:
    return [float(100 * np.mean(having[rows] == 1)) for rows in subsets] if len(having) else None


def _draw(ranks: np.ndarray, images: np.ndarray, chosen: np.ndarray) -> Draw:
    """Measure a training by the mean rank of the chosen pairs, weighted by their images."""
    each, units = np.unique(images, return_inverse=True)
    sums = np.bincount(units[chosen], ranks[chosen], len(each))
    sizes = np.bincount(units[chosen], minlength=len(each))
    return Draw(each, lambda weights: float(weights @ sums / n) if (n := weights @ sizes) else float("nan"))
