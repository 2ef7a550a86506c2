"""Measures are compared with results by hand, and intervals with a naive bootstrap that makes the same draws."""

import numpy as np
import pytest

from pipeline.metrics.retrieval import Bootstrap, measure, select_sentences

NAMES = ("recall@1", "recall@5", "recall@10", "median_rank", "mean_rank")
OWNERS = np.repeat(np.arange(40), np.random.default_rng(0).integers(1, 7, 40))
RANKS = np.random.default_rng(1).geometric(0.12, len(OWNERS))


def naive_measures(ranks: np.ndarray) -> dict[str, float]:
    recalls = {f"recall@{k}": 100 * np.mean(ranks <= k) for k in (1, 5, 10)}
    return {**recalls, "median_rank": np.median(ranks), "mean_rank": np.mean(ranks)}


def test_measures_without_intervals() -> None:
    assert measure(RANKS, OWNERS, Bootstrap(0, 0)) == pytest.approx(naive_measures(RANKS))
    assert measure(np.array([1, 4]), np.arange(2), Bootstrap(0, 0)) == {
        "recall@1": 50,
        "recall@5": 100,
        "recall@10": 100,
        "median_rank": 2.5,
        "mean_rank": 2.5,
    }


def test_intervals_equal_a_naive_bootstrap_over_images() -> None:
    rng = np.random.default_rng(7)
    draws = [
        naive_measures(np.concatenate([RANKS[np.equal(OWNERS, image)] for image in rng.integers(40, size=40)]))
        for _ in range(300)
    ]
    found = measure(RANKS, OWNERS, Bootstrap(300, 7))
    for name in NAMES:
        expected = np.percentile([draw[name] for draw in draws], [2.5, 97.5])
        np.testing.assert_allclose(found[f"{name}_ci95"], expected, err_msg=name)


def test_protocols() -> None:
    owners = np.array([0, 0, 0, 1, 2, 2])
    assert select_sentences(owners, "all-sentences").tolist() == [0, 1, 2, 3, 4, 5]
    assert select_sentences(owners, "first-sentence").tolist() == [0, 3, 4]
