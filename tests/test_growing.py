"""A collection that grows by a shard, and one from which images are taken down."""

import json
import re
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import warm
import yaml
from made_up import run_command
from PIL import Image
from warm import ROOT

from pipeline.collections.intake import Intake
from pipeline.collections.records import DocumentRecord, ImageRecord, SentenceRecord
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
GONE = 30
"""The image that is taken down, in the second shard."""


def add_images(data: Path, numbers: range) -> None:
    (data / "images").mkdir(parents=True, exist_ok=True)
    with open(data / "captions.tsv", "a") as captions, open(data / "splits.tsv", "a") as splits:
        for i in numbers:
            rng = np.random.default_rng(i)
            Image.fromarray(rng.integers(256, size=(48, 48, 3), dtype=np.uint8)).save(data / f"images/img-{i:04d}.png")
            words = " ".join(rng.choice(WORDS, 3))
            captions.write(f"img-{i:04d}.png\t0\tA {words} thing{' called zyzzyva' if i == GONE else ''} .\n")
            splits.write(f"img-{i:04d}.png\t{('train', 'train', 'dev', 'test')[i % 4]}\n")


def snakemake(folder: Path, *arguments: str, takedown: str | None = None) -> str:
    (folder / "grow.yaml").write_text(yaml.safe_dump(CONFIG | {"collection": {"takedown": takedown}}))
    words = ["-s", ROOT / "Snakefile", "--cores", 2, *arguments, "--configfile", "grow.yaml"]
    result = warm.snakemake(folder, *words)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return result.stdout


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on two shards, its vocabulary frozen."""
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
    snakemake(folder, "all")
    return folder


@pytest.mark.slow
def test_a_new_shard_is_computed_alone_and_the_sums_anew(fitted: Path) -> None:
    add_images(fitted / "data", range(2 * SHARD, 3 * SHARD))
    snakemake(fitted, "results/grow/manifest/manifest.json")
    table = snakemake(fitted, "all", "-n").partition("Job stats:")[2].partition("total")[0]
    planned = {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", table, flags=re.M)}
    parts = dict.fromkeys(("extract", "encode_sentences", "embed"), 2)
    sums = dict.fromkeys(("accumulate", "fit", "evaluate", "summarise", "build_index", "report", "all"), 1)
    assert planned == parts | sums
    old = [fitted / f"results/grow/features/untrained/shard-{number:05d}.h5" for number in range(2)]
    times = [path.stat().st_mtime_ns for path in old]
    snakemake(fitted, "all")
    assert [path.stat().st_mtime_ns for path in old] == times


@pytest.mark.slow
def test_what_is_taken_down_leaves_no_trace(fitted: Path, tmp_path: Path) -> None:
    """By name, by text, by hash and by feature; and a shard that is no longer there goes too."""
    run = tmp_path / "run"
    shutil.copytree(fitted, run)
    features = Shard(run / "results/grow/features/untrained/shard-00001.h5", FEATURES)["features"]
    name = f"img-{GONE:04d}.png"
    digest = next(
        row["sha256"]
        for row in Manifest(run / "results/grow/manifest").images.to_pylist()
        if row["path"].endswith(name)
    )
    traces = [name.encode(), digest.encode(), b"zyzzyva", features[GONE - SHARD].tobytes()]
    assert {trace for trace in traces if not found(trace, run / "results")} == set()
    last = [f"img-{i:04d}.png" for i in range(SHARD, 2 * SHARD) if i % 4 and i != GONE]
    (run / "takedown.txt").write_text("# asked for by their owner\n" + "\n".join(last) + "\n")
    run_command("remove", run / "results/grow/index/cca", f"images/{name}")
    removed = run / "results/grow/index/cca/removed.txt"
    add_images(run / "data", range(4 * SHARD, 4 * SHARD + 4))
    snakemake(run, "all", takedown="takedown.txt")
    counts = json.loads((run / "results/grow/manifest/manifest.json").read_text())["counts"]
    assert counts["images"]["given"] == counts["images"]["kept"]
    assert not (run / "results/grow/manifest/rejects.jsonl").read_text()
    for trace in traces:
        assert set(found(trace, run / "results")) <= {removed}, trace[:40]


def found(trace: bytes, folder: Path) -> list[Path]:
    """The files under `folder` that hold `trace`, Parquet read as tables."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if trace in path.read_bytes() or trace in _text(path)]


def _text(path: Path) -> bytes:
    return repr(pq.read_table(path).to_pylist()).encode() if path.suffix == ".parquet" else b""


def test_a_takedown_knows_an_image_by_any_of_its_names() -> None:
    """And what belongs to it, even what is faulty, becomes no reject."""
    records = [
        ImageRecord("a", "images/a.jpg", "train", "list"),
        ImageRecord("b", "x.tar", "train", "x.tar", None, "b.jpg"),
        ImageRecord("c", "images/c.jpg", "train", "list"),
        SentenceRecord("a", 0, "of a", "list"),
        SentenceRecord("a", 1, " ", "list"),
        DocumentRecord("b", "of b", "", "", "list"),
        SentenceRecord("c", 0, "of c", "list"),
        SentenceRecord("gone.jpg", 0, "of none", "list"),
    ]
    with closing(Intake(99, takedown=["# comment", "", "images/a.jpg", "  b.jpg ", "gone.jpg", "d.jpg"])) as intake:
        intake.add(records)
        assert {what: count for what, count in intake.given.items() if count} == {"images": 1, "sentences": 1}
        assert list(intake.tables.rows("SELECT path FROM images")) == [("images/c.jpg",)]
        assert list(intake.rejects) == [] and intake.takedown.unmet() == ["'d.jpg'"]
