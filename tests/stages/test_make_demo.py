"""Tests of the stage `make-demo`: the files of the demo collection, its annotations, and folders that the stage
refuses.
"""

import json
import re
from collections import Counter, defaultdict
from pathlib import Path

import nltk
import pytest
from click.testing import CliRunner
from synthetic_run import make_stage

from pipeline.config.collection import DemoSettings
from pipeline.demo import DrawingSettings, scene_record
from pipeline.demo.words import NOUNS, plural
from pipeline.errors import UsageError
from stages.collections.make_demo import command

SPLIT_SIZES = {"train": 4, "dev": 2, "test": 2, "weak": 4}
TEXT_FILES = {"captions.tsv", "splits.tsv", "weak.tsv", "boxes.tsv", "names.tsv", "trees.conllu", "trees.brackets"}


def make_demo(folder: Path, processes: int = 0) -> None:
    """Generate a demo collection of 12 images in `folder`, with `processes` further processes. An error of the command
    is raised. The configuration is written next to `folder`.
    """
    config = folder.with_name("config.yaml")
    config.write_text(json.dumps({"demo": SPLIT_SIZES}))
    arguments = ["--output", str(folder), "--config", str(config), "--processes", str(processes)]
    result = CliRunner().invoke(command, arguments)
    if result.exception:
        raise result.exception


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files in `folder` and in the folders below it, by their paths relative to `folder`."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_collection_is_the_same_for_any_number_of_processes(tmp_path: Path) -> None:
    make_demo(tmp_path / "demo")
    files = contents(tmp_path / "demo")
    images = {f"images/scene-{i:05d}.jpg" for i in range(8)} | {f"images/weak-{i:05d}.jpg" for i in range(4)}
    assert set(files) == images | TEXT_FILES | {"demo.json", ".jointspace-demo"}
    commit = json.loads(files["demo.json"])
    assert commit["settings"] == {**SPLIT_SIZES, "seed": 0}
    assert commit["images"] == 12 and commit["lines"]["captions.tsv"] == 40
    assert set(commit["files"]) == TEXT_FILES | images
    make_demo(tmp_path / "many", processes=1)
    assert contents(tmp_path / "many") == files


def test_docs_measured_has_the_numbers_of_the_test_split_of_the_demo() -> None:
    """The paragraph "The demo" has the numbers of photos, captions and different words. All captions are unique."""
    page = (Path(__file__).parents[2] / "docs/measured.md").read_text()
    stated = re.findall(r"\b\d[\d,]*\b", page.partition("**The demo.**")[2].partition("\n\n")[0])
    drawing = DrawingSettings(**DemoSettings().model_dump(exclude={"generate"}))
    records = [scene_record(drawing, index) for index in range(drawing.train + drawing.dev, drawing.targets)]
    captions = [sentence.text for record in records for sentence in record.sentences]
    words = {word for caption in captions for word in caption.lower().split() if word.isalnum()}
    assert {f"{len(things):,}" for things in (records, captions, words)} <= set(stated)
    assert len(set(captions)) == len(captions)


def test_trees_have_the_words_of_their_sentence_and_every_named_thing_has_a_box() -> None:
    drawing = DrawingSettings(train=40, dev=5, test=5, weak=0, seed=5)
    kinds = defaultdict(set)
    named = 0
    for kind, nouns in NOUNS.items():
        for lemma in (*nouns.usual, *nouns.small):
            kinds[lemma].add(kind)
            kinds[plural(lemma)].add(kind)
    for record in (scene_record(drawing, index) for index in range(drawing.images)):
        boxes = Counter(labelled.label for labelled in record.boxes)
        for sentence in record.sentences:
            rows = [line.split("\t") for line in sentence.conllu.splitlines()]
            tree = nltk.Tree.fromstring(sentence.brackets)
            assert [row[1] for row in rows] == tree.leaves() == sentence.text.split(" ")
            for number, word, _, tag, *_ in rows:
                if tag == "NOUN" and word.lower() in kinds:
                    counts = [row[1].lower() for row in rows if (row[6], row[7]) == (number, "nummod")]
                    least = {"two": 2, "three": 3}[counts[0]] if counts else 1
                    assert any(boxes[kind] >= least for kind in kinds[word.lower()]), sentence.text
                    named += 1
    assert named > 300


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "photographs"
    theirs.mkdir()
    (theirs / "captions.tsv").write_text("me.jpg\t0\tMine .\n")
    with pytest.raises(UsageError, match="contains other files"):
        make_demo(theirs)
    assert contents(theirs) == {"captions.tsv": b"me.jpg\t0\tMine .\n"}


def test_the_demo_of_a_run_is_written_to_its_data_root(tmp_path: Path) -> None:
    values = {"data_root": str(tmp_path / "of-the-run"), "demo": SPLIT_SIZES}
    (tmp_path / "run.yaml").write_text(json.dumps(values))
    make_stage("make_demo", tmp_path / "run", "--config", tmp_path / "run.yaml", "--processes", 0)
    make_demo(tmp_path / "alone")
    assert contents(tmp_path / "of-the-run") == contents(tmp_path / "alone")
    assert set(contents(tmp_path / "run")) == {"config.yaml"}
    (tmp_path / "run.yaml").write_text(json.dumps({**values, "demo": {"generate": False}}))
    with pytest.raises(UsageError, match="make-demo: the configuration does not need it."):
        make_stage("make_demo", tmp_path / "run", "--config", tmp_path / "run.yaml")
