"""Measures the first search of a new process, in a large index and in a small index of the same model.

    python benchmarks/cold_search.py [--tiny] [--runs 5] [--folder FOLDER]

Both indexes are inverted files of synthetic vectors in clusters, and a search visits the same number of lists in both.
After one search that verifies the files of an index, processes search both indexes in turn. There is a line of JSON for
each kind of process: `recognised` does not hash files that were verified before, and `verified` hashes all files. The
line has the median CPU seconds and wall-clock seconds for the small and for the large index, and the medians of the
ratios.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from interleave import parse_options

from pipeline.compute import runtime

runtime.configure()

import faiss  # noqa: E402  after the BLAS kernels are chosen
import numpy as np  # noqa: E402

import jointspace  # noqa: E402
from jointspace.writing import Items  # noqa: E402
from pipeline.index.format import to_bytes  # noqa: E402
from pipeline.storage.card import IndexCard, MeasuredIndexes  # noqa: E402
from pipeline.storage.files import SETTLED_SECONDS  # noqa: E402
from pipeline.storage.index_shard import IndexShard, IndexWriter  # noqa: E402

VECTORS = {"small": 10_000, "large": 1_000_000}
DIM = 256
LISTS = 500
PROBES = 8
PROGRAM = """
import sys
import numpy as np
import jointspace
folder, verify = sys.argv[1], sys.argv[2] == "verified"
found = jointspace.load(folder, verify=verify).search(text_vector=np.load(f"{folder}/../query.npy"), k=10)
assert len(found) == 10
"""


def write_model(folder: Path) -> IndexShard:
    """Write an index of a few pairs, whose model the other indexes use, and the vector of a query in query.npy. Return
    the index.
    """
    rng = np.random.default_rng(0)
    images = rng.standard_normal((2 * DIM, DIM), dtype=np.float32)
    texts = images + 0.1 * rng.standard_normal(images.shape, dtype=np.float32)
    space = jointspace.fit(images, texts, dimensions=[DIM], image_ridge=[0.1], text_ridge=[0.1])
    space.index(folder / "model", images)
    np.save(folder / "query.npy", texts[0])
    return IndexShard(folder / "model")


def write_index(folder: Path, source: IndexShard, rows: int) -> None:
    """Write an index of `rows` synthetic vectors into `folder`, with the model of the index shard `source`."""
    rng = np.random.default_rng(1)
    dim = source.card.dim
    centres = rng.standard_normal((LISTS, dim), dtype=np.float32)
    quantizer = faiss.IndexFlatIP(dim)
    quantizer.add(centres)
    index = faiss.IndexIVFFlat(quantizer, dim, LISTS, faiss.METRIC_INNER_PRODUCT)
    index.is_trained = True
    index.nprobe = PROBES
    for first in range(0, rows, 50_000):
        count = min(50_000, rows - first)
        vectors = centres[rng.integers(LISTS, size=count)] + rng.standard_normal((count, dim), dtype=np.float32)
        index.add(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    writer = IndexWriter(folder)
    writer.link(source, but=("images.faiss", "images.parquet", "images.tradeoff.json"))
    data = to_bytes(index)
    writer.add("images.faiss", data)
    names = [f"{row:07d}.jpg" for row in range(rows)]
    items = Items(names, [f"{row:064x}" for row in range(rows)], np.empty((rows, 0)))
    writer.add_table("images.parquet", items.tables()["images"])
    assert source.card.images is not None
    facts = {"factory": f"IVF{LISTS},Flat", "count": rows, "bytes": len(data), "nprobe": PROBES}
    card = IndexCard.model_validate({**source.card.images.model_dump(by_alias=True), **facts})
    writer.commit(MeasuredIndexes(images=card), source=source.card)


def search(folder: Path, kind: str) -> tuple[float, float]:
    """Search the index in `folder` in a new process, and return the CPU seconds and the wall-clock seconds of the
    process.

    If `kind` is `verified`, the process hashes all files of the index. If `kind` is `recognised`, the process does not
    hash files that an earlier process has verified.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", PROGRAM, str(folder), kind], check=True)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="Processes of each kind for each index.")
    parser.add_argument("--folder", type=Path, help="Folder for both indexes. [default: a temporary folder]")
    tiny = {"VECTORS": {"small": 600, "large": 2000}, "DIM": 16, "LISTS": 20, "runs": 1}
    options = parse_options(parser, globals(), **tiny)
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        os.environ["XDG_STATE_HOME"] = f"{temporary}/state"
        source = write_model(Path(temporary))
        folders = {name: Path(temporary) / name for name in VECTORS}
        for name, rows in VECTORS.items():
            write_index(folders[name], source, rows)
        time.sleep(0 if options.tiny else SETTLED_SECONDS)
        for folder in folders.values():
            search(folder, "recognised")
        sizes = {name: sum(file.stat().st_size for file in folder.iterdir()) for name, folder in folders.items()}
        for kind in ("recognised", "verified"):
            runs = [[search(folder, kind) for folder in folders.values()] for _ in range(options.runs)]
            line = {"kind": kind, "mebibytes": {name: round(size / 2**20, 1) for name, size in sizes.items()}}
            for position, unit in enumerate(("cpu_seconds", "wall_seconds")):
                pairs = [(small[position], large[position]) for small, large in runs]
                line[unit] = [statistics.median(seconds) for seconds in zip(*pairs, strict=True)]
                line[f"{unit}_ratio"] = statistics.median(large / small for small, large in pairs)
            print(json.dumps(line))


if __name__ == "__main__":
    main()
