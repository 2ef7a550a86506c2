"""Measures the recall and the time of searches with a condition.

    python benchmarks/conditions.py [--vectors 1000000] [--dim 96] [--floor 0.95] [--candidates IVF1000,SQ8 ...]

The pairs of images and captions are synthetic (see benchmarks/tuning_queries.py). The index is built and measured as
`build-index` does it, and is written with a table of images that has columns of numbers. The condition `random < 0.01`
is not correlated with a query. The condition `near_0 < 0.01` allows the hundredth of the images that is nearest to a
sampled image. Other shares than 0.01 are measured as well. The queries `near` are the captions that are closest to this
image, and `other` are arbitrary captions.

Each line has the recall@10 of captions that did not tune the index, compared with exact search among the allowed
images. For the queries `near` and `other`, the recall is a mean over four sampled images. The line also has the time of
a search without (`ours`) and with the condition (`reference`), one caption at a time, from the vector to the rows of
the results. `ratio` and `ratio_cpu` say how many times as long the search with the condition takes. The condition is
evaluated again for every search.
"""

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

from interleave import compare, parse_options, report

from pipeline.compute import runtime

runtime.configure()

from tuning_queries import make_gapped_pairs  # noqa: E402  this configures the runtime, before numpy is imported

# isort: split
import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
from index import SYNTHETIC_CARD, image_table  # noqa: E402

from pipeline.index.build import build_gallery  # noqa: E402
from pipeline.index.chooser import Requirements  # noqa: E402
from pipeline.index.condition_recall import SHARES, measure_conditions  # noqa: E402
from pipeline.index.exact import Vectors  # noqa: E402
from pipeline.index.gallery import Shortlist  # noqa: E402
from pipeline.index.search import Searcher  # noqa: E402
from pipeline.index.tuning import Questions, ask, recall_of  # noqa: E402
from pipeline.storage.card import CardFacts, MeasuredIndexes  # noqa: E402
from pipeline.storage.index_shard import IndexWriter  # noqa: E402
from pipeline.storage.stored_index import open_index  # noqa: E402

ANCHORS = 4
QUERIES = 100
"""Number of queries that are timed for a line of output."""


def search_each(searcher: Searcher, queries: np.ndarray, where: str | None) -> None:
    for row in range(len(queries)):
        searcher.images_by_text_vector(queries[row : row + 1], 10, where)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("vectors", 1_000_000), ("dim", 96), ("repeats", 3), ("sample", 50_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--floor", type=float, default=0.95)
    parser.add_argument("--candidates", nargs="+", metavar="FACTORY")
    given = parse_options(parser, globals(), vectors=3000, dim=16, sample=1000, QUERIES=10)
    images, tuning, captions = make_gapped_pairs(given.vectors, given.dim)
    vectors = Vectors(images)
    candidates = tuple(given.candidates) if given.candidates else "auto"
    requirements = Requirements(given.floor, None, None, 1000, candidates, given.sample)
    asked = tuning["captions"]
    start = time.process_time()
    built = build_gallery("images", vectors, None, asked, "inner_product", requirements, Shortlist(1, 1))
    seconds = time.process_time() - start
    start = time.process_time()
    measure_conditions(built.index, vectors, asked, "inner_product")
    share_of_conditions = (time.process_time() - start) / seconds
    report({"name": "card", **built.card.to_json(), "cpu_seconds": seconds, "share_of_conditions": share_of_conditions})

    rng = np.random.default_rng(1)
    columns = {"random": rng.random(given.vectors)}
    queries = {"random": captions[: ANCHORS * QUERIES]}
    for number, anchor in enumerate(images[rng.choice(given.vectors, ANCHORS, replace=False)]):
        ranks = np.empty(given.vectors)
        ranks[np.argsort(-(images @ anchor))] = np.arange(given.vectors) / given.vectors
        columns[f"near_{number}"] = ranks
        order = np.argsort(-(captions @ anchor))
        queries[f"near_{number}"] = captions[np.concatenate([order[:QUERIES], rng.permutation(order)[:QUERIES]])]
    table = image_table(given.vectors)
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    with tempfile.TemporaryDirectory() as folder:
        writer = IndexWriter(Path(folder) / "index")
        writer.add("images.faiss", built.write)
        writer.add_table("images.parquet", table)
        facts: CardFacts = {**SYNTHETIC_CARD, "dim": given.dim, "data_root": folder}
        writer.commit(MeasuredIndexes().model_copy(update={"images": built.card}), **facts)
        searcher = Searcher(open_index(Path(folder) / "index"))
        searcher.table("images")
        gallery = searcher.gallery("images")
        for share in SHARES:
            recalls: dict[str, list[float]] = {}
            for name, values in columns.items():
                ids = np.flatnonzero(values < share)
                questions = ask(queries[name], Vectors(images[ids]).blocks(), len(ids), "inner_product")
                found = gallery.search(queries[name], questions.k, values < share)
                positions = np.where(found.rows >= 0, np.searchsorted(ids, found.rows), -1)
                halves = {"near": slice(QUERIES), "other": slice(QUERIES, None)}
                for kind, rows in halves.items() if name != "random" else [("random", slice(None))]:
                    part = Questions(questions.queries[rows], questions.k, questions.right[rows])
                    recalls.setdefault(kind, []).append(recall_of(positions[rows], part))
            for kind in ("random", "near", "other"):
                name = "random" if kind == "random" else "near_0"
                where = f"{name} < {share:g}"
                some = queries[name][-QUERIES:] if kind == "other" else queries[name][:QUERIES]
                sides = [partial(search_each, searcher, some, condition) for condition in (None, where)]
                result = compare(f"{where}, {kind} queries", sides[0], sides[1], given.repeats)
                mean = float(np.mean(recalls[kind]))
                report({**result, "share": share, "queries": kind, "recall": mean})


if __name__ == "__main__":
    main()
