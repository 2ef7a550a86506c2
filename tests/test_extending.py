"""Tests which show that parts can be added as docs/extending.md describes: in a user's own module, or as a file with a
stage.
"""

import ast
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import forked_programs
import pytest
import yaml
from forked_programs import ROOT
from PIL import Image
from synthetic_colours import make_colours
from synthetic_run import make_run, make_stage
from workflow import rules_of, snakemake

from pipeline.config import loading
from pipeline.config.registry import ALLOWED, allow, import_allowed
from pipeline.errors import UsageError
from pipeline.run.reading.results import search_command
from pipeline.storage.json_files import read_json
from pipeline.storage.parameters import ENCODER, MODEL, read_parameters
from stages.catalogue import COMMANDS
from stages.cli import stage

MINE = (
    re.search(r"```python\n(.*?)```", (ROOT / "docs/extending.md").read_text(), re.S)[1]
    + """

import numpy as np

from pipeline.collections.records import ImageRecord, SentenceRecord
from pipeline.encoders.text_encoder import TextEncoder


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
"""A user's module: the first example of docs/extending.md, with an encoder of texts and a reader of collections
added.
"""
LENGTHS = '''"""`count-lengths`: how many words the sentences have."""

from pipeline.run import Job, stage
from pipeline.run import StageRun


@stage(
    version=1,
    wanted=lambda config: [()],
    reads=lambda config, layout: {"manifest": layout.manifest},
    writes=lambda layout: layout.file("lengths.json"),
)
def count_lengths(run: StageRun, job: Job) -> None:
    """Count the words of the sentences."""
    from pipeline.storage.commit import publish_record

    texts = run.manifest.sentences["text"].to_pylist()
    publish_record(job.path, {"lengths": [len(text.split()) for text in texts]}, provenance=job.provenance)
'''
PARTS = {
    "models": [{"name": "mirrored", "model": "mine:Mirrored"}],
    "encoders": [{"name": "colours", "kind": "mine:CellColours", "resize": 32, "crop": 32}],
    "text_encoders": [{"name": "tfidf", "kind": "tf-idf"}, {"name": "letters", "kind": "mine:LetterCounts"}],
    "evaluate": {"splits": ["test"], "protocols": ["all-sentences"]},
}


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write the module `mine.py` into a folder in which Python finds it, and yield the folder. The user has not yet
    allowed the code of the module.
    """
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(ALLOWED, "")
    yield tmp_path
    for name in ("mine", "count_lengths"):
        sys.modules.pop(name, None)


def printed(result: subprocess.CompletedProcess) -> str:
    """Return the output of a program. The test fails if the program has failed."""
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-5000:]
    return result.stdout


def test_a_model_and_encoders_may_be_in_a_users_module(mine: Path) -> None:
    places = ("mine:CellColours", "mine:LetterCounts", "mine:Mirrored")
    allow((*places, "json:dumps"))
    with pytest.raises(UsageError, match="json:dumps is a function"):
        loading.validate({"models": [{"name": "mine", "model": "json:dumps"}]})
    run = make_colours(mine / "run", **PARTS)
    assert read_parameters(run / "encoders/colours/model.safetensors", ENCODER).details["dim"] == 27
    assert len(list((run / "features/colours").glob("shard-*.h5"))) == 3
    assert len(list((run / "text/letters").glob("shard-*.h5"))) == 3
    registered = read_parameters(run / "models/mirrored/model.safetensors", MODEL).details["registered"]
    assert registered == "mine:Mirrored"
    make_stage("evaluate", run, "mirrored", "test", "all-sentences")
    make_stage("build_index", run, "mirrored")
    for name in ("summarise", "report"):
        make_stage(name, run)
    page = (run / "report/index.html").read_text()
    assert "mirrored" in page and "CellColours" in page
    allowed = [word for place in places for word in ("--allow", place)]
    assert search_command(run / "bundle").startswith(shlex.join(["jointspace", *allowed, "search"]))
    asking = ["search", "--index", run / "bundle"]

    def search(*words: object) -> list[dict]:
        return json.loads(printed(forked_programs.jointspace(mine, *allowed, *asking, "--json", "--top-k", 3, *words)))

    assert [Path(found["path"]).name.partition("-")[0] for found in search("a blue picture")] == ["blue"] * 3
    photograph = next((run / "data").glob("red-*.png"))
    for left_out in places:  # An index imports only code that the user has named.
        named = [word for place in places if place != left_out for word in ("--allow", place)]
        query = ["--image", photograph] if left_out == "mine:CellColours" else ["a red picture"]
        refused = forked_programs.jointspace(mine, *named, *asking, *query)
        assert refused.returncode == 2 and f"--allow {left_out}" in refused.stderr
    assert [found["text"] for found in search("--image", photograph)] == ["a red picture"] * 3


