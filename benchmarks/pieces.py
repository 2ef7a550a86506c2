"""Made-up vectors in shards to an index in pieces, and its answers from a process of its own.

    python benchmarks/pieces.py [--vectors 1000000] [--dim 96] [--piece 250000] [--folder pieces]
        [--candidate IVF1000,Flat]

The vectors are those of benchmarks/index.py: images are indexed, sentences ask. What `build-index` does with more
vectors than `index.piece` is done here without a manifest: candidates are measured on a sample, the best is trained,
its pieces are made one after another, and it is tuned to a recall@10 of 0.90 against exact search in parts. Another
process then opens the bundle and answers sentences that it was not tuned with, one at a time, with the rows of their
answers. Last, a thousand images are taken out, twice, and a thousand added.
Prints one JSON line a step: seconds, of the processor, and the most memory of its process, with and without the mapped
pages of files, which the system takes back when it needs them.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from pipeline import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen
import pyarrow as pa  # noqa: E402

from pipeline.config import load  # noqa: E402
from pipeline.index.build import build_index  # noqa: E402
from pipeline.index.gallery import open_gallery  # noqa: E402
from pipeline.index.requirements import Requirements  # noqa: E402
from pipeline.index.shard_search import search_parts  # noqa: E402
from pipeline.index.tuning import questions_of  # noqa: E402
from pipeline.index.vectors import evenly_spaced  # noqa: E402
from pipeline.storage.bundle import Bundle, BundleWriter  # noqa: E402
from pipeline.storage.bundle_folders import piece_file  # noqa: E402
from pipeline.storage.embeddings import Embeddings  # noqa: E402
from pipeline.storage.sharded_ids import ShardedIds  # noqa: E402
from pipeline.storage.shards import EMBEDDINGS, Shard, shard_path, write_shard  # noqa: E402
from stages.piece_upkeep import add, remove  # noqa: E402
from stages.pieces import Pieces, remove_pieces  # noqa: E402

SHARD, ASKED, FLOOR, MEMORY, CHANGED = 65536, 1000, 0.9, 2048, 1000
STEPS = ("make", "build", "answer", "change")


class MadeUpManifest:
    """The manifest of shards of images without sentences, with the `bounds` of their rows; it makes the rows that it is
    asked for."""

    def __init__(self, folder: Path, bounds: np.ndarray) -> None:
        self.folder, self.n_shards, self._bounds = folder, len(bounds) - 1, bounds

    def bounds(self, name: str) -> np.ndarray:
        return self._bounds if name == "images" else np.zeros_like(self._bounds)

    def shard(self, number: int) -> SimpleNamespace:
        first, last = self._bounds[number : number + 2].tolist()
        return SimpleNamespace(number=number, first_image=first, last_image=last, first_sentence=0, last_sentence=0)

    def shard_splits(self, number: int) -> np.ndarray:
        return np.full(int(np.diff(self._bounds)[number]), load().index.splits[0], object)

    def owners(self, number: int) -> np.ndarray:
        return np.empty(0, np.int64)

    def rows(self, name: str, numbers: np.ndarray) -> pa.Table:
        return table_of(np.asarray(numbers, np.int64))


class MadeUp(Embeddings):
    """The shards of a folder, whose manifest nobody has written."""

    def __init__(self, folder: Path) -> None:
        names = sorted(folder.glob("shard-*.h5"))
        self.shards, self.multi_vector = [Shard(path, EMBEDDINGS) for path in names], False
        self.folder, self.model = folder, "made-up"
        self.manifest = MadeUpManifest(folder, np.cumsum([0, *(shard.rows for shard in self.shards)]))
        self.rows = [self.manifest.shard(number) for number in range(self.manifest.n_shards)]
        self.dim = self.shards[0]["images"].shape[1]
        self.ids = ShardedIds((row.number, range(row.first_image, row.last_image)) for row in self.rows)

    @property
    def inputs(self) -> dict[str, str]:
        return {f"embeddings/{number:05d}": shard.fingerprint for number, shard in enumerate(self.shards)}


def make(folder: Path, options: argparse.Namespace) -> dict:
    """Images in shards of 65,536, and 2,000 sentences; see benchmarks/index.py for the clusters and correlations."""
    dim, rng = options.dim, np.random.default_rng(0)
    correlation = (0.9 * np.arange(1, dim + 1) ** -0.27).astype(np.float32)
    coarse = 0.75 * rng.standard_normal((64, dim), dtype=np.float32)
    fine = 0.5 * rng.standard_normal((4096, dim), dtype=np.float32) + coarse[np.arange(4096) % 64]

    def views(count: int, rng: np.random.Generator) -> list[np.ndarray]:
        latent = 0.43 * rng.standard_normal((count, dim), dtype=np.float32) + fine[rng.integers(4096, size=count)]
        noisy = [
            np.sqrt(correlation) * latent
            + np.sqrt(1 - correlation) * rng.standard_normal((count, dim), dtype=np.float32)
            for _ in range(2)
        ]
        weighted = [correlation * view for view in noisy]
        return [view / np.linalg.norm(view, axis=1, keepdims=True) for view in weighted]

    for number, first in enumerate(range(0, options.vectors, SHARD)):
        images = views(min(SHARD, options.vectors - first), np.random.default_rng(number + 1))[0]
        write_shard(shard_path(folder, number), EMBEDDINGS, {"images": images}, rows=len(images))
    np.save(folder / "sentences.npy", views(2 * ASKED, np.random.default_rng(2**40))[1])
    return {"vectors": options.vectors}


def build(folder: Path, options: argparse.Namespace) -> dict:
    """The bundle, with an index of the images alone."""
    embeddings, writer = MadeUp(folder), BundleWriter(folder / "bundle")
    candidates = tuple(options.candidate) or "auto"
    asked = Requirements(FLOOR, None, None, 200_000, candidates, 50_000)
    place = Pieces(folder / "work", embeddings, "images", embeddings.ids, options.piece, MEMORY, "local", "cpu", True)
    queries = np.load(folder / "sentences.npy", allow_pickle=False)[:ASKED]
    built = build_index(place.vectors, queries, "inner_product", asked, place=place)
    told, first = place.deliver(writer, "images"), 0
    writer.add("images.faiss", built.data)
    for number, piece in enumerate(told["pieces"]):
        writer.add_table(piece_file("images", number, ".parquet"), table_of(np.arange(first, first + piece["rows"])))
        first += piece["rows"]
    card = {**built.card.to_dict(), **told}
    about = {"kind": "global", "model": "made-up", "registered": "ncca", "metric": "inner_product", "data_root": "."}
    about |= {"dim": options.dim, "images": card, "splits": ["gallery"], "encoders": {}, "fingerprint": "made-up"}
    writer.commit({**about, "inputs": {"model": "made-up", **embeddings.inputs}})
    remove_pieces(folder / "work")
    keys = ("factory", "nprobe", "recall@10", "queries_per_second", "latency_ms", "build_seconds", "bytes")
    candidates = [one["factory"] for one in built.tradeoff["candidates"]]
    return {**{key: card[key] for key in keys}, "pieces": len(told["pieces"]), "candidates": candidates}


def answer(folder: Path, options: argparse.Namespace) -> dict:
    """Open the bundle, and answer."""
    start, bundle = time.perf_counter(), Bundle(folder / "bundle")
    gallery, table = open_gallery(bundle, "images"), bundle.packed_table("images")
    opened, queries = time.perf_counter() - start, np.load(folder / "sentences.npy", allow_pickle=False)[ASKED:]
    seconds, found = [], []
    for query in queries[:200]:
        start = time.perf_counter()
        rows = gallery.search(query[None], 10).rows[0]
        names = [record["path"] for record in table.records(rows)]
        seconds.append(time.perf_counter() - start)
        assert names == [f"{row:09d}.jpg" for row in rows]
        found.append(rows)
    memory = _memory()
    parts = MadeUp(folder).parts_of("images", np.arange(len(gallery)), options.piece)
    exact = questions_of(queries[:200], search_parts(queries[:200], parts, 100, "inner_product"), len(gallery))
    right = (np.array(found)[:, :, None] == exact.right[:, None, :]).any(axis=2).mean()
    milliseconds = [round(1000 * float(value), 1) for value in np.percentile(seconds, [50, 95])]
    return {"open_seconds": opened, "median and p95 ms of an answer": milliseconds, "recall@10": right, **memory}


def change(folder: Path, options: argparse.Namespace) -> dict:
    """Take a thousand images out all over the bundle, a thousand of the newest, and add a thousand."""
    count = options.vectors
    new = np.random.default_rng(1).standard_normal((CHANGED, options.dim), np.float32)
    new /= np.linalg.norm(new, axis=1, keepdims=True)
    path = shard_path(folder, -(-count // SHARD))
    write_shard(path, EMBEDDINGS, {"images": new}, rows=CHANGED)
    embeddings, run = MadeUp(folder), SimpleNamespace(config=load())
    changes = {
        "removed all over": lambda output: remove(folder / "bundle", output, evenly_spaced(count, CHANGED)),
        "removed newest": lambda output: remove(folder / "bundle", output, np.arange(count - CHANGED, count)),
        "added": lambda output: add(folder / "bundle", output, run, embeddings),
    }
    taken = {}
    for name, make_bundle in changes.items():
        start, own = time.perf_counter(), time.process_time()
        make_bundle(folder / name)
        taken[name] = [round(time.perf_counter() - start, 2), round(time.process_time() - own, 2)]
        taken[name].append(Bundle(folder / name).card["images"]["count"])
        taken[name].append(_memory()["MiB"])
    path.unlink()
    return {"seconds, of the processor, vectors, MiB until then": taken}


def table_of(ids: np.ndarray) -> pa.Table:
    """The rows of images, as a bundle has them."""
    table = {"image_id": ids, "path": [f"{one:09d}.jpg" for one in ids], "split": ["gallery"] * len(ids)}
    table |= {"sha256": [f"{one:064x}" for one in ids], "member": pa.nulls(len(ids), pa.string())}
    return pa.table({**table, "offset": pa.nulls(len(ids), pa.int64()), "size": pa.nulls(len(ids), pa.int64())})


def _memory() -> dict:
    status = Path("/proc/self/status").read_text()
    words = {"MiB": "VmHWM", "MiB of its own, now": "RssAnon"}
    return {told: int(status.split(f"{name}:")[1].split()[0]) // 1024 for told, name in words.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=96)
    parser.add_argument("--piece", type=int, default=250_000)
    parser.add_argument("--folder", type=Path, default=Path("pieces"))
    parser.add_argument("--candidate", action="append", default=[], help="Factory string to try, if not all.")
    parser.add_argument("--step", choices=STEPS)
    options = parser.parse_args()
    if options.step is None:
        shutil.rmtree(options.folder, ignore_errors=True)
        for step in STEPS:
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--step", step], check=True)
        return
    start = time.perf_counter()
    found = globals()[options.step](options.folder, options)
    taken = {"seconds": time.perf_counter() - start, "of the processor": time.process_time()}
    print(json.dumps({"step": options.step, **taken, **_memory(), **found}), flush=True)


if __name__ == "__main__":
    main()
