"""Measures the time that clients of `serve` wait, for text queries of several clients at once on a synthetic index.

    python benchmarks/serve.py [--vectors 1000000] [--dim 128] [--factory IVF1024,SQ8] [--clients 8] [--requests 10000]

The benchmark starts the server as a separate process. The clients are threads of the process of the benchmark. They
keep their connections, and send the next query as soon as the previous query is answered. Latency is measured by the
clients. The vectors are drawn by `make_pairs` of index.py. Without `--factory`, the type of the index is chosen by
measurement. The text model is a random projection of words.

The first line of output compares the time of searches that judge which results are likely matches (`ours`) with the
time of searches without judging (`reference`), without a server.
"""

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from urllib.parse import quote, urlsplit

from index import SYNTHETIC_CARD, image_table, make_pairs
from interleave import compare, parse_options, report

CLIENTS = 8
REQUESTS = 10_000
DIM = 128
VECTORS = 1_000_000
JUDGED_QUERIES = 1000

import numpy as np  # noqa: E402  after `index` has chosen the BLAS kernels
import pyarrow as pa  # noqa: E402
import safetensors.numpy  # noqa: E402

from pipeline.config.registry import model_spec  # noqa: E402
from pipeline.encoders.tfidf import TfidfEncoder  # noqa: E402
from pipeline.index.build import choose_and_build  # noqa: E402
from pipeline.index.calibration import BACKGROUND, Calibration  # noqa: E402
from pipeline.index.chooser import Requirements  # noqa: E402
from pipeline.index.exact import Vectors  # noqa: E402
from pipeline.index.search import Searcher  # noqa: E402
from pipeline.models.linear.projection import Directions  # noqa: E402
from pipeline.models.linear.views import ImageView, TextView  # noqa: E402
from pipeline.storage.card import CardFacts, IndexCard, MeasuredIndexes  # noqa: E402
from pipeline.storage.index_shard import IndexWriter  # noqa: E402
from pipeline.storage.parameters import MODEL, TEXT_ENCODER, write_parameters  # noqa: E402
from pipeline.storage.stored_index import open_index  # noqa: E402
from pipeline.text.tokens import TermSettings  # noqa: E402
from pipeline.text.vocabulary import build_vocabulary  # noqa: E402

WORDS = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in ("lan", "mir", "tok", "vud", "zep")]
TERMS = TermSettings(True, (), 1)


