"""Compares the index that jointspace chooses with the choice of autofaiss, and exact search with its matrix product.

    python -m venv SOME/VENV && SOME/VENV/bin/pip install autofaiss "pyarrow<20"
    python benchmarks/index.py --autofaiss SOME/VENV/bin/python [--vectors 1000000] [--dim 128] [--repeats 5]

The vectors follow the probabilistic model of canonical correlation (Bach and Jordan 2005). An image and a sentence are
two noisy views of one latent vector, which is drawn from clusters within clusters. The correlations of the views fall
as 0.9 * i**-0.27 for dimension i from 1, as measured for normalized CCA on Flickr8k. The vectors are weighted by the
correlations and scaled to unit length. Images are indexed, and sentences are the queries.

autofaiss runs in its own environment, because it needs older libraries. Its index is then loaded into this process and
tuned to the same recall with the same queries. Both indexes answer in turn.
"""

import argparse
import json
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

from interleave import compare, parse_options, report, scale_reference

from pipeline.compute import runtime

runtime.configure()

import faiss  # noqa: E402  after the BLAS kernels are chosen
import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import torch  # noqa: E402, F401  exact search uses torch if torch is loaded

from pipeline.index.build import choose_and_build  # noqa: E402
from pipeline.index.chooser import Requirements  # noqa: E402
from pipeline.index.exact import Neighbours, Vectors, search_exact  # noqa: E402
from pipeline.index.format import ExpectedIndex, from_bytes, to_bytes, view_bytes  # noqa: E402
from pipeline.index.search import Searcher  # noqa: E402
from pipeline.index.tuning import ask, tune  # noqa: E402
from pipeline.storage.card import CardFacts, MeasuredIndexes  # noqa: E402
from pipeline.storage.index_shard import IndexShard, IndexWriter  # noqa: E402
from pipeline.storage.manifest import IMAGES  # noqa: E402
from pipeline.storage.stored_index import open_index  # noqa: E402

FLOOR = 0.95
QUERIES = 1000
MEMORY = 1024
SYNTHETIC_CARD: CardFacts = {
    "model": "synthetic", "registered": "ncca", "metric": "inner_product", "encoders": {}, "inputs": {},
    "splits": ["test"], "fingerprint": "made up",
}  # fmt: skip
"""Facts for the index card of a synthetic index, which does not belong to a run."""
AUTOFAISS = """
import json, sys, time
import numpy as np
from autofaiss import build_index
folder, threads, memory = sys.argv[1], int(sys.argv[2]), sys.argv[3]
start = time.perf_counter()
index, about = build_index(
    np.load(folder + "/vectors.npy"), index_path=folder + "/auto.index", index_infos_path=folder + "/auto.json",
    max_index_memory_usage=memory, current_memory_available="16GB", metric_type="ip", nb_cores=threads, verbose=40,
)
print(json.dumps({"seconds": time.perf_counter() - start, "key": about["index_key"]}))
"""


