"""Measures the memory for choosing, building and writing an index, compared with the size of the index file.

    python benchmarks/build_memory.py [--vectors 300000] [--dim 512] [--tiny]

The vectors are synthetic, form clusters and are read from a file, as `build-index` reads embeddings. `mebibytes` is the
peak of the process's own memory (RssAnon in /proc/self/status, 50 times per second), without the memory that it had
before. Pages of the mapped file are not counted, because the system can drop them at any time.
"""

import argparse
import tempfile
import threading
import time
from pathlib import Path

from interleave import describe_processor, parse_options, report

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen

from pipeline.index.build import choose_and_build  # noqa: E402
from pipeline.index.chooser import Requirements  # noqa: E402
from pipeline.index.exact import Vectors  # noqa: E402
from pipeline.storage.index_shard import IndexWriter  # noqa: E402

CLUSTERS = 2000
BLOCK = 8192


def write_vectors(path: Path, count: int, dim: int) -> None:
    """Write vectors (count, dim) in float32 to the .npy file `path`. All vectors have unit length, and each is near one
    of CLUSTERS centres.
    """
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLUSTERS, dim), dtype=np.float32)
    array = np.lib.format.open_memmap(path, "w+", np.float32, (count, dim))
    for first in range(0, count, BLOCK):
        block = array[first : first + BLOCK]
        block[:] = centres[rng.integers(CLUSTERS, size=len(block))]
        block += rng.standard_normal(block.shape, dtype=np.float32)
        block /= np.linalg.norm(block, axis=1, keepdims=True)
    array.flush()


def own_memory() -> int:
    """Return the memory of this process in MiB, without the pages of mapped files."""
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) >> 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vectors", type=int, default=300_000)
    parser.add_argument("--dim", type=int, default=512)
    given = parse_options(parser, globals(), vectors=3000, dim=16)
    with tempfile.TemporaryDirectory() as name:
        write_vectors(Path(name) / "vectors.npy", given.vectors, given.dim)
        vectors = np.load(Path(name) / "vectors.npy", mmap_mode="r")
        queries = vectors[:: max(1, given.vectors // 1000)] + np.float32(0.01)
        before = own_memory()
        peak = before
        is_done = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not is_done.wait(0.02):
                peak = max(peak, own_memory())

        watcher = threading.Thread(target=watch)
        watcher.start()
        start = time.process_time()
        try:
            requirements = Requirements(0.95, None, None, 1000, "auto")
            built = choose_and_build(Vectors(vectors), queries, "inner_product", requirements)
            IndexWriter(Path(name) / "index").add("images.faiss", built.write)
        finally:
            is_done.set()
            watcher.join()
        card = built.card
        report(
            {
                "name": f"building an index of {given.vectors} vectors of {given.dim} dimensions",
                "factory": card.factory, "recall": card.recall, "cpu": time.process_time() - start,
                "mebibytes": peak - before, "file_mebibytes": card.bytes >> 20, "processor": describe_processor(),
            }
        )  # fmt: skip


if __name__ == "__main__":
    main()
