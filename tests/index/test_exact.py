"""Exact search against a naive oracle in double precision and against IndexFlatIP."""

from collections.abc import Iterator

import faiss
import numpy as np
import pytest
import torch
from devices import full_beyond

from pipeline.device import OomBatcher
from pipeline.errors import IntegrityError
from pipeline.index import exact
from pipeline.index.exact import search_exact
from pipeline.index.vectors import ArrayVectors

MANY = 20_000
"""Rows that are searched in three pieces, the last two of them in bfloat16 where that is fast."""


def naive(vectors: np.ndarray, queries: np.ndarray, k: int, metric: str) -> np.ndarray:
    """Rows by descending score in double precision, equal ones by ascending row."""
    x, q = vectors.astype(np.float64), queries.astype(np.float64)
    scores = q @ x.T
    if metric == "euclidean":
        scores = 2 * scores - (x**2).sum(axis=1) - (q**2).sum(axis=1, keepdims=True)
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def whole_numbers(n: int, dim: int, seed: int) -> np.ndarray:
    """Vectors whose scores any arithmetic gives exactly, with many equal ones among them."""
    return np.random.default_rng(seed).integers(-2, 3, size=(n, dim)).astype(np.float32)


def cloud(n: int, dim: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 6)) @ rng.standard_normal((6, dim)) + 0.3 * rng.standard_normal((n, dim))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(params=[False, True], ids=["float32", "bfloat16"])
def precision(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[set[torch.dtype]]:
    """What torch multiplies in, on a processor that is fast at bfloat16 and on one that is not."""
    used, multiply = set(), torch.mm
    monkeypatch.setattr(exact, "fast_at_bfloat16", lambda device: request.param)
    monkeypatch.setattr(torch, "mm", lambda a, b, **more: used.add(a.dtype) or multiply(a, b, **more))
    yield used
    assert used <= ({torch.bfloat16} if request.param else set())


@pytest.mark.parametrize("metric", ["inner_product", "euclidean"])
def test_ties_go_to_the_lower_row(precision: set, metric: str) -> None:
    vectors, queries = whole_numbers(MANY, 4, 0), whole_numbers(70, 4, 1)
    found = search_exact(queries, [vectors[:1], vectors[1:1700], vectors[1700:]], 20, metric)
    assert (found.rows == naive(vectors, queries, 20, metric)).all()


@pytest.mark.parametrize("metric", ["inner_product", "euclidean"])
def test_rows_are_those_of_double_precision_and_of_faiss(precision: set, metric: str) -> None:
    vectors, queries = cloud(MANY, 24, 0), cloud(1100, 24, 0)[1030:]
    found = search_exact(queries, ArrayVectors(vectors, 15_000).blocks(), 10, metric)
    assert (found.rows == naive(vectors, queries, 10, metric)).all()
    index = faiss.IndexFlatIP(24) if metric == "inner_product" else faiss.IndexFlatL2(24)
    index.add(vectors)
    scores, rows = index.search(queries, 10)
    assert (found.rows == rows).all()
    sign = 1 if metric == "inner_product" else -1
    np.testing.assert_allclose(found.scores, sign * scores, atol=1e-5)


@pytest.mark.parametrize("k", [1, 10, 120])
def test_equal_vectors_without_number(precision: set, k: int) -> None:
    """The longest ones come late."""
    vectors = np.eye(4, dtype=np.float32)[np.random.default_rng(0).integers(3, size=MANY)]
    vectors[MANY // 2 :] *= 2
    queries = np.tile(np.eye(4, dtype=np.float32) + 1, (20, 1))
    found = search_exact(queries, [vectors], k, "inner_product")
    assert (found.rows == naive(vectors, queries, k, "inner_product")).all()


def test_what_bfloat16_rounds_down_is_found(precision: set) -> None:
    """The scores of the best come late, are 16.2507, and in bfloat16 16.125; those of the second best are 16.2506."""
    vectors = np.full((MANY, 16), 0.9, np.float32)
    vectors[:30], vectors[-20:] = 1.011717, 1.0117185
    found = search_exact(np.full((70, 16), 1.003905, np.float32), [vectors], 10, "inner_product")
    assert (found.rows == np.arange(MANY - 20, MANY - 10)).all()


def test_what_is_not_finite_is_named() -> None:
    vectors = cloud(600, 8, 0)
    vectors[599, 3] = np.inf
    with pytest.raises(IntegrityError, match="row 599 is not finite"):
        search_exact(vectors[:2], [vectors], 3, "inner_product")
    with pytest.raises(IntegrityError, match="queries row 1 is not finite"):
        search_exact(vectors[[0, 599]], [vectors[:9]], 3, "inner_product")


@pytest.mark.parametrize("room", [10**6, 130])
@pytest.mark.parametrize("metric", ["inner_product", "euclidean"])
def test_a_gpu_finds_the_same(metric: str, room: int, device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ties and all, also where it has room for a part of a piece only."""
    done: list[int] = []
    monkeypatch.setattr(OomBatcher, "map", full_beyond(room, done))
    for make in (whole_numbers, cloud):
        vectors, queries = make(3000, 8, 0), make(1100, 8, 1)[1030:]
        done.clear()
        found = search_exact(queries, [vectors[:1], vectors[1:1700], vectors[1700:]], 20, metric, device)
        np.testing.assert_array_equal(found.rows, naive(vectors, queries, 20, metric))
        assert sum(done) == 3000 and max(done) <= room
