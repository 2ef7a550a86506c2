"""The ranks of sentences whose query is another sentence of the same image are compared with a naive loop."""

import numpy as np
import pytest

from pipeline.metrics.ranks import BLOCK_IMAGES, pair_ranks, similarity_ranks


@pytest.mark.parametrize("metric", ["inner_product", "euclidean"])
def test_ranks_of_pairs_are_counted(metric: str) -> None:
    rng = np.random.default_rng(0)
    owners = np.sort(rng.integers(0, 200, 2 * BLOCK_IMAGES + 90))
    owners = np.unique(owners[np.bincount(owners)[owners] > 1], return_inverse=True)[1]
    y = rng.integers(-2, 3, (len(owners), 5)).astype(np.float32)  # Many distances are exactly equal.
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
