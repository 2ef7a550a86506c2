"""make-demo by hand: what it leaves, what it leaves alone, and what it refuses."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from made_up import make_stage

from pipeline.errors import UsageError
from stages.collections.make_demo import command

SIZES = {"train": 4, "dev": 2, "test": 2, "weak": 4}
TEXTS = {"captions.tsv", "splits.tsv", "weak.tsv", "boxes.tsv", "names.tsv", "trees.conllu", "trees.brackets"}


def make_demo(folder: Path, processes: int = 0) -> None:
    config = folder.with_name("config.yaml")
    config.write_text(json.dumps({"demo": SIZES}))
    arguments = ["--output", str(folder), "--config", str(config), "--processes", str(processes)]
    result = CliRunner().invoke(command, arguments)
    if result.exception:
        raise result.exception


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_leaves_a_collection_and_its_commit_whatever_the_number_of_processes(tmp_path: Path) -> None:
    make_demo(tmp_path / "demo")
    files = contents(tmp_path / "demo")
    images = {f"images/scene-{i:05d}.jpg" for i in range(8)} | {f"images/weak-{i:05d}.jpg" for i in range(4)}
    assert set(files) == images | TEXTS | {"demo.json", ".jointspace-demo"}
    commit = json.loads(files["demo.json"])
    assert commit["settings"] == {**SIZES, "seed": 0}
    assert commit["images"] == 12 and commit["lines"]["captions.tsv"] == 40
    assert set(commit["files"]) == TEXTS | images
    make_demo(tmp_path / "many", processes=1)
    assert contents(tmp_path / "many") == files


def test_refuses_a_folder_of_somebody_else(tmp_path: Path) -> None:
    theirs = tmp_path / "photographs"
    theirs.mkdir()
    (theirs / "captions.tsv").write_text("me.jpg\t0\tMine .\n")
    with pytest.raises(UsageError, match="holds other files"):
        make_demo(theirs)
    assert contents(theirs) == {"captions.tsv": b"me.jpg\t0\tMine .\n"}


def test_the_demo_of_a_run_is_its_data_root(tmp_path: Path) -> None:
    values = {"data_root": str(tmp_path / "of-the-run"), "demo": SIZES}
    (tmp_path / "run.yaml").write_text(json.dumps(values))
    make_stage("make_demo", tmp_path / "run", "--config", tmp_path / "run.yaml", "--processes", 0)
    make_demo(tmp_path / "alone")
    assert contents(tmp_path / "of-the-run") == contents(tmp_path / "alone")
    assert set(contents(tmp_path / "run")) == {"config.yaml"}
    (tmp_path / "run.yaml").write_text(json.dumps({**values, "demo": {"generate": False}}))
    with pytest.raises(UsageError, match="make-demo: the configuration leaves it out"):
        make_stage("make_demo", tmp_path / "run", "--config", tmp_path / "run.yaml")
