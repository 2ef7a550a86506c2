"""Tests of the tables for sections 6.6 and 6.7 of Socher et al. 2014, with synthetic ranks and norms."""

import numpy as np

from pipeline.papers import tables
from pipeline.papers.tree_sections import pair_tables, relation_table

OWNERS = np.array([0, 0, 1, 1, 1, 2, 2])
LENGTHS = np.array([10, 4, 7, 8, 8, 5, 5])
VERBS = np.array([1, 0, 1, 1, 0, -1, 1])
PAIRS = np.array([[a, b] for a in range(7) for b in range(7) if a != b and OWNERS[a] == OWNERS[b]])
RANKS = np.array([9, 8, 1, 3, 2, 4, 5, 6, 70, 71])
ONE_VERB_RANKS = [9, 8, 3, 4, 5, 6]
"""Ranks in RANKS of the pairs in which exactly one caption has a verb. In the pairs with the ranks 1 and 2, both
captions have a verb. In the last two pairs, it is not known whether one of the captions has a verb."""


def test_pairs_are_grouped_by_their_verbs_and_lengths() -> None:
    verbs, lengths = pair_tables({"tree": [RANKS]}, ["tree"], PAIRS, VERBS, LENGTHS)
    (row,) = verbs["rows"]
    neither, one, both, share, worst = row["reproduced"][0]["values"]
    assert (neither, one, both) == (None, [np.mean(ONE_VERB_RANKS)], [1.5]) and (share, worst) == ([75.0], [100.0])
    assert lengths["rows"][0]["reproduced"][0]["values"] == [[1.5], None, None, None]
    _, by_lengths = pair_tables({"tree": [RANKS]}, [], PAIRS, np.ones(7, int), LENGTHS)
    near, _, far, ratio = by_lengths["rows"][0]["improved"][0]["values"]
    assert far == [8.5] and ratio == [100 * 8.5 / near[0]]


def test_several_trainings_are_one_row_with_their_mean() -> None:
    verbs, _ = pair_tables({"tree": [RANKS, 3 * RANKS]}, ["tree"], PAIRS, VERBS, LENGTHS)
    assert "| tree | - / 11.7 ± 8.2 / 3.0 ± 2.1 | 75.0 ± 0.0 / 100.0 ± 0.0 | 2 |" in tables.render(verbs)


def test_relations_are_sorted_by_their_mean_norm() -> None:
    rows = [("obj", (9.0, 5.0), 700), ("nsubj", (8.0, 10.0), 1200)]
    assert (
        "- `tree`, norm (and training words with the relation): nsubj 9.00 (1,200), obj 7.00 (700)."
        in tables.render(relation_table({"tree": rows}))
    )