def test_a_format_may_be_a_reader_in_a_users_module(mine: Path) -> None:
    (mine / "config.yaml").write_text("{data_root: data, demo: {generate: false}, collection: {format: 'mine:read'}}")
    (mine / "data").mkdir()
    Image.new("RGB", (32, 32), "red").save(mine / "data" / "red.png")
    printed(forked_programs.jointspace(mine, "stage", "ingest", "--run", mine, "--processes", 0))
    assert read_json(mine / "manifest" / "manifest.json")["counts"]["images"]["kept"] == 1


def test_a_stage_is_added_by_one_file(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Snakefile makes a rule for the new stage, also if the configuration of the run names parts of a user's
    module.
    """
    run = make_run(mine / "run")
    (mine / "count_lengths.py").write_text(LENGTHS)
    monkeypatch.setitem(COMMANDS, "count-lengths", "count_lengths")  # as if the file were in a folder of `stages`
    monkeypatch.setitem(stage.titled, "Text", [*stage.titled["Text"], "count-lengths"])
    (mine / "mine.yaml").write_text(yaml.safe_dump(PARTS))
    assert {"count_lengths", "fit"} <= rules_of(snakemake(mine, "all", "-n", "--configfile", "mine.yaml"))
    printed(forked_programs.jointspace(mine, "stage", "count-lengths", "--run", run))
    assert read_json(run / "lengths.json")["lengths"] == [2, 5] * 24


def test_the_steps_to_an_encoder_name_existing_files_and_names() -> None:
    """The section "An encoder" of docs/extending.md pairs names with files, as `NAME` in `FILE`. Each file contains the
    names that are paired with it, and each name is defined in one of the files.
    """
    page = (ROOT / "docs/extending.md").read_text()
    section = page.partition("## An encoder")[2].partition("\n## ")[0]
    files = [ROOT / file for file in dict.fromkeys(re.findall(r"`([\w/]+\.py)`", section))]
    names = set(re.findall(r"`([A-Za-z]\w+)`", section)) - {"encoders", "text_encoders"}
    assert len(files) > 6 and len(names) > 12 and all(file.is_file() for file in files)
    for name, file in re.findall(r"`(\w+)`(?: in| of| \()\s*`([\w/]+\.py)`", section):
        assert re.search(rf"\b{name}\b", (ROOT / file).read_text()), f"{file} has no {name}"
    texts = "\n".join(file.read_text() for file in files)
    assert {name for name in names if not re.search(rf"\b(class|def) {name}\b|^{name}\b", texts, re.M)} == set()


def test_an_encoder_of_texts_is_added_by_few_lines() -> None:
    """To add an encoder of texts, a user has to read at most 550 lines: the section "An encoder" of docs/extending.md,
    three whole files that it names, and four classes of two other files.
    """
    whole = ("encoders/text_encoder.py", "encoders/averaged.py", "encoders/material.py")
    lines = sum(len((ROOT / "pipeline" / file).read_text().splitlines()) for file in whole)
    parts = {
        "config/encoders.py": ("TextEntry", "WordVectorsEntry", "AveragedEntry"),
        "config/registry.py": ("EncoderSpec",),
    }
    for file, classes in parts.items():
        tree = ast.parse((ROOT / "pipeline" / file).read_text())
        found = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        lines += sum(found[name].end_lineno - found[name].lineno + 1 for name in classes)
    section = (ROOT / "docs/extending.md").read_text().partition("## An encoder")[2].partition("\n## ")[0]
    assert lines + len(section.splitlines()) <= 550


def test_an_encoder_may_import_a_module_by_its_former_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "former_name.py").write_text(
        "from pipeline.text.text_encoder import TextEncoder\n\n\nclass Mine(TextEncoder):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("JOINTSPACE_ALLOW", "former_name:Mine")
    monkeypatch.delitem(sys.modules, "pipeline.text.text_encoder", raising=False)
    assert import_allowed("text encoder", "former_name:Mine").__mro__[1].__module__ == "pipeline.encoders.text_encoder"
    assert "which is now called pipeline.encoders.text_encoder" in caplog.text
    del sys.modules["pipeline.text.text_encoder"]
