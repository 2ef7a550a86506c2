"""Built indexes are compared with exact search, before and after they are written and read."""

import resource
from collections.abc import Callable
from dataclasses import replace

import faiss
import numpy as np
import pytest

from pipeline.errors import InputError, IntegrityError, UsageError
from pipeline.index.build import BuiltIndex, choose_and_build
from pipeline.index.candidates import build, candidate_factories, lists_of
from pipeline.index.chooser import Requirements
from pipeline.index.exact import Vectors
from pipeline.index.format import ExpectedIndex, from_bytes, to_bytes, view_bytes
from pipeline.index.tuning import Operation, SearchSetting, stages_of

ANY = {
    "recall_floor": 0.9,
    "memory": None,
    "latency_ms": None,
    "exact_limit": 1000,
    "candidates": ("IVF50,Flat",),
    "sample": 1000,
}


def clustered(n: int, dim: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return `n` random unit vectors of `dim` dimensions that vary most in eight directions, and 200 queries, each of
    which is near one of the vectors."""
    rng = np.random.default_rng(seed)
    cloud = rng.standard_normal((n, 8)) @ rng.standard_normal((8, dim)) + 0.3 * rng.standard_normal((n, dim))
    queries = cloud[:: n // 200][:200] + 0.5 * rng.standard_normal((200, dim))
    return tuple((x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32) for x in (cloud, queries))


def make(vectors: np.ndarray, queries: np.ndarray, metric: str = "inner_product", **asked: object) -> BuiltIndex:
    return choose_and_build(Vectors(vectors), queries, metric, Requirements(**{**ANY, **asked}))


def nearest(vectors: np.ndarray, queries: np.ndarray, metric: str) -> np.ndarray:
    scores = queries @ vectors.T if metric == "inner_product" else -faiss.pairwise_distances(queries, vectors)
    return np.argsort(-scores, axis=1)[:, :10]


def overlap(found: np.ndarray, true: np.ndarray) -> float:
    return float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, true, strict=True)]))


@pytest.mark.parametrize("metric", ["inner_product", "euclidean"])
def test_few_vectors_are_indexed_exactly(metric: str) -> None:
    vectors, queries = clustered(1000, 16)
    built = make(vectors, queries, metric)
    card = built.card
    said = {"factory": "Flat", "count": 1000, "dim": 16, "metric": metric, "nprobe": None, "recall@10": 1}
    assert card.to_json().items() >= {**said, "queries": 200, "bytes": len(to_bytes(built.index))}.items()
    assert card.queries_per_second > 0 and built.tradeoff is None
    index = from_bytes(to_bytes(built.index), "images.faiss", built.expected)
    assert (index.search(queries, 10)[1] == nearest(vectors, queries, metric)).all()
    np.testing.assert_array_equal(index.reconstruct(7), vectors[7])


def test_the_card_has_queries_per_second_and_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.index.build.tune", lambda *_, **__: Operation(SearchSetting(), 1.0, 0.25))
    monkeypatch.setattr("pipeline.index.build.latency", lambda *_: 0.003)
    card = make(*clustered(400, 8)).card
    assert (card.queries_per_second, card.latency_ms, card.recall) == (4, 3, 1)


@pytest.mark.parametrize(
    ("factory", "metric", "floor"),
    [
        ("IVF75,Flat", "inner_product", 0.8), ("IVF75,Flat", "euclidean", 0.99), ("HNSW16", "euclidean", 0.9),
        ("IVF50,PQ8x4fsr,Refine(SQfp16)", "inner_product", 0.9), ("PCA12,IVF50,PQ6x4,RFlat", "inner_product", 0.9),
        ("SQ8", "inner_product", 0.9), ("IVF50,RaBitQ4,RFlat", "inner_product", 0.9),
    ],
)  # fmt: skip
def test_parameters_that_reach_the_recall_floor_are_stored_in_the_file(factory: str, metric: str, floor: float) -> None:
    vectors, queries = clustered(2500, 16)
    built = make(vectors, queries, metric, recall_floor=floor, candidates=(factory,))
    card = built.card
    assert card.factory == factory and card.recall >= floor
    index = from_bytes(to_bytes(built.index), "images.faiss", built.expected)
    stages = stages_of(index)
    assert (stages.graph.hnsw.efSearch if stages.graph else None) == card.efSearch
    assert (stages.inverted.nprobe if stages.inverted else None) == card.nprobe
    assert (stages.refine.k_factor if stages.refine else None) == card.k_factor
    assert overlap(index.search(queries, 10)[1], nearest(vectors, queries, metric)) >= floor
    assert not stages.inverted or card.nprobe < stages.inverted.nlist


def test_input_that_cannot_be_indexed_is_refused() -> None:
    vectors, queries = clustered(2000, 8)
    with pytest.raises(InputError, match="The index would be empty, because there are"):
        make(vectors[:0], queries)
    with pytest.raises(InputError, match="The index would be empty, because there are"):
        make(vectors, queries[:0])
    with pytest.raises(UsageError, match="index.candidates: FAISS .* cannot make an index PQ3"):
        make(vectors, queries, candidates=("PQ3",))
    vectors[13, 2] = np.nan
    for limit in (10, 10_000):
        with pytest.raises(IntegrityError, match="vectors row 13 is not finite"):
            make(vectors, queries, exact_limit=limit)


@pytest.mark.parametrize("factory", ["IVF40,Flat", "IVF40_HNSW8,SQ8", "PCA8,IVF40,PQ4x4fsr,RFlat"])
@pytest.mark.parametrize("metric", ["inner_product", "euclidean"])
def test_lists_fit_the_vectors_as_well_as_those_of_faiss(factory: str, metric: str, device) -> None:
    """Lists that PyTorch trains on `device` are compared with lists that FAISS trains, by the mean distance between the
    vectors and their centroids. 300 vectors are equal, so some lists become empty."""
    vectors, _ = clustered(2000, 16)
    vectors[:300] = vectors[0]
    losses = []
    for gpu in (None, device):
        index = build(factory, Vectors(vectors), metric, gpu=gpu).index
        inverted = stages_of(index).inverted
        centroids = inverted.quantizer.reconstruct_n(0, 40)
        chain = getattr(faiss.downcast_index(getattr(index, "base_index", index)), "chain", None)
        rows = vectors if chain is None else chain.at(0).apply(vectors)
        losses.append(faiss.knn(rows, centroids, 1)[0].mean())
        assert index.ntotal == 2000 and (inverted.invlists.imbalance_factor() < 20)
        if metric == "inner_product":
            np.testing.assert_allclose(np.linalg.norm(centroids, axis=1), 1, rtol=1e-3)
    assert losses[1] < 1.1 * losses[0]


def test_every_automatic_candidate_can_be_built_and_saved() -> None:
    vectors, queries = clustered(1000, 24)
    factories = [factory for tier in candidate_factories(1000, 24) for factory in tier]
    assert len(factories) >= 12 and any("RaBitQ" in f for f in factories) and any("fs" in f for f in factories)
    for factory in factories:
        index = build(factory, Vectors(vectors), "inner_product").index
        again = faiss.deserialize_index(np.frombuffer(to_bytes(index), np.uint8))
        assert again.ntotal == 1000 and (again.search(queries, 10)[1] == index.search(queries, 10)[1]).all(), factory
        assert lists_of(factory) <= 1000 / 39


@pytest.mark.parametrize("from_bytes", [from_bytes, view_bytes])
def test_bytes_that_are_not_an_index_are_refused_with_their_name(from_bytes: Callable) -> None:
    vectors, queries = clustered(400, 8)
    built = make(vectors, queries)
    for bad in (b"", b"IxFI", bytes(to_bytes(built.index)[:-9]), b"\0" * 500):
        with pytest.raises(IntegrityError, match="images.faiss is not a readable FAISS index"):
            from_bytes(bad, "images.faiss", built.expected)
    for change in ({"count": 399}, {"dim": 9}, {"metric": "euclidean"}):
        with pytest.raises(IntegrityError, match="images.faiss contains 400 vectors of 8 dimensions"):
            from_bytes(to_bytes(built.index), "images.faiss", replace(built.expected, **change))


@pytest.mark.parametrize("from_bytes", [from_bytes, view_bytes])
def test_a_header_that_claims_more_than_the_file_is_refused(from_bytes: Callable) -> None:
    index = faiss.IndexFlatL2(8)
    index.add(np.zeros((10, 8), np.float32))
    data = bytearray(to_bytes(index))
    size = data.index((80).to_bytes(8, "little"))  # This is the size of the array of 10 x 8 floats.
    data[size : size + 8] = (1 << 28).to_bytes(8, "little")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(IntegrityError, match="not a readable FAISS index"):
        from_bytes(bytes(data), "images.faiss", ExpectedIndex(10, 8, "euclidean"))
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 18
    )  # The unit is kB. The header claims 1 GiB.
