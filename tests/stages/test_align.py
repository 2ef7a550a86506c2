"""The command `align` on a made-up model of fragments, and what the report draws of that."""

import json
import shutil
from pathlib import Path

import pytest
from made_up import THINGS, make_run, make_stage, write_config
from made_up_sets import THING, add_fragments, write_tokens_of_terms

from pipeline.run import Run
from pipeline.storage.records import read_alignments
from stages.results.captions import _read_ranker

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


def test_snippets_that_are_ranked_have_the_vectors_of_their_words(run: Path) -> None:
    align(run)
    make_stage("align", run, "dvsa", "train")
    segments = read_alignments(run / "alignments/dvsa/train.jsonl")
    ranker = _read_ranker(Run(run), "dvsa")
    assert ranker.name == "dvsa" and len(ranker.vectors) == len(segments)
    for one, vector in zip(segments, ranker.vectors, strict=True):
        assert vector.tolist() == [2.0 * (thing in one["words"]) for thing in THINGS]
