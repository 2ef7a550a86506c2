"""Compares one index with several index shards of the same vectors: the time of a search and the memory for building.

    python benchmarks/index_shards.py [--tiny]

The vectors are synthetic and form clusters. Each index is an inverted file whose number of lists is the square root of
the number of its vectors, and every search visits the same share of the lists. `ours` is the time for searching all
index shards and merging their results, and `reference` is the time for searching the one index. `recall` has the
recall@10 of both compared with exact search. Then separate processes build the largest index shard and the one index.
`mebibytes` has the peak memory of both, without the memory of the vectors.
"""

import argparse
import json
import math
import subprocess
import sys
from functools import partial

from interleave import compare, parse_options, report

from pipeline.compute import runtime

runtime.configure()

import faiss  # noqa: E402  after the BLAS kernels are chosen
import numpy as np  # noqa: E402

from pipeline.index.candidates import build  # noqa: E402
from pipeline.index.exact import ArrayVectors, search_exact  # noqa: E402
from pipeline.index.gallery import Gallery, MergedGallery  # noqa: E402

VECTORS = 400_000
DIM = 96
CLUSTERS = 2000
QUERIES = 200
TOP = 10
PROBED_SHARE = 1 / 16
SHARD_COUNTS = (2, 4, 8)


def make_vectors(rows: int, seed: int) -> np.ndarray:
    """Draw vectors (rows, DIM) in float32, of unit length, near one of CLUSTERS centres."""
    centres = np.random.default_rng(0).standard_normal((CLUSTERS, DIM), dtype=np.float32)
    rng = np.random.default_rng(seed)
    vectors = centres[rng.integers(CLUSTERS, size=rows)] + rng.standard_normal((rows, DIM), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def make_gallery(vectors: np.ndarray) -> Gallery:
    lists = max(1, round(math.sqrt(len(vectors))))
    index = build(f"IVF{lists},SQ8", ArrayVectors(vectors), "inner_product").index
    faiss.extract_index_ivf(index).nprobe = max(1, round(lists * PROBED_SHARE))
    return Gallery(index)


def make_merged(vectors: np.ndarray, count: int) -> MergedGallery:
    bounds = [len(vectors) * number // count for number in range(count + 1)]
    galleries = [make_gallery(vectors[first:last]) for first, last in zip(bounds[:-1], bounds[1:], strict=True)]
    return MergedGallery(galleries, bounds[:-1], bounds[1:])


def recall(gallery: Gallery, queries: np.ndarray, right: np.ndarray) -> float:
    rows = gallery.search(queries, TOP).rows
    return float((rows[:, :, None] == right[:, None, :]).any(axis=2).mean())


def building_memory(rows: int) -> int:
    """Return the MiB that a process needs to build an index of `rows` vectors, without the memory of the vectors."""
    command = [sys.executable, __file__, "--build", str(rows)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def most_memory() -> int:
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) >> 10


def main() -> None:
    if sys.argv[1:2] == ["--build"]:
        vectors = make_vectors(int(sys.argv[2]), 1)
        before = most_memory()
        make_gallery(vectors)
        print(max(1, most_memory() - before))
        return
    parse_options(argparse.ArgumentParser(description=__doc__), globals(), VECTORS=3000, QUERIES=20, SHARD_COUNTS=(2,))
    vectors = make_vectors(VECTORS, 1)
    queries = make_vectors(QUERIES, 2)
    right = search_exact(queries, [vectors], TOP, "inner_product").rows
    one = make_gallery(vectors)
    memory = building_memory(VECTORS)
    for count in SHARD_COUNTS:
        several = make_merged(vectors, count)
        line = compare(
            f"search of {count} index shards compared with one index of {VECTORS} vectors",
            partial(several.search, queries, TOP), partial(one.search, queries, TOP), 7, runtime.threads(),
        )  # fmt: skip
        recalls = [recall(gallery, queries, right) for gallery in (several, one)]
        report({**line, "recall": recalls, "mebibytes": [building_memory(-(-VECTORS // count)), memory]})


if __name__ == "__main__":
    main()
