"""Sentences of one image that lie far apart, against a naive loop."""

import numpy as np
import pytest

from pipeline.evaluate.sentence_pairs import measure_pairs
from pipeline.metrics.ranks import BLOCK, pair_ranks, similarity_ranks
from pipeline.metrics.retrieval import Bootstrap


@pytest.mark.parametrize("metric", ["inner_product", "euclidean"])
def test_ranks_of_pairs_are_counted(metric: str) -> None:
    rng = np.random.default_rng(0)
    owners = np.sort(rng.integers(0, 200, 2 * BLOCK[0] + 90))
    owners = np.unique(owners[np.bincount(owners)[owners] > 1], return_inverse=True)[1]
    y = rng.integers(-2, 3, (len(owners), 5)).astype(np.float32)  # of which many are as near as others: exact ties
    pairs, ranks = pair_ranks(y, owners, metric)
    x = y.astype(float)
    score = (lambda a, b: a @ b) if metric == "inner_product" else (lambda a, b: -((a - b) ** 2).sum(axis=-1))
    assert len(pairs) == sum(n * (n - 1) for n in np.bincount(owners))
    for (a, b), rank in list(zip(pairs.tolist(), ranks.tolist(), strict=True))[::37]:
        assert owners[a] == owners[b] and a != b
        others = x[owners != owners[a]]
        scores = others @ x[a] if metric == "inner_product" else score(others, x[a])
        assert rank == 1 + (scores >= score(x[a], x[b])).sum()
    best = np.full(len(owners), len(owners))
    np.minimum.at(best, pairs[:, 0], ranks)
    np.testing.assert_array_equal(best, similarity_ranks(y, owners, metric))


def test_pairs_stand_by_their_verbs_and_lengths() -> None:
    owners, verbs = np.array([0, 0, 1, 1, 1, 2, 2]), np.array([1, 0, 1, 1, 0, -1, 1])
    lengths = np.array([10, 4, 7, 8, 8, 5, 5])
    pairs = np.array([[a, b] for a in range(7) for b in range(7) if a != b and owners[a] == owners[b]])
    ranks = np.array([9, 8, 1, 3, 2, 4, 5, 6, 70, 71])
    found = measure_pairs(pairs, ranks, owners, verbs, lengths, Bootstrap(20, 0))
    assert found["n_pairs"] == 8 and found["n_unknown"] == 2
    assert found["verbs"]["both"]["n"] == 2 and found["verbs"]["both"]["mean_rank"] == 1.5  # (2, 3), (3, 2)
    assert found["verbs"]["one"]["mean_rank"] == np.mean([9, 8, 3, 4, 5, 6]) and found["verbs"]["neither"] == {"n": 0}
    assert found["one_minus_both"]["difference"] == np.mean([9, 8, 3, 4, 5, 6]) - 1.5
    # Pairs of two verbs are of image 1 alone: whole resamples without it say nothing, and the others lie between these.
    low, high = found["one_minus_both"]["ci95"]
    assert np.mean([3, 4, 5, 6]) - 1.5 <= low < high <= np.mean([9, 8] * 2 + [3, 4, 5, 6]) - 1.5
    assert found["lengths"]["one"]["6 or more"]["mean_rank"] == 8.5
    assert found["lengths"]["one"]["0 to 2"]["n"] == 4
    assert found["worst"] == {"neither": 0, "one": 1, "both": 0}
    alike = measure_pairs(pairs, ranks, owners, np.where(verbs < 0, -1, 1), lengths, Bootstrap(20, 0))
    assert alike["one_minus_both"] == {}
