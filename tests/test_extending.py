"""Parts that are added as docs/extending.md says: a module of the user's own, and a stage in a copy of the checkout."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import warm
import yaml
from PIL import Image
from warm import ROOT, environment
from workflow import rules_of

from pipeline.storage.json_files import read_json
from pipeline.storage.parameters import ENCODER, MODEL, read_parameters

MINE = (
    re.search(r"```python\n(.*?)```", (ROOT / "docs/extending.md").read_text(), re.S)[1]
    + """

import numpy as np

from pipeline.collections.records import ImageRecord, SentenceRecord
from pipeline.text.text_encoder import TextEncoder


class LetterCounts(TextEncoder):
    dim = 26

    def encode(self, texts):
        counts = [[text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]
        return np.array(counts, np.float32).reshape(len(texts), 26)


def read(root, options):
    yield ImageRecord("red.png", "red.png", options.default_split, "list")
    yield SentenceRecord("red.png", 0, "a red thing", "list", 1)
"""
)
"""The module of docs/extending.md, with an encoder of texts and a reader."""
LENGTHS = '''"""`count-lengths`: how many words the sentences have."""

from pipeline.run import Job, Run, stage


@stage(
    version=1,
    wanted=lambda config: [()],
    reads=lambda config, layout: [layout.manifest],
    writes=lambda layout: layout.file("lengths.json"),
)
def count_lengths(run: Run, job: Job) -> None:
    """Count the words of the sentences."""
    from pipeline.storage.commit import publish_record

    texts = run.manifest.sentences["text"].to_pylist()
    publish_record(job.path, {"lengths": [len(text.split()) for text in texts]}, provenance=job.provenance)
'''
FILES = {"mine.py": MINE, "stages/results/count_lengths.py": LENGTHS}
TINY = {
    "name": "tiny",
    "models": [{"name": "mirrored", "model": "mine:Mirrored"}],
    "encoders": [{"name": "colours", "kind": "mine:CellColours", "resize": 32, "crop": 32}],
    "text_encoders": [{"name": "tfidf", "kind": "tf-idf"}, {"name": "letters", "kind": "mine:LetterCounts"}],
    "shard_size": 40,
    "demo": {"train": 50, "dev": 10, "test": 10, "weak": 0},
    "data_root": "data",
    "fit": {"dimensions": [8], "image_ridge": [0.1], "text_ridge": [1], "eigenvalue_power": [1]},
    "evaluate": {"bootstrap": 20, "splits": ["test"], "protocols": ["all-sentences"]},
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git has, with the new files."""
    copy = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    for name, text in FILES.items():
        (copy / name).write_text(text)
    return copy


def printed(result: subprocess.CompletedProcess) -> str:
    """What a program has printed, which must not have failed."""
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-5000:]
    return result.stdout


def test_a_model_and_encoders_are_a_module_and_a_stage_a_file(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    words = ["-s", checkout / "Snakefile", "all", "--cores", 2, "--configfile", "tiny.yaml"]
    ran = warm.snakemake(tmp_path, *words, root=checkout)
    printed(ran)
    results = tmp_path / "results/tiny"
    assert read_parameters(results / "encoders/colours/model.safetensors", ENCODER).details["dim"] == 27
    assert len(list((results / "features/colours").glob("shard-*.h5"))) == 2
    assert len(list((results / "text/letters").glob("shard-*.h5"))) == 2
    registered = read_parameters(results / "models/mirrored/model.safetensors", MODEL).details["registered"]
    assert registered == "mine:Mirrored"
    found = read_json(results / "evaluation/mirrored.test.all-sentences.json")
    assert found["sentence_to_image"]["median_rank"] < 5  # by chance 5.5 of 10: turned round, both sides still agree
    lengths = read_json(results / "lengths.json")["lengths"]
    assert len(lengths) == read_json(results / "manifest/manifest.json")["counts"]["sentences"]["kept"]
    page = (results / "report/index.html").read_text()
    assert "mirrored" in page and "CellColours" in page
    places = ("mine:CellColours", "mine:LetterCounts", "mine:Mirrored")
    allowed = [word for place in places for word in ("--allow", place)]
    assert shlex.join(["jointspace", *allowed, "search"]) in ran.stdout

    def search(*words: object) -> list[dict]:
        given = [*allowed, "search", "--index", results / "index/mirrored", "--json", "--top", 3, *words]
        return json.loads(printed(warm.jointspace(tmp_path, *given, root=checkout)))

    assert len(search("a dog on the grass")) == 3
    photograph = next((tmp_path / "data/images").iterdir())
    for left_out in places:  # a bundle imports nothing that its user has not named
        named = [word for place in places if place != left_out for word in ("--allow", place)]
        query = ["--image", photograph] if left_out == "mine:CellColours" else ["a dog"]
        asked = [*named, "search", "--index", results / "index/mirrored", *query]
        refused = warm.jointspace(tmp_path, *asked, root=checkout)
        assert refused.returncode == 2 and f"--allow {left_out}" in refused.stderr
    sentences = search("--image", photograph)
    assert len(sentences) == 3 and all(found["text"] for found in sentences)
    stage = checkout / "stages/models/fit.py"
    stage.write_text(re.sub(r"version=\d+", "version=99", stage.read_text(), count=1))
    program = [sys.executable, "-m", "snakemake", *map(str, words), "-n"]
    again = subprocess.run(program, cwd=tmp_path, env=environment(checkout), capture_output=True, text=True)
    assert rules_of(again) == {"fit", "embed", "evaluate", "summarise", "build_index", "report"}, "of a raised version"


def test_a_format_is_a_reader_of_ones_own(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "{data_root: data, demo: {generate: false}, collection: {format: 'mine:read'}}"
    )
    (tmp_path / "data").mkdir()
    Image.new("RGB", (32, 32), "red").save(tmp_path / "data" / "red.png")
    printed(warm.jointspace(tmp_path, "ingest", "--run", tmp_path, "--processes", 0, root=checkout))
    assert read_json(tmp_path / "manifest" / "manifest.json")["counts"]["images"]["kept"] == 1
