"""Exact search is compared with a naive search in double precision, on the CPU and on a GPU."""

import numpy as np
import pytest
import torch
from fake_devices import full_beyond

from pipeline.compute.device import OomBatcher
from pipeline.errors import IntegrityError
from pipeline.index.exact import Neighbours, search_exact


def naive(vectors: np.ndarray, queries: np.ndarray, k: int, metric: str) -> np.ndarray:
    """Return the rows (q, k) of the `k` vectors with the best scores for each query, by descending score in double
    precision, and by ascending row if scores are equal."""
    x = vectors.astype(np.float64)
    q = queries.astype(np.float64)
    scores = q @ x.T
    if metric == "euclidean":
        scores = 2 * scores - (x**2).sum(axis=1) - (q**2).sum(axis=1, keepdims=True)
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def cloud(n: int, dim: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 6)) @ rng.standard_normal((6, dim)) + 0.3 * rng.standard_normal((n, dim))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("metric", ["inner_product", "euclidean"])
def test_rows_equal_those_in_double_precision(metric: str, device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks have different sizes, the simulated memory of the device holds only a part of a block, and one search
    asks for more neighbours than there are vectors."""
    done: list[int] = []
    monkeypatch.setattr(OomBatcher, "map", full_beyond(200, done))
    vectors = cloud(600, 24, 0)
    queries = cloud(130, 24, 1)
    right = naive(vectors, queries, 10, metric)
    blocks = [vectors[:1], vectors[1:350], vectors[350:]]
    differences = (queries[:, None].astype(float) - vectors[right]) ** 2
    products = np.einsum("qc,qkc->qk", queries.astype(float), vectors[right])
    expected = products if metric == "inner_product" else -differences.sum(axis=2)
    for gpu in (None, device):
        found = search_exact(queries, blocks, 10, metric, gpu)
        np.testing.assert_array_equal(found.rows, right)
        np.testing.assert_allclose(found.scores, expected, atol=1e-5)
        few = search_exact(queries[:3], [vectors[:2], vectors[2:5]], 7, metric, gpu)
        np.testing.assert_array_equal(few.rows[:, :5], naive(vectors[:5], queries[:3], 5, metric))
        assert (few.rows[:, 5:] == -1).all() and np.isneginf(few.scores[:, 5:]).all()
    assert sum(done) == 600 + 5 and max(done) <= 200


@pytest.mark.parametrize("metric", ["inner_product", "euclidean"])
@pytest.mark.parametrize("asked", [5, 70])
@pytest.mark.parametrize("by", [None, "cpu"])
def test_vectors_with_equal_scores_are_sorted_by_row(asked: int, metric: str, by: str | None) -> None:
    """The vectors have small whole numbers, so that their scores are exact in any precision, and many scores are
    equal."""
    vectors, queries = (np.random.default_rng(n).integers(-2, 3, size=(n, 4)).astype(np.float32) for n in (3000, asked))
    blocks = [vectors[:1], vectors[1:1700], vectors[1700:]]
    found = search_exact(queries, blocks, 20, metric, by and torch.device(by))
    own = np.arange(asked)[:, None]
    scores = queries @ vectors.T if metric == "inner_product" else -np.square(queries[:, None] - vectors).sum(axis=2)
    np.testing.assert_array_equal(found.scores, scores[own, naive(vectors, queries, 20, metric)])
    np.testing.assert_array_equal(found.scores, scores[own, found.rows])
    steps = np.diff(found.scores, axis=1)
    assert ((steps < 0) | (np.diff(found.rows, axis=1) > 0)).all()


@pytest.mark.parametrize(("metric", "values"), [("inner_product", [2.5, 0.0, -3e38]), ("euclidean", [-2.5, 0.0, 3e38])])
def test_missing_results_of_faiss_have_the_lowest_score(metric: str, values: list[float]) -> None:
    rows = np.array([[7, 0, -1], [0, -1, -1]])
    found = Neighbours.of_faiss(np.array([values, values], np.float32), rows, metric)
    np.testing.assert_array_equal(found.scores, [[2.5, 0, -np.inf], [2.5, -np.inf, -np.inf]])
    np.testing.assert_array_equal(found.rows, rows)
    others = Neighbours(np.array([[3, -1], [9, 4]]), np.array([[-1e38, -np.inf], [1, -1e38]], np.float32))
    both = found.merge(others)
    np.testing.assert_array_equal(both.rows, [[7, 0, 3], [0, 9, 4]])
    np.testing.assert_array_equal(both.of_query(0)[0], [7, 0, 3])


def test_rows_that_are_not_finite_are_named(device) -> None:
    vectors = cloud(600, 8, 0)
    vectors[599, 3] = np.inf
    with pytest.raises(IntegrityError, match="from row 300 on, vectors row 299 is not finite"):
        search_exact(vectors[:2], [vectors[:300], vectors[300:]], 3, "inner_product")
    with pytest.raises(IntegrityError, match="vectors row 599 is not finite"):
        search_exact(vectors[:2], [vectors[:300], vectors[300:]], 3, "inner_product", device)
    with pytest.raises(IntegrityError, match="queries row 1 is not finite"):
        search_exact(vectors[[0, 599]], [vectors[:9]], 3, "inner_product")
