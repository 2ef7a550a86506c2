"""Tests of the stage `align` with a synthetic region model, and of the ranker that scores the aligned phrases for
generated captions.
"""

import json
from pathlib import Path

import pytest
from synthetic_multivectors import THING, add_fragments
from synthetic_run import THINGS, make_run, make_stage, write_config

from pipeline.run import Run
from pipeline.storage.records import read_alignments
from stages.results.captions import _read_ranker


def test_every_word_is_in_one_segment_with_the_box_and_the_vector_of_its_region(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    add_fragments(run, "dvsa", {"sum": "words", "global_weight": 0.0})
    write_config(run, {"models": ["dvsa"], "regions": {"encoders": ["colour"]}})
    for split in ("train", "test"):
        make_stage("align", run, "dvsa", split)
    segments = [json.loads(line) for line in (run / "alignments/dvsa/test.jsonl").read_text().splitlines()]
    # "a dog" has one token, dog. "the big dog number 2" has another token, the number, which fits no region.
    assert len(segments) == 16 and {one["image_id"] for one in segments} == set(range(2, 24, 3))
    for one in segments:
        assert one["image_id"] == one["sentence_id"] // 2
        assert one["box"] == THING and one["score"] == pytest.approx(2)
        assert len(one["words"]) == 1 + one["sentence_id"] % 2
    ranker = _read_ranker(Run(run), "dvsa", run / "alignments/dvsa/train.jsonl")
    for one, vector in zip(read_alignments(run / "alignments/dvsa/train.jsonl"), ranker.vectors, strict=True):
        assert vector.tolist() == [2.0 * (thing in one["words"]) for thing in THINGS]
