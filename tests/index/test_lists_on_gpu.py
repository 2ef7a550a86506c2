"""Lists found elsewhere than in the index, by an exact index of the processor in place of a GPU's."""

from collections.abc import Iterator

import faiss
import numpy as np
import pytest

from pipeline.index import lists_on_gpu
from pipeline.index.candidates import build, candidate_factories, lists_of
from pipeline.index.format import to_bytes
from pipeline.index.vectors import ArrayVectors

COUNT = 1200
FACTORIES = [
    *dict.fromkeys(name for tier in candidate_factories(COUNT, 16) for name in tier if "IVF" in name),
    "IVF50_HNSW8,SQ8",
    "OPQ8_16,IVF50,PQ8,Refine(SQfp16)",
]


def clustered(n: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of a low-dimensional cloud, and 200 near some of them."""
    rng = np.random.default_rng(0)
    cloud = rng.standard_normal((n, 8)) @ rng.standard_normal((8, dim)) + 0.3 * rng.standard_normal((n, dim))
    queries = cloud[:: n // 200][:200] + 0.5 * rng.standard_normal((200, dim))
    return tuple((x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32) for x in (cloud, queries))


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many vectors each index was begun with that stands for one on a GPU."""
    begun = []

    def flat(vectors: np.ndarray, metric: int) -> faiss.Index:
        begun.append(len(vectors))
        index = faiss.IndexFlat(vectors.shape[1], metric)
        index.add(vectors)
        return index

    monkeypatch.setattr(lists_on_gpu, "flat_on_gpu", flat)
    return begun


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    lists_on_gpu.use(None)
    lists_on_gpu._resources.cache_clear()


@pytest.mark.parametrize("metric", ["inner_product", "euclidean"])
@pytest.mark.parametrize("ids", [None, np.arange(COUNT)[::-1] * 3 + 7])
@pytest.mark.parametrize("factory", FACTORIES)
def test_the_index_is_the_one_that_it_makes_itself(
    factory: str, ids: np.ndarray | None, metric: str, pretended: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors, queries = clustered(COUNT, 16)
    found = build(factory, ArrayVectors(vectors), metric, ids=ids).index
    # An empty one to find the centroids with, and these to find each vector's list, but not of fast-scan codes.
    assert pretended == [0, lists_of(factory)][: 1 if "fs" in factory else 2]
    monkeypatch.setattr(lists_on_gpu, "flat_on_gpu", lambda *_: None)
    alone = build(factory, ArrayVectors(vectors), metric, ids=ids).index
    assert found.ntotal == alone.ntotal == COUNT
    again = faiss.deserialize_index(np.frombuffer(to_bytes(found), np.uint8))
    for index in (found, alone, again):
        lists_on_gpu.stages_of(index).inverted.nprobe = 8
    ours, theirs, stored = (index.search(queries, 10)[1] for index in (found, alone, again))
    np.testing.assert_array_equal(ours, stored)
    shared = np.mean([len(set(a) & set(b)) for a, b in zip(ours, theirs, strict=True)])
    assert shared > (8 if "OPQ" in factory else 9.9)  # a rotation is learned twice, by several threads


def test_a_gpu_that_fails_on_the_way_leaves_the_rest_to_the_processor(
    pretended: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors, queries = clustered(3000, 8)
    index = faiss.index_factory(8, "IVF20,Flat")
    index.train(vectors)
    adder, plain = lists_on_gpu.Adder(index), faiss.clone_index(index)
    adder.add(vectors[:1000])

    class Full:
        def search(self, *_):
            raise RuntimeError("out of memory")

    adder._lists = Full()
    adder.add(vectors[1000:])
    plain.add(vectors)
    np.testing.assert_array_equal(index.search(queries, 10)[1], plain.search(queries, 10)[1])