def make_index(folder: Path, count: int, dim: int, candidates: list[str] | str) -> IndexCard:
    """Write an index of `count` images and of count // 10 sentences, or 1,000 if this is more, into the folder `index`
    in `folder`. Return the index card of the images.

    `candidates` are the factory strings from which the type of the index of images is chosen, or "auto".
    """
    rng = np.random.default_rng(0)
    images, queries = make_pairs(count, max(count // 10, 1000), dim)
    texts = [" ".join(rng.choice(WORDS, 8)) for _ in range(len(queries))]
    writer = IndexWriter(folder / "index")
    exact = 200_000 if candidates == "auto" else 1
    asked = Requirements(0.95, None, None, exact, candidates, 50_000)
    built = choose_and_build(Vectors(images), queries[:1000], "inner_product", asked)
    writer.add("images.faiss", built.write)
    sentences = choose_and_build(
        Vectors(queries), images[:1000], "inner_product", Requirements(0.95, None, None, count, "auto", 1000)
    )
    writer.add("sentences.faiss", sentences.write)
    text_ids = np.arange(len(queries))
    writer.add_table("images.parquet", image_table(count))
    writer.add_table("sentences.parquet", pa.table({"sentence_id": text_ids, "image_id": text_ids, "text": texts}))
    vocabulary = build_vocabulary(texts[:1000], TERMS, size=len(WORDS), min_count=1, idf=False, normalise=True)
    encoder = TfidfEncoder(vocabulary)
    size = len(vocabulary.index)
    u = rng.standard_normal((size, dim), dtype=np.float32)
    directions = Directions(np.eye(dim, dtype=np.float32), u, np.ones(dim, np.float32))
    model = model_spec("ncca").load()(
        ImageView(("none",), (dim,), ()),
        TextView.from_vectors({"tfidf": encoder.encode(texts[:1])}),
        np.zeros(dim),
        np.zeros(size),
        directions,
    )
    path = folder / "model" / "model.safetensors"
    write_parameters(path, MODEL, model.tensors(), settings=model.settings())
    writer.add_parameters(path.parent)
    path = folder / "text_encoder" / "model.safetensors"
    write_parameters(path, TEXT_ENCODER, {}, settings=encoder.settings())
    writer.add_parameters(path.parent, "text_encoders/tfidf/")
    dev = min(1000, len(queries))
    calibration = Calibration.fit(images[:dev], queries[:dev], np.arange(dev), "inner_product", 0.9)
    writer.add(BACKGROUND, safetensors.numpy.save({"images": calibration.background}))
    measured = MeasuredIndexes().model_copy(update={"images": built.card, "sentences": sentences.card})
    facts: CardFacts = {
        **SYNTHETIC_CARD,
        "dim": dim,
        "text_encoders": {"tfidf": {"kind": "tf-idf"}},
        "calibration": calibration.card(),
        "data_root": str(folder),
    }
    writer.commit(measured, **facts)
    return built.card


def measure_judging(folder: Path, count: int) -> None:
    """Print the time of `count` searches that judge which results are likely matches, compared with the time without
    judging.
    """
    searcher = Searcher(open_index(folder))
    silent = Searcher(open_index(folder))
    rng = np.random.default_rng(1)
    silent.calibration = None
    sentences = [" ".join(rng.choice(WORDS, 6)) for _ in range(count)]
    for one in (searcher, silent):
        one.open()
    judged, plain = (partial(_search_each, one, sentences) for one in (searcher, silent))
    name = f"{count} sentences among {len(searcher.gallery('images'))} one by one"
    report(compare(f"{name}, judged, over not judged", judged, plain))


def _search_each(searcher: Searcher, sentences: list[str]) -> None:
    for sentence in sentences:
        searcher.images(sentence, 12)


def ask(address: str, requests: int, seed: int, seconds: list[float], errors: list[str]) -> None:
    """Act as one client that sends `requests` random sentences to the server at `address`, one after the other.

    The duration of each request is appended to `seconds`, and the message of each failed request to `errors`.
    """
    rng = np.random.default_rng(seed)
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    for _ in range(requests):
        sentence = quote(" ".join(rng.choice(WORDS, rng.integers(3, 12))))
        start = time.perf_counter()
        try:
            connection.request("GET", f"/api/models/{SYNTHETIC_CARD['model']}/images?sentence={sentence}&top=12")
            answer = connection.getresponse()
            value = json.loads(answer.read())
            if answer.status != 200 or len(value["results"]) != 12:
                errors.append(f"{answer.status} {value}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            errors.append(repr(error))
            connection.close()
        seconds.append(time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("vectors", VECTORS), ("dim", DIM), ("clients", CLIENTS), ("requests", REQUESTS)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--factory")
    given = parse_options(
        parser, globals(), vectors=3000, dim=16, clients=2, requests=20, factory="Flat", JUDGED_QUERIES=20
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        card = make_index(folder, given.vectors, given.dim, [given.factory] if given.factory else "auto")
        measure_judging(folder / "index", JUDGED_QUERIES)
        command = [sys.executable, "-m", "stages.cli", "serve", str(folder / "index"), "--port", "0"]
        start = time.perf_counter()
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
            try:
                address = server.stderr.readline().split(" at ")[1].split()[0]
                ask(address, 1, 0, [], errors := [])
                loaded = time.perf_counter() - start
                seconds: list[float] = []
                share = -(-given.requests // given.clients)
                clients = [
                    threading.Thread(target=ask, args=(address, share, seed + 1, seconds, errors))
                    for seed in range(given.clients)
                ]
                start = time.perf_counter()
                for client in clients:
                    client.start()
                for client in clients:
                    client.join()
                wall = time.perf_counter() - start
            finally:
                server.terminate()
    p50, p95 = np.quantile(seconds, (0.5, 0.95))
    report(
        {
            "name": f"text query among {given.vectors} by {given.clients} clients, over 100 ms at the 95th percentile",
            "ours": float(p95),
            "reference": 0.1,
            "ratio": float(0.1 / p95),
            "p50": float(p50),
            "p95": float(p95),
            "requests": len(seconds),
            "errors": len(errors),
            "first_errors": errors[:3],
            "requests_per_second": len(seconds) / wall,
            "started_and_answered": loaded,
            "factory": card.factory,
            "recall@10": card.recall,
        }
    )


if __name__ == "__main__":
    main()
