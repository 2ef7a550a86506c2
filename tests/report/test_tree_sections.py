"""Sections 6.6 and 6.7 of Socher et al. 2014, from made-up measurements of two seeds."""

from pipeline.papers.reproduction import System
from pipeline.papers.tree_sections import tree_sections

TREES = System("tree, 2 seeds", ("tree-seed0", "tree-seed1"), "sdtrnn", {})


def pairs_of(scale: float) -> dict:
    kinds = {"none": (10, 30.0), "one": (20, 50.0), "both": (70, 40.0)}
    verbs = {kind: {"n": n, "mean_rank": scale * rank} for kind, (n, rank) in kinds.items()}
    lengths = {"0 to 2": {"mean_rank": scale * 40.0}, "6 and more": {"mean_rank": scale * 60.0}}
    return {
        "verbs": verbs,
        "one_minus_both": {"difference": 10 * scale, "ci95": [scale, 20 * scale]},
        "lengths": dict.fromkeys(kinds, lengths),
        "worst": {"none": 1, "one": 3, "both": 6},
    }


def test_both_sections_are_means_over_the_seeds() -> None:
    pairs = {"tree-seed0": pairs_of(1), "tree-seed1": pairs_of(3)}
    norms = {"tree-seed0": (8.0, 9.0), "tree-seed1": (10.0, 5.0)}
    relations = {
        name: [{"relation": "nsubj", "count": 1200, "norm": a}, {"relation": "obj", "count": 700, "norm": b}]
        for name, (a, b) in norms.items()
    }
    verbs, relation = tree_sections([TREES], "test", pairs, relations).split("## ")[1:]
    first, second = [line for line in verbs.splitlines() if line.startswith("| `tree, 2 seeds` |")]
    assert first == "| `tree, 2 seeds` | **60.0** | **100.0** | **80.0** | **20.0** (2.0 to 40.0) | 20.0% | 30.0% |"
    assert second == "| `tree, 2 seeds` | **80.0** | **120.0** | 1.50 |"
    assert "| `tree, 2 seeds` | nsubj (9.00; 1,200), obj (7.00; 700) |" in relation
    alone = tree_sections([TREES], "test", pairs, {})
    assert "6.7" not in alone
