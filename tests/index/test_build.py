"""Indices against exact search, and their way through bytes."""

import resource

import faiss
import numpy as np
import pytest

from pipeline.errors import InputError, IntegrityError
from pipeline.index.build import build_index, index_recall, tune_nprobe
from pipeline.index.format import from_bytes, to_bytes


def clustered(n: int, dim: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors of a low-dimensional cloud, and 200 queries of another modality: near some of them."""
    rng = np.random.default_rng(seed)
    cloud = rng.standard_normal((n, 8)) @ rng.standard_normal((8, dim)) + 0.3 * rng.standard_normal((n, dim))
    queries = cloud[:: n // 200][:200] + 0.5 * rng.standard_normal((200, dim))
    return tuple((x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32) for x in (cloud, queries))


def nearest(vectors: np.ndarray, queries: np.ndarray, metric: str) -> np.ndarray:
    scores = queries @ vectors.T if metric == "inner_product" else -faiss.pairwise_distances(queries, vectors)
    return np.argsort(-scores, axis=1)[:, :10]


@pytest.mark.parametrize("metric", ["inner_product", "euclidean"])
def test_few_vectors_are_indexed_exactly(metric: str) -> None:
    vectors, queries = clustered(1000, 16)
    built = build_index(vectors, queries, metric, exact_limit=1000, recall_floor=0.9)
    card = built.card
    assert (card.factory, card.count, card.dim, card.metric, card.nprobe) == ("Flat", 1000, 16, metric, None)
    assert (card.recall, card.queries, card.bytes) == (1, 200, len(built.data))
    assert card.queries_per_second > 0 and card.to_dict()["recall@10"] == 1
    index = from_bytes(built.data, "images.faiss", card.to_dict())
    assert (index.search(queries, 10)[1] == nearest(vectors, queries, metric)).all()
    np.testing.assert_array_equal(index.reconstruct(7), vectors[7])


@pytest.mark.parametrize("metric", ["inner_product", "euclidean"])
@pytest.mark.parametrize("floor", [0.8, 0.99])
def test_many_vectors_reach_the_recall_floor(metric: str, floor: float) -> None:
    vectors, queries = clustered(6000, 16)
    built = build_index(vectors, queries, metric, exact_limit=5999, recall_floor=floor)
    card = built.card
    assert card.factory == "IVF153,Flat" and card.recall >= floor
    index = from_bytes(built.data, "images.faiss", card.to_dict())
    found, true = index.search(queries, 10)[1], nearest(vectors, queries, metric)
    overlap = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, true, strict=True)])
    assert overlap >= floor  # as the file is delivered: nprobe travels in it
    assert index.nprobe == card.nprobe < index.nlist


def test_no_more_lists_are_visited_than_needed() -> None:
    vectors, queries = clustered(6000, 16)
    quantizer = faiss.IndexFlatIP(16)
    index = faiss.IndexIVFFlat(quantizer, 16, 100, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    exact = faiss.knn(queries, vectors, 10, metric=faiss.METRIC_INNER_PRODUCT)[0][:, -1]
    chosen = tune_nprobe(index, queries, exact, 10, 0.9)
    recalls = []
    for index.nprobe in (chosen - 1, chosen):
        recalls.append(index_recall(index, queries, exact, 10))
    assert chosen > 1 and recalls[0] < 0.9 <= recalls[1]
    assert tune_nprobe(index, queries, exact, 10, 1.0) <= 100
    assert tune_nprobe(index, queries, exact, 10, 0.01) == 1


def test_equal_vectors_stand_for_each_other_in_recall() -> None:
    vectors = np.repeat(np.eye(4, dtype=np.float32), 50, axis=0)
    built = build_index(vectors, np.eye(4, dtype=np.float32), "inner_product", 10, 1.0)
    assert built.card.recall == 1


def test_fewer_vectors_than_neighbours() -> None:
    built = build_index(np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)[:1], "euclidean", 10, 0.9)
    assert built.card.recall == 1 and built.card.queries == 1


def test_what_cannot_be_indexed_is_refused() -> None:
    vectors, queries = clustered(400, 8)
    with pytest.raises(InputError, match="nothing to index"):
        build_index(vectors[:0], queries, "inner_product", 10, 0.9)
    with pytest.raises(InputError, match="nothing to index"):
        build_index(vectors, queries[:0], "inner_product", 10, 0.9)
    vectors[13, 2] = np.nan
    with pytest.raises(IntegrityError, match="vectors row 13 is not finite"):
        build_index(vectors, queries, "inner_product", 10, 0.9)


def test_bytes_that_are_no_index_are_refused_by_name() -> None:
    vectors, queries = clustered(400, 8)
    built = build_index(vectors, queries, "inner_product", 1000, 0.9)
    card = built.card.to_dict()
    for bad in (b"", b"IxFI", bytes(built.data[:-9]), b"\0" * 500):
        with pytest.raises(IntegrityError, match="images.faiss is not a readable FAISS index"):
            from_bytes(bad, "images.faiss", card)
    for change in ({"count": 399}, {"dim": 9}, {"metric": "euclidean"}):
        with pytest.raises(IntegrityError, match="images.faiss holds 400 vectors of 8 dimensions"):
            from_bytes(built.data, "images.faiss", {**card, **change})


def test_a_header_that_claims_more_than_the_file_is_refused() -> None:
    index = faiss.IndexFlatL2(8)
    index.add(np.zeros((10, 8), np.float32))
    data = bytearray(to_bytes(index))
    size = data.index((80).to_bytes(8, "little"))  # of the array of 10 x 8 floats
    data[size : size + 8] = (1 << 28).to_bytes(8, "little")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(IntegrityError, match="not a readable FAISS index"):
        from_bytes(bytes(data), "images.faiss", {"count": 10, "dim": 8, "metric": "euclidean"})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 18  # kB; it claims 1 GiB
