"""Compares storing the moments in one file per chunk of shards with storing them in one file per shard.

    python benchmarks/stored_moments.py [--images 100000] [--shard-size 4096] [--folder FOLDER]

The benchmark makes shards of 4,096 dense and 3,000 sparse dimensions in the folder (0.9 GB in float16 for 100,000
images). Both ways check and read the shards, compute the moments, write the moments, and add them up to `sum.h5`, as
`accumulate` does. The output line also has the largest difference between the two sums, relative to the largest value
of each block of moments, and the bytes of both ways on the disk.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

from interleave import compare, parse_options, report

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen
import pairs  # noqa: E402

from pipeline.compute.mapreduce import split_into_chunks  # noqa: E402
from pipeline.models.linear.accumulation import sum_blocks  # noqa: E402
from pipeline.models.linear.moments import BLOCK_ROWS, Moments  # noqa: E402
from pipeline.models.linear.sets import sum_stored  # noqa: E402
from pipeline.models.linear.views import ImageView, TextView  # noqa: E402
from pipeline.storage.commit import Provenance  # noqa: E402
from pipeline.storage.pairs import SplitRows, read_moments, sum_path, write_moments, write_sum  # noqa: E402
from pipeline.storage.shards import FEATURES, Shard, chunk_path, shard_path, write_shard  # noqa: E402
from pipeline.storage.texts import VectorShard, write_vectors  # noqa: E402

BLOCKS = ("mean_x", "mean_y", "xx", "xy", "yy")


def make_shards(folder: Path, images: int, shard_size: int) -> int:
    """Write shards of `images` images and their sentences into `folder`, with `shard_size` images per shard, and return
    the number of shards. All shards have the same rows, except that the columns of the images in shard k are shifted by
    k.
    """
    x, y = pairs.make_pairs(shard_size)
    numbers = range(-(-images // shard_size))
    for number in numbers:
        count = min(shard_size, images - number * shard_size)
        ids = np.arange(count) + number * shard_size
        features = np.roll(x, number, axis=1)[:count].astype(np.float16)
        write_shard(shard_path(folder / "features", number), FEATURES, {"features": features, "image_id": ids}, count)
        write_vectors(shard_path(folder / "tfidf", number), y[:count], ids, ids, encoder="tfidf")
    return len(numbers)


def read_blocks(folder: Path, shards: range):
    """Yield the pairs of images and sentences of the shards with the numbers `shards`, in blocks of at most BLOCK_ROWS
    pairs.
    """
    for number in shards:
        features = Shard(shard_path(folder / "features", number), FEATURES)
        texts = VectorShard(shard_path(folder / "tfidf", number))
        for first in range(0, features.rows, BLOCK_ROWS):
            rows = slice(first, first + BLOCK_ROWS)
            stored = features["features"][rows]
            ids = features["image_id"][rows]
            yield SplitRows(ids, {"net": stored}, {"tfidf": texts.matrix[rows]}, ids, np.arange(len(stored)))


def accumulate(folder: Path, chunks: list[range], out: Path) -> None:
    """Compute and write the moments of each chunk of shards. `chunks` has a range of shard numbers for each chunk. If
    there are several chunks, also write the sum of their moments. The files are in the folder `out`, which is emptied
    first.
    """
    shutil.rmtree(out, ignore_errors=True)
    view = ImageView(("net",), (pairs.DIM_X,), ())
    text = TextView.from_vectors({"tfidf": VectorShard(shard_path(folder / "tfidf", 0)).matrix})
    none = np.empty(0, np.int64)
    for number, shards in enumerate(chunks):
        moments = sum_blocks(read_blocks(folder, shards), view, text, runtime.threads())
        path = chunk_path(out, number)
        provenance = Provenance(out, "accumulate", 1)
        write_moments(path, {0: moments.to_arrays()}, none, none, details={}, provenance=provenance)
    if len(chunks) > 1:
        write_sum(out, range(len(chunks)), lambda readers: sum_stored(readers, "local").to_arrays())


def read_sum(out: Path, chunks: list[range]) -> Moments:
    """Read the sum of the moments of all chunks, or the moments of a single chunk, from the folder `out` that
    `accumulate` wrote.
    """
    path = sum_path(out) if len(chunks) > 1 else chunk_path(out, 0)
    return Moments.from_arrays(read_moments(path, 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--shard-size", type=int, default=BLOCK_ROWS)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--pairs", type=int, default=3)
    given = parse_options(parser, globals(), images=160, shard_size=64)
    if given.tiny:
        pairs.DIM_X = 64
        pairs.DIM_Y = 48
    with tempfile.TemporaryDirectory(dir=given.folder) as made:
        folder = Path(made)
        shards = make_shards(folder, given.images, given.shard_size)
        chunks = split_into_chunks(shards, given.shard_size)
        each = [range(number, number + 1) for number in range(shards)]

        def ours() -> None:
            accumulate(folder, chunks, folder / "chunks")

        def reference() -> None:
            accumulate(folder, each, folder / "each")

        label = "stored moments of chunks of shards over stored moments of each shard"
        result = compare(label, ours, reference, given.pairs, runtime.threads(), warm_up=False)
        one = read_sum(folder / "chunks", chunks)
        other = read_sum(folder / "each", each)
        values = [(getattr(one, name), getattr(other, name)) for name in BLOCKS]
        difference = max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in values)
        sizes = {side: sum(path.stat().st_size for path in (folder / side).iterdir()) for side in ("chunks", "each")}
        about = {"images": given.images, "shard_size": given.shard_size, "chunks": len(chunks), "shards": shards}
        report({**result, **about, "difference": difference, "bytes": sizes})


if __name__ == "__main__":
    main()
