"""Tests which show that a collection grows by a shard, and that images are removed from it."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image
from synthetic_run import run_command
from workflow import snakemake

from pipeline.storage.manifest import Manifest
from pipeline.storage.shards import FEATURES, Shard

SHARD = 24
CONFIG = {
    "name": "grow",
    "data_root": "data",
    "demo": {"generate": False},
    "encoders": [
        {"name": "untrained", "architecture": "squeezenet1_1", "weights": "untrained", "resize": 48, "crop": 48}
    ],
    "extract": {"decode_workers": 0},
    "models": ["cca"],
    "shard_size": SHARD,
    "parts": 2,
    "text": {"vocabulary": "frozen.json"},
    "fit": {"dimensions": [4], "image_ridge": [1], "text_ridge": [1], "eigenvalue_power": [1]},
    "evaluate": {"bootstrap": 0, "splits": ["test"], "protocols": ["all-sentences"]},
}
WORDS = ("red", "green", "blue", "small", "large", "round")
REMOVED_IMAGE = 30
"""Number of the image that is removed. The image is in the second shard."""


def add_images(data: Path, numbers: range) -> None:
    (data / "images").mkdir(parents=True, exist_ok=True)
    with open(data / "captions.tsv", "a") as captions, open(data / "splits.tsv", "a") as splits:
        for i in numbers:
            rng = np.random.default_rng(i)
            Image.fromarray(rng.integers(256, size=(48, 48, 3), dtype=np.uint8)).save(data / f"images/img-{i:04d}.png")
            words = " ".join(rng.choice(WORDS, 3))
            captions.write(f"img-{i:04d}.png\t0\tA {words} thing{' called zyzzyva' if i == REMOVED_IMAGE else ''} .\n")
            splits.write(f"img-{i:04d}.png\t{('train', 'train', 'dev', 'test')[i % 4]}\n")


def make(folder: Path, *arguments: str, takedown: str | None = None) -> str:
    (folder / "grow.yaml").write_text(yaml.safe_dump(CONFIG | {"collection": {"takedown": takedown}}))
    return snakemake(folder, *arguments, "--configfile", "grow.yaml").stdout


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a collection of two shards, run the whole workflow with a frozen vocabulary, and return the folder of
    both.
    """
    folder = tmp_path_factory.mktemp("grow")
    add_images(folder / "data", range(2 * SHARD))
    vocabulary = {
        "settings": {"lemmatise": False, "stop_words": [], "max_ngram": 1},
        "normalise": True,
        "terms": list(WORDS),
        "idf": [1.0] * len(WORDS),
        "n_sentences": 2 * SHARD,
    }
    (folder / "frozen.json").write_text(json.dumps(vocabulary))
    make(folder, "all")
    return folder


@pytest.mark.slow
def test_only_a_new_shard_and_the_sums_are_computed(fitted: Path) -> None:
    add_images(fitted / "data", range(2 * SHARD, 3 * SHARD))
    make(fitted, "results/grow/manifest/manifest.json")
    table = make(fitted, "all", "-n").partition("Job stats:")[2].partition("total")[0]
    planned = {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", table, flags=re.M)}
    parts = dict.fromkeys(("extract", "encode_sentences", "embed"), 2)
    sums = dict.fromkeys(("accumulate", "fit", "evaluate", "summarise", "build_index", "report", "all"), 1)
    assert planned == parts | sums
    old = [fitted / f"results/grow/features/untrained/shard-{number:05d}.h5" for number in range(2)]
    times = [path.stat().st_mtime_ns for path in old]
    make(fitted, "all")
    assert [path.stat().st_mtime_ns for path in old] == times


@pytest.mark.slow
def test_a_removed_image_leaves_no_trace(fitted: Path, tmp_path: Path) -> None:
    """One image is removed by the command `remove`, and 17 other images of its shard by the takedown list. After a new
    run, only removed.txt may still contain the name or the hash of the first image. No other file of the run contains
    its name, caption, hash or features.
    """
    run = tmp_path / "run"
    shutil.copytree(fitted, run)
    features = Shard(run / "results/grow/features/untrained/shard-00001.h5", FEATURES)["features"]
    name = f"img-{REMOVED_IMAGE:04d}.png"
    digest = next(
        row["sha256"]
        for row in Manifest(run / "results/grow/manifest").images.to_pylist()
        if row["path"].endswith(name)
    )
    traces = [name.encode(), digest.encode(), b"zyzzyva", features[REMOVED_IMAGE - SHARD].tobytes()]
    assert {trace for trace in traces if not files_containing(trace, run / "results")} == set()
    last = [f"img-{i:04d}.png" for i in range(SHARD, 2 * SHARD) if i % 4 and i != REMOVED_IMAGE]
    (run / "takedown.txt").write_text("# asked for by their owner\n" + "\n".join(last) + "\n")
    run_command("remove", run / "results/grow/index/cca", f"images/{name}")
    removed = run / "results/grow/index/cca/removed.txt"
    add_images(run / "data", range(4 * SHARD, 4 * SHARD + 4))
    make(run, "all", takedown="takedown.txt")
    counts = json.loads((run / "results/grow/manifest/manifest.json").read_text())["counts"]
    assert counts["images"]["given"] == counts["images"]["kept"]
    assert not (run / "results/grow/manifest/rejects.jsonl").read_text()
    for trace in traces:
        assert set(files_containing(trace, run / "results")) <= {removed}, trace[:40]


def files_containing(trace: bytes, folder: Path) -> list[Path]:
    """Return the files under `folder` that contain `trace`. In a Parquet file, the values of the table are searched
    too.
    """
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if trace in path.read_bytes() or trace in _text(path)]


def _text(path: Path) -> bytes:
    return repr(pq.read_table(path).to_pylist()).encode() if path.suffix == ".parquet" else b""
