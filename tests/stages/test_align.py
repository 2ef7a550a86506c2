"""The command `align` on a made-up model of fragments, and what the report draws of that."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from made_up import THINGS, make_run, make_stage, open_run, retell, write_config
from made_up_sets import THING, add_fragments, write_tokens_of_terms
from PIL import Image

from pipeline.errors import IntegrityError
from pipeline.run import Run
from pipeline.storage.manifest import Manifest
from pipeline.storage.records import read_alignments
from stages.pictures import draw_alignments
from stages.results.train_generator import _read_ranker

REGIONS = {"models": ["dvsa"], "regions": {"encoders": ["colour"]}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = make_run(tmp_path_factory.mktemp("made") / "run")
    add_fragments(run, "dvsa", {"sum": "words", "global_weight": 0.0})
    write_tokens_of_terms(run)
    write_config(run, REGIONS)
    return run


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "run")


def align(run: Path, *more: dict) -> list[dict]:
    """The segments of the test split."""
    write_config(run, REGIONS, *more)
    make_stage("align", run, "dvsa", "test")
    return [json.loads(line) for line in (run / "alignments/dvsa/test.jsonl").read_text().splitlines()]


def test_every_word_is_in_one_segment_with_the_box_of_its_region(run: Path) -> None:
    segments = align(run)
    # "a dog" has the word dog; "the big dog number 2" also a number that no region says anything of.
    assert len(segments) == 16 and {one["image_id"] for one in segments} == set(range(2, 24, 3))
    for one in segments:
        assert one["image_id"] == one["sentence_id"] // 2
        assert one["box"] == THING and one["score"] == pytest.approx(2)
        assert len(one["words"]) == 1 + one["sentence_id"] % 2


def test_images_are_drawn_with_the_sentence_that_they_retrieve(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The made-up images of a split show eight different things, so each retrieves a sentence of its own; the word for
    its thing is at the thing, and the number, of which no region says anything, at the whole image until it joins."""
    sheets: list[list] = []

    def draw(pictures: Iterable, columns: int) -> Image.Image:
        sheets.append(list(pictures))
        return Image.new("RGB", (8, 8))

    monkeypatch.setattr("stages.pictures.draw_sheet", draw)
    draw_alignments(open_run(run, REGIONS), "dvsa", "test")
    pictures, _ = sheets
    texts = Manifest(run / "manifest").sentences["text"].to_pylist()
    assert len(pictures) == 16
    for number, image_id in enumerate(range(2, 24, 3)):
        before, after = pictures[2 * number : 2 * number + 2]
        kind, _, sentence = before.line.partition(": ")
        assert kind == "words" and after.line == f"segments: {sentence}"
        assert sentence in texts[2 * image_id : 2 * image_id + 2]
        assert before.boxes[0].tolist() == after.boxes[0].tolist() == THING and len(after.boxes) == 1
        assert before.labels[0].endswith(" 2.0") and all(word.strip("0123456789. ") for word in before.labels[:1])


def test_snippets_that_are_ranked_have_the_vectors_of_their_words(run: Path) -> None:
    align(run)
    make_stage("align", run, "dvsa", "train")
    segments = read_alignments(run / "alignments/dvsa/train.jsonl")
    ranker = _read_ranker(Run(run), "dvsa")
    assert ranker.name == "dvsa" and len(ranker.vectors) == len(segments)
    for one, vector in zip(segments, ranker.vectors, strict=True):
        assert vector.tolist() == [2.0 * (thing in one["words"]) for thing in THINGS]


def test_without_affinity_a_word_of_no_meaning_takes_the_whole_image(run: Path) -> None:
    numbers = [one for one in align(run, {"align": {"beta": 0}}) if one["words"][0].isdigit()]
    assert len(numbers) == 8 and all(one["box"][:2] == [0, 0] and one["box"][2] > 55 for one in numbers)


def test_the_longest_words_and_regions_are_listed_and_drawn(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over several blocks as over one."""
    sheets: list[list] = []
    monkeypatch.setattr("stages.pictures.draw_sheet", lambda pictures, _: sheets.append(list(pictures)))
    monkeypatch.setattr("stages.pictures.drawing", lambda name, sheet: name)
    monkeypatch.setattr("stages.pictures.LEAST_COUNT", 2)
    opened = open_run(run, REGIONS)
    for block in (5, 1024):
        monkeypatch.setattr("stages.pictures.BLOCK", block)
        _, words = draw_alignments(opened, "dvsa", "train")
        assert {row["word"] for row in words["lowest"]} == set(THINGS)  # numbers stand once each
        assert [(row["magnitude"], row["count"]) for row in words["highest"]] == [(2, 4)] * len(THINGS)
        longest = sheets[-1]
        assert [picture.boxes.tolist() for picture in longest] == [[THING]] * 16
        assert [picture.line for picture in longest] == [f"{picture.scores[0]:.2f}" for picture in longest]


def test_a_vocabulary_of_other_words_is_refused(run: Path) -> None:
    retell(run / "text/tokens.json", "settings", "stop_words", value=[])
    with pytest.raises(IntegrityError, match="the sentences by .*tokens.json do not match"):
        align(run)
    assert not (run / "alignments/dvsa/test.jsonl").exists()