def make_pairs(count: int, asked: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw unit vectors of `count` images (count, dim), and of `asked` sentences (asked, dim) from the same clusters. A
    sentence does not belong to a particular image.
    """
    rng = np.random.default_rng(0)
    correlation = (0.9 * np.arange(1, dim + 1) ** -0.27).astype(np.float32)
    coarse = 0.75 * rng.standard_normal((64, dim), dtype=np.float32)
    fine = 0.5 * rng.standard_normal((4096, dim), dtype=np.float32) + coarse[np.arange(4096) % 64]

    def view(rows: int) -> np.ndarray:
        latent = fine[rng.integers(len(fine), size=rows)] + 0.45 * rng.standard_normal((rows, dim), dtype=np.float32)
        noise = rng.standard_normal((rows, dim), dtype=np.float32)
        x = correlation * (np.sqrt(correlation) * latent + np.sqrt(1 - correlation) * noise)
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    return np.concatenate([view(min(65536, count - i)) for i in range(0, count, 65536)]), view(asked)


def image_table(count: int) -> pa.Table:
    """Make the table of an index shard for `count` images. The files of these images do not exist."""
    columns = {
        "image_id": pa.array(np.arange(count)),
        "path": pa.array([f"images/{i:08d}.jpg" for i in range(count)]),
        "split": pa.repeat("test", count),
        "sha256": pa.repeat("0" * 64, count),
    }
    return pa.table([columns.get(field.name, pa.nulls(count, field.type)) for field in IMAGES], IMAGES)


def measure_exact(vectors: np.ndarray, queries: np.ndarray, repeats: int) -> None:
    """Print two comparisons of an exact search of all `queries` (q, dim) at once among `vectors` (n, dim).

    The first comparison is with the matrix product alone, timed `repeats` times. The second is with IndexFlatIP for one
    query at a time, which is timed for a few queries and scaled to all queries. `differing` counts the positions in the
    ten results of all queries at which IndexFlatIP has another row.
    """
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(vectors)
    few = queries[: max(10, len(queries) // 50)]
    block = 8192
    table = np.empty((len(queries), block), np.float32)

    def product() -> None:
        for start in range(0, len(vectors), block):
            part = vectors[start : start + block]
            np.matmul(queries, part.T, out=table[:, : len(part)])

    def ours() -> Neighbours:
        return search_exact(queries, Vectors(vectors).blocks(), 10, "inner_product")

    name = f"exact search of {len(queries)} among {len(vectors)}"
    differing = int((ours().rows != flat.search(queries, 10)[1]).sum())
    report(
        {**compare(f"{name} over the bare product", ours, product, repeats, runtime.threads()), "differing": differing}
    )
    alone = compare(f"{name} over one by one", ours, lambda: [flat.search(row[None], 10) for row in few], 3)
    report(scale_reference(alone, len(queries) / len(few)))


def run_autofaiss(python: str, vectors: np.ndarray, folder: Path) -> tuple[faiss.Index, dict]:
    np.save(folder / "vectors.npy", vectors)
    command = [python, "-c", AUTOFAISS, str(folder), str(runtime.threads()), f"{MEMORY}MB"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    about = json.loads(printed.splitlines()[-1])
    return faiss.read_index(str(folder / "auto.index")), {**about, "bytes": (folder / "auto.index").stat().st_size}


def load_and_ask(folder: Path, query: np.ndarray) -> None:
    """Open the index in `folder` as a new process does, with the checks of its files, and read the rows of the 10
    results of one query (1, dim).
    """
    shard = IndexShard(folder)
    card = shard.card.images
    assert card is not None
    expected = ExpectedIndex(card.count, card.dim, card.metric)
    index = view_bytes(shard.map("images.faiss"), "images.faiss", expected)
    shard.packed_table("images").records(index.search(query, 10)[1][0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--autofaiss", metavar="PYTHON")
    for name, default in (("vectors", 1_000_000), ("dim", 128), ("repeats", 5), ("sample", 50_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parse_options(parser, globals(), vectors=3000, dim=16, sample=1000)
    vectors, queries = make_pairs(given.vectors, QUERIES, given.dim)
    measure_exact(vectors, queries, given.repeats)

    start = time.perf_counter()
    asked = Requirements(FLOOR, MEMORY, None, 1000, "auto", given.sample)
    built = choose_and_build(Vectors(vectors), queries, "inner_product", asked)
    chosen = time.perf_counter() - start
    card = built.card
    report({"name": "chosen index", "chosen_in": chosen, **card.to_json()})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        writer = IndexWriter(folder / "index")
        writer.add("images.faiss", built.write)
        writer.add_table("images.parquet", image_table(given.vectors))
        measured = MeasuredIndexes().model_copy(update={"images": card})
        facts: CardFacts = {**SYNTHETIC_CARD, "dim": given.dim, "data_root": name}
        writer.commit(measured, **facts)
        load = partial(load_and_ask, folder / "index", queries[:1])
        report({**compare("load an index and answer, over 3 seconds", load, partial(time.sleep, 3), 3)})
        searcher = Searcher(open_index(folder / "index"))
        searcher.table("images")
        hits = partial(searcher.nearest, "images", queries, 10)
        alone = partial(searcher.gallery("images").index.search, queries, 10)
        report(compare(f"hits of {len(queries)} queries over FAISS's own batch", hits, alone, 7, runtime.threads()))
        if given.autofaiss:
            theirs, about = run_autofaiss(given.autofaiss, vectors, folder)
            ours = from_bytes(to_bytes(built.index), "images.faiss", built.expected)
            questions = ask(queries, Vectors(vectors).blocks(), len(vectors), "inner_product")
            operation = tune(theirs, questions, FLOOR)
            sides = [partial(index.search, queries, 10) for index in (ours, theirs)]
            speed = compare("queries of the chosen index over autofaiss's", *sides, given.repeats, runtime.threads())
            report({**speed, "autofaiss": about["key"], "their_recall": operation.recall, "our_recall": card.recall})
            for what, a, b in (
                ("building, over autofaiss's", card.build_seconds, about["seconds"]),
                ("choosing and building, over autofaiss's", chosen, about["seconds"]),
                ("bytes, over autofaiss's", card.bytes, about["bytes"]),
            ):
                report({"name": what, "ours": a, "reference": b, "ratio": b / a, "share": a / b, "pairs": 1})


if __name__ == "__main__":
    main()
