"""Compares one index with several index shards of the same vectors: the time of a search and the memory for building.

    python benchmarks/index_shards.py [--tiny]

The vectors are synthetic and form clusters. Each index is an inverted file, whose number of lists is the square root of
the number of all vectors. Each index is tuned to a recall@10 of 0.95 among its own vectors, and is searched in the form
in which `search` opens an index file. All index shards have the lists of the first shard, which are trained on all
vectors, as `build-index` makes them. `ours` is the time for searching all index shards and merging their results, and
`reference` is the time for searching the one index, for queries one by one and for a batch. `recall` has the recall@10
of both compared with exact search. Then separate processes build the largest index shard and the one index. `mebibytes`
has the peak memory of both, without the memory of the vectors.
"""

import argparse
import json
import subprocess
import sys
from functools import partial

from interleave import compare, parse_options, report

from pipeline.compute import runtime

runtime.configure()

import faiss  # noqa: E402  after the BLAS kernels are chosen
import numpy as np  # noqa: E402

from pipeline.index.candidates import FEW_LISTS, TrainedIndex, build, lists_for  # noqa: E402
from pipeline.index.exact import Vectors, search_exact  # noqa: E402
from pipeline.index.format import ExpectedIndex, to_bytes, view_bytes  # noqa: E402
from pipeline.index.gallery import Gallery, MergedGallery  # noqa: E402
from pipeline.index.tuning import ask, tune  # noqa: E402

VECTORS = 400_000
DIM = 96
CLUSTERS = 2000
QUERIES = 200
TOP = 10
FLOOR = 0.95
SHARD_COUNTS = (2, 4, 8)


def make_vectors(rows: int, seed: int) -> np.ndarray:
    """Draw unit vectors (rows, DIM) in float32. Each vector is near one of CLUSTERS centres, which are the same for
    each seed.
    """
    centres = np.random.default_rng(0).standard_normal((CLUSTERS, DIM), dtype=np.float32)
    rng = np.random.default_rng(seed)
    vectors = centres[rng.integers(CLUSTERS, size=rows)] + rng.standard_normal((rows, DIM), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def build_index(vectors: np.ndarray, shared: Vectors | TrainedIndex | None = None) -> TrainedIndex:
    """Build and tune an index of `vectors`. Return the index, its factory string and its setting, from which other
    index shards take their lists.

    `shared` is the index whose lists are used, or the vectors on which the lists are trained (default: `vectors`).
    """
    count = len(vectors) if shared is None or isinstance(shared, TrainedIndex) else shared.count
    factory = shared.factory if isinstance(shared, TrainedIndex) else f"IVF{lists_for(count, FEW_LISTS)},SQ8"
    index = build(factory, Vectors(vectors), "inner_product", shared=shared).index
    questions = ask(make_vectors(QUERIES, 3), Vectors(vectors).blocks(), len(vectors), "inner_product")
    return TrainedIndex(index, factory, tune(index, questions, FLOOR).setting)


def open_gallery(index: faiss.Index) -> Gallery:
    """Return the gallery of an index. The index is opened from its bytes, in the way in which `search` opens an index
    file.
    """
    return Gallery(view_bytes(to_bytes(index), "index", ExpectedIndex(index.ntotal, index.d, "inner_product")))


def make_merged(vectors: np.ndarray, count: int) -> MergedGallery:
    bounds = [len(vectors) * number // count for number in range(count + 1)]
    galleries: list[Gallery] = []
    shared: Vectors | TrainedIndex = Vectors(vectors)
    for first, last in zip(bounds[:-1], bounds[1:], strict=True):
        shared = build_index(vectors[first:last], shared)
        galleries.append(open_gallery(shared.index))
        shared.index.reset()
    return MergedGallery(galleries, bounds[:-1], bounds[1:])


def search_one_by_one(gallery: Gallery, queries: np.ndarray) -> None:
    for query in queries:
        gallery.search(query[None], TOP)


def recall(gallery: Gallery, queries: np.ndarray, right: np.ndarray) -> float:
    rows = gallery.search(queries, TOP).rows
    return float((rows[:, :, None] == right[:, None, :]).any(axis=2).mean())


def building_memory(rows: int) -> int:
    """Return the MiB that a new process needs to build an index of `rows` vectors, without the memory of the
    vectors.
    """
    command = [sys.executable, __file__, "--build", str(rows)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def most_memory() -> int:
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) >> 10


def main() -> None:
    if sys.argv[1:2] == ["--build"]:
        vectors = make_vectors(int(sys.argv[2]), 1)
        before = most_memory()
        build_index(vectors)
        print(max(1, most_memory() - before))
        return
    parse_options(argparse.ArgumentParser(description=__doc__), globals(), VECTORS=3000, QUERIES=20, SHARD_COUNTS=(2,))
    vectors = make_vectors(VECTORS, 1)
    queries = make_vectors(QUERIES, 2)
    right = search_exact(queries, [vectors], TOP, "inner_product").rows
    one = open_gallery(build_index(vectors).index)
    memory = building_memory(VECTORS)
    for count in SHARD_COUNTS:
        several = make_merged(vectors, count)
        recalls = [recall(gallery, queries, right) for gallery in (several, one)]
        name = f"{count} index shards compared with one index of {VECTORS} vectors"
        alone = compare(
            f"queries one by one: {name}",
            partial(search_one_by_one, several, queries), partial(search_one_by_one, one, queries), 15,
        )  # fmt: skip
        report({**alone, "recall": recalls})
        batch = compare(
            f"a batch of {QUERIES} queries: {name}",
            partial(several.search, queries, TOP), partial(one.search, queries, TOP), 7, runtime.threads(),
        )  # fmt: skip
        report({**batch, "mebibytes": [building_memory(-(-VECTORS // count)), memory]})


if __name__ == "__main__":
    main()
