"""Sections 6.6 and 6.7 of Socher et al. 2014, from synthetic ranks and norms."""

import numpy as np

from pipeline.metrics.retrieval import Bootstrap
from pipeline.papers import page
from pipeline.papers.tree_sections import pair_tables, relation_table

OWNERS, LENGTHS = np.array([0, 0, 1, 1, 1, 2, 2]), np.array([10, 4, 7, 8, 8, 5, 5])
VERBS = np.array([1, 0, 1, 1, 0, -1, 1])
PAIRS = np.array([[a, b] for a in range(7) for b in range(7) if a != b and OWNERS[a] == OWNERS[b]])
RANKS = np.array([9, 8, 1, 3, 2, 4, 5, 6, 70, 71])
ONE = [9, 8, 3, 4, 5, 6]
"""Ranks of pairs of which one has a verb; those of both are 1 and 2, and the last two are of an unknown sentence."""


def test_pairs_stand_by_their_verbs_and_lengths() -> None:
    verbs, lengths = pair_tables({"tree": [RANKS]}, PAIRS, OWNERS, VERBS, LENGTHS, Bootstrap(20, 0))
    (row,) = verbs["rows"]
    neither, one, both, share, worst = row["ours"][0]["values"]
    assert (neither, one, both) == (None, [np.mean(ONE)], [1.5]) and (share, worst) == ([75.0], [100.0])
    (found,) = verbs["orders"][0]["found"]
    assert found["difference"] == np.mean(ONE) - 1.5 and found["verdict"] == "holds"
    # Pairs of two verbs are of image 1 alone: whole resamples without it say nothing, and the others lie between these.
    low, high = found["ci95"]
    assert np.mean([3, 4, 5, 6]) - 1.5 <= low < high <= np.mean([9, 8] * 2 + [3, 4, 5, 6]) - 1.5
    assert lengths["rows"][0]["ours"][0]["values"] == [[1.5], None, None, None]
    alike, by_lengths = pair_tables({"tree": [RANKS]}, PAIRS, OWNERS, np.abs(VERBS) * 0 + 1, LENGTHS, Bootstrap(20, 0))
    assert alike["orders"] == []
    near, _, far, ratio = by_lengths["rows"][0]["ours"][0]["values"]
    assert far == [8.5] and ratio == [100 * 8.5 / near[0]]


def test_trainings_are_one_row_with_an_interval_over_them() -> None:
    verbs, _ = pair_tables({"tree": [RANKS, 3 * RANKS]}, PAIRS, OWNERS, VERBS, LENGTHS, Bootstrap(20, 0))
    text = page.render(verbs)
    assert "| `tree` | - | 11.7 ± 8.2 | 3.0 ± 2.1 | 75.0 | 100.0 ± 0.0 |" in text
    assert "| `tree`, a verb in one of the two above in both | +8.7 (" in text


def test_relations_are_listed_by_the_mean_norm() -> None:
    rows = [("obj", (9.0, 5.0), 700), ("nsubj", (8.0, 10.0), 1200)]
    assert (
        "- `tree`, relation (norm; training words that have it): nsubj (9.00; 1,200), obj (7.00; 700)."
        in page.render(relation_table({"tree": rows}))
    )
