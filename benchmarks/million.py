"""Runs a million image-sentence pairs through the rules of the Snakefile, from features to a search index.

    python benchmarks/million.py [--images 1000000] [--dim 4096] [--folder million] [--cores 2] [--tiny]

The benchmark makes features and sentences with a fixed seed, in the form that `ingest` and `extract` write (8 GB for a
million images of 4,096 dimensions). `snakemake` then runs the vocabulary, the moments, `ncca`, `sae`, the embeddings,
the indexes and the evaluations, and three searches follow. The output is a Markdown table of stages with jobs, seconds,
memory, bytes and the least possible seconds, and one JSON line of totals.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen
import pyarrow as pa  # noqa: E402
import yaml  # noqa: E402
from interleave import parse_options  # noqa: E402

from pipeline.run.layout import Layout  # noqa: E402
from pipeline.run.runner import commit_part  # noqa: E402
from pipeline.storage.commit import Provenance, commit_path  # noqa: E402
from pipeline.storage.features import write_features  # noqa: E402
from pipeline.storage.manifest import BOXES, IMAGES, Manifest, write_manifest  # noqa: E402
from pipeline.storage.parameters import ENCODER, write_parameters  # noqa: E402
from pipeline.storage.records import read_benchmarks  # noqa: E402

ROOT = Path(__file__).parents[1]
HIDDEN = 64
WORDS = 10
VOCABULARY = 4000
HELD_OUT = 1000
BLOCK = 4096
FOLDERS = {
    "encode_sentences": "text/tfidf", "encode_documents": "text/documents", "accumulate": "moments",
    "fit": "models", "embed": "embeddings", "build_index": "index", "evaluate": "evaluation",
    "prepare_encoder": "text/encoders",
}  # fmt: skip


def write_collection(run: Path, images: int, shard_size: int) -> np.ndarray:
    """Write the manifest of `images` synthetic images, whose files do not exist. Return the topic (n,) of each image,
    on which its words and its features depend.

    About half of the images have a sentence, and the other half has tags. The splits dev and test have a thousand
    images each, or a tenth of the images if there are fewer than 10,000.
    """
    rng = np.random.default_rng(0)
    topics = rng.integers(HIDDEN, size=images)
    held_out = min(HELD_OUT, images // 10)
    split = np.where(np.arange(images) % 2, "weak", "train").astype(object)
    split[:held_out], split[held_out : 2 * held_out] = "dev", "test"
    # Four words out of five belong to the topic of the image and follow Zipf's law. All other words are random.
    ranks = np.minimum(rng.zipf(1.3, (images, WORDS)) - 1, VOCABULARY // HIDDEN - 1)
    words = np.where(rng.random((images, WORDS)) < 0.8, topics[:, None] * (VOCABULARY // HIDDEN) + ranks, 0)
    words = np.where(words > 0, words, rng.integers(VOCABULARY, size=(images, WORDS)))
    names = np.array([_word(number) for number in range(VOCABULARY)], object)
    texts = [" ".join(row) for row in names[words]]
    described = np.flatnonzero(split != "weak")
    weak = np.flatnonzero(split == "weak")
    ids = np.arange(images)
    made = {
        "image_id": ids, "path": [f"{i}.jpg" for i in ids], "member": pa.nulls(images), "offset": pa.nulls(images),
        "size": pa.nulls(images), "split": split, "width": np.full(images, 224), "height": np.full(images, 224),
        "sha256": [f"{i:064x}" for i in ids],
    }  # fmt: skip
    tables = {
        "images": pa.table(made).cast(IMAGES),
        "sentences": pa.table(
            {"sentence_id": np.arange(len(described)), "image_id": described, "text": [texts[i] for i in described]}
        ),
        "documents": pa.table(
            {
                "image_id": weak,
                "title": [""] * len(weak),
                "tags": [texts[i] for i in weak],
                "description": [""] * len(weak),
            }
        ),
        "boxes": BOXES.empty_table(),
    }
    counts = {
        what: {"given": table.num_rows, "kept": table.num_rows, "rejected": 0, "duplicate": 0}
        for what, table in tables.items()
    }
    write_manifest(run / "manifest", run.parent, [tables], [], counts, shard_size)
    return topics


def _word(number: int) -> str:
    """Return a word for `number` (0 to 9999). Each number has its own word, which lemmatisers leave unchanged."""
    return "q" + "".join("bcdfghjklm"[int(digit)] for digit in f"{number:04d}")


def write_shards(run: Path, topics: np.ndarray, dim: int) -> None:
    """Write the features (n, dim) of the n images of a run as shards of the encoder `made`. The features look like
    features after a ReLU: about a quarter of the numbers is not zero. Shards that exist are kept.

    An encoder file is also written, because the rules refuse features without an encoder file. `topics` (n,) are the
    topics of the images.
    """
    manifest = Manifest(run / "manifest")
    shards = Layout(run).features("made")
    settings = {"architecture": "made", "layer": "average", "weights": {"origin": "untrained", "seed": 0}}
    tensors = {"nothing": np.zeros(1, np.float32)}
    by_hand = Provenance(run, "by hand", 1)
    encoder = write_parameters(
        run / "encoders/made/model.safetensors", ENCODER, tensors, settings=settings, provenance=by_hand
    )
    by_encoder = Provenance(run, "by hand", 1, inputs={encoder.place: encoder.digest})
    shared = np.random.default_rng(1)
    mixing = shared.standard_normal((HIDDEN, dim), np.float32) / 8
    noise = shared.standard_normal((BLOCK, dim), np.float32)
    for number in range(manifest.n_shards):
        rows = manifest.shard(number)
        path = shards.shard(number)
        if commit_path(path).exists():
            continue
        rng = np.random.default_rng([2, number])
        own = topics[rows.first_image : rows.last_image]
        features = np.empty((len(own), dim), np.float16)
        for first in range(0, len(own), BLOCK):
            part = own[first : first + BLOCK]
            hidden = rng.standard_normal((len(part), HIDDEN), np.float32)
            hidden[np.arange(len(part)), part] += 6
            block = hidden @ mixing
            block += np.roll(noise[: len(part)], int(rng.integers(dim)), axis=1)
            features[first : first + BLOCK] = np.maximum(block - 0.9, 0)
        ids = np.arange(rows.first_image, rows.last_image)
        write_features(path, features, ids, by_encoder, {"encoder": {"name": "made"}})
    commit_part(shards, 0, range(manifest.n_shards), by_hand, ())


def run_rules(folder: Path, cores: int) -> tuple[float, float]:
    """Run the rules of the Snakefile in `folder`, on `cores` cores, from the features to the indexes and evaluations of
    `ncca` and `sae`. Return the wall seconds, and the CPU seconds of Snakemake and all jobs.

    The CPU seconds in the files of Snakemake are too few. It measures a job at intervals of up to 30 seconds, and
    misses the time after the last measurement.
    """
    targets = [f"results/million/index/{row}/card.json" for row in ("ncca", "sae")]
    command = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "--cores", str(cores), *targets]
    command += ["results/million/evaluation/summary.json.json", "--rerun-triggers", "mtime", "--quiet", "rules"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    start = time.perf_counter()
    before = _cpu_seconds_of_children()
    subprocess.run([*command, "--configfile", "million.yaml"], cwd=folder, env=environment, check=True)
    return time.perf_counter() - start, _cpu_seconds_of_children() - before


def _cpu_seconds_of_children() -> float:
    """Return the CPU seconds of all ended processes that this process or its child processes have started and waited
    for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def floors(images: int, dim: int) -> dict[str, float]:
    """Return the least possible seconds of the stages `accumulate` and `embed`, by name, for float16 features (images,
    dim).

    For `accumulate`, the result is the time of the rank-k update. For `embed`, the result is the time for reading and
    projecting the features, for two models. The rates of a plain matrix product and of a memory copy are measured here.
    """
    matrix = np.random.default_rng(0).standard_normal((1536, 1536), np.float32)
    matrix @ matrix.T
    start = time.perf_counter()
    matrix @ matrix.T
    rate = 2 * len(matrix) ** 3 / (time.perf_counter() - start)
    block = np.ones(1 << 26, np.uint8)
    start = time.perf_counter()
    block.copy()
    copied = len(block) / (time.perf_counter() - start)
    read = images * dim * 2 / copied
    return {"accumulate": images * dim**2 / rate, "embed": 2 * (read + images * dim * 2 * 128 / rate)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=4096)
    parser.add_argument("--folder", type=Path, default=Path("million"))
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--shard-size", type=int, default=32768)
    given = parse_options(parser, globals(), images=2000, dim=16, shard_size=1000, folder=Path("tiny"))
    run = given.folder / "results/million"
    (given.folder / "data").mkdir(parents=True, exist_ok=True)
    config = {
        "name": "million", "data_root": "data", "demo": {"generate": False}, "collection": {"format": "webdataset"},
        "encoders": [{"name": "made", "architecture": "alexnet", "layer": "fc7", "weights": "untrained"}],
        "models": ["ncca", "sae"], "shard_size": given.shard_size,
        "text": {"lemmatise": False, "max_ngram": 1, "pieces": False},
        "fit": {"dimensions": [96], "image_ridge": [0.1, 1], "text_ridge": [0.1], "eigenvalue_power": [1]},
        "documents": {"all": {"fields": ["tags"], "simulate": None}},
        "evaluate": {"bootstrap": 100, "splits": ["test"], "protocols": ["all-sentences"]},
    }  # fmt: skip
    (given.folder / "million.yaml").write_text(yaml.safe_dump(config))
    write_shards(run, write_collection(run, given.images, given.shard_size), given.dim)
    seconds, cpu_seconds = run_rules(given.folder, given.cores)
    facts = read_benchmarks(run / "benchmarks")
    least = floors(given.images, given.dim)
    print("| stage | jobs | seconds | floor | MB of memory | MB of artefacts |\n|---|---|---|---|---|---|")
    disk = 0.0
    for rule, jobs in facts.items():
        spent = sum(job.seconds for job in jobs)
        memory = max(job.memory for job in jobs)
        floor = f"{least[rule]:.1f}" if rule in least else ""
        written = _megabytes(run, rule)
        disk += written
        print(f"| `{rule}` | {len(jobs)} | {spent:.1f} | {floor} | {memory:.0f} | {written:.1f} |")
    own, first, second = time_searches(run / "index/ncca")
    total = {
        "name": "million", "images": given.images, "dim": given.dim, "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1), "artefacts_gb": round(disk / 1000, 2),
        "own_search_seconds": round(own, 2), "first_search_seconds": round(first, 2),
        "second_search_seconds": round(second, 2),
        "peak_gib": round(max(job.memory for jobs in facts.values() for job in jobs) / 1024, 2),
    }  # fmt: skip
    print(json.dumps(total))


def time_searches(index: Path) -> list[float]:
    """Return the seconds of three searches, each in a new process.

    The first search finds the full-text index that `build-index` has made. The second search has an empty state folder,
    as for the index of another user, so it hashes the files of the index and makes its full-text index. The third
    search finds the digests and the full-text index that the second search has stored.
    """
    search = [sys.executable, "-m", "stages.cli", "search", str(index.absolute()), _word(70)]
    seconds = []
    with tempfile.TemporaryDirectory() as state:
        own = {**os.environ, "PYTHONPATH": str(ROOT)}
        empty = {**own, "XDG_STATE_HOME": state}
        for environment in (own, empty, empty):
            start = time.perf_counter()
            subprocess.run(search, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - start)
    return seconds


def _megabytes(run: Path, rule: str) -> float:
    place = run / FOLDERS[rule] if rule in FOLDERS else None
    if place is None or not place.exists():
        return 0.0
    return (
        sum(path.stat().st_size for path in ([place] if place.is_file() else place.rglob("*")) if path.is_file()) / 1e6
    )


if __name__ == "__main__":
    main()
