"""The commands `align` and `list-magnitudes` on a made-up row of fragments."""

import json
from pathlib import Path

import numpy as np
import pytest
from made_up import make_run, run_command
from made_up_sets import THING, add_fragments
from PIL import Image

from pipeline.errors import IntegrityError
from pipeline.storage.alignments import ALIGNMENTS, read_alignments
from pipeline.storage.atomic import publish, publish_json
from pipeline.storage.integrity import examine
from pipeline.storage.manifest import Manifest


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = make_run(tmp_path_factory.mktemp("run"))
    add_fragments(run, "words", {"sum": "words", "global_weight": 0.0})
    return run


def given(run: Path, split: str) -> tuple:
    vocabulary = ("--vocabulary", run / "text/vocabulary.json")
    return "--manifest", run / "manifest", "--embeddings", run / "embeddings/words", *vocabulary, "--split", split


def test_every_word_is_in_one_segment_with_the_box_of_its_region(run: Path) -> None:
    run_command("align", *given(run, "test"), "--output", run / "test.jsonl")
    segments = [json.loads(line) for line in (run / "test.jsonl").read_text().splitlines()]
    # "a dog" has the word dog; "the big dog number 2" also a number that no region says anything of.
    assert len(segments) == 16 and {one["image_id"] for one in segments} == set(range(2, 24, 3))
    for one in segments:
        assert one["image_id"] == one["sentence_id"] // 2
        assert one["box"] == THING and one["score"] == pytest.approx(2)
        assert len(one["words"]) == 1 + one["sentence_id"] % 2
    with Image.open(run / "test.png") as sheet:
        assert sheet.size == (6 * 256, 2 * 270)
        assert np.asarray(sheet).std() > 10


def test_without_affinity_a_word_of_no_meaning_takes_the_whole_image(run: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("align: {beta: 0}")
    more = ("--config", tmp_path / "config.yaml", "--output", tmp_path / "test.jsonl")
    run_command("align", *given(run, "test"), *more)
    segments = [json.loads(line) for line in (tmp_path / "test.jsonl").read_text().splitlines()]
    numbers = [one for one in segments if one["words"][0].isdigit()]
    assert len(numbers) == 8 and all(one["box"][:2] == [0, 0] and one["box"][2] > 55 for one in numbers)


def test_magnitudes_are_listed_and_drawn(run: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("align: {least_count: 2}")
    more = ("--config", tmp_path / "config.yaml", "--words", 3, "--images", 5, "--output", tmp_path / "words.json")
    run_command("list_magnitudes", *given(run, "train"), *more)
    value = json.loads((tmp_path / "words.json").read_text())
    assert len(value["highest"]) == 3 and value["highest"][0] == {**value["highest"][0], "magnitude": 2, "count": 4}
    assert len(value["lowest"]) == 3  # numbers stand once each, so only the eight things are left
    assert [one["box"] for one in value["regions"]] == [THING] * 5
    assert len({one["image_id"] for one in value["regions"]}) == 5
    assert (tmp_path / "words.png").stat().st_size > 1000


def test_a_vocabulary_of_other_words_is_refused(run: Path, tmp_path: Path) -> None:
    value = json.loads((run / "text/vocabulary.json").read_text())
    value["settings"]["stop_words"] = []
    publish_json(tmp_path / "vocabulary.json", value)
    arguments = list(given(run, "test"))
    arguments[arguments.index("--vocabulary") + 1] = tmp_path / "vocabulary.json"
    with pytest.raises(IntegrityError, match="other words by .*vocabulary.json than vectors"):
        run_command("align", *arguments, "--output", tmp_path / "test.jsonl")
    assert not (tmp_path / "test.jsonl").exists()


def test_half_a_file_of_alignments_is_refused_and_found(run: Path, tmp_path: Path) -> None:
    """Snippets that are cut off are not learned from; the drawing beside them has a commit, too."""
    path = tmp_path / "test.jsonl"
    run_command("align", *given(run, "test"), "--output", path)
    segments, sidecar = read_alignments(path)
    assert len(segments) == sidecar.rows == 16 and segments == [
        json.loads(line) for line in path.read_text().splitlines()
    ]
    assert (sidecar.details["model"], sidecar.details["split"]) == ("words", "test")
    assert sidecar.details["inputs"]["manifest"] == Manifest(run / "manifest").fingerprint
    assert not examine(tmp_path).faults
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:8]))
    with pytest.raises(IntegrityError, match=r"test\.jsonl is damaged: it does not match its sidecar"):
        read_alignments(path)
    (tmp_path / "test.png").write_bytes(b"")
    assert {fault.path.name for fault in examine(tmp_path).faults} == {"test.jsonl", "test.png"}
    (tmp_path / "test.jsonl.json").unlink()
    with pytest.raises(IntegrityError, match=r"test\.jsonl\.json does not exist"):
        read_alignments(path)


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"words": []}', b'{"sentence_id": -1}', b"NaN", b"[" * 9999])
def test_a_line_that_is_no_segment_is_named(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    publish(path, b"\n" + line, kind=ALIGNMENTS, rows=1, fingerprint="f")
    with pytest.raises(IntegrityError, match=r"x\.jsonl,? line 2 is not"):
        read_alignments(path)
    publish(path, b"", kind=ALIGNMENTS, rows=1, fingerprint="f")
    with pytest.raises(IntegrityError, match=r"x\.jsonl has 0 segments, its commit says 1"):
        read_alignments(path)


def test_a_vocabulary_of_another_fingerprint_is_refused(run: Path, tmp_path: Path) -> None:
    value = json.loads((run / "text/vocabulary.json").read_text())
    publish_json(tmp_path / "vocabulary.json", {**value, "fingerprint": "another"})
    arguments = list(given(run, "test"))
    arguments[arguments.index("--vocabulary") + 1] = tmp_path / "vocabulary.json"
    with pytest.raises(IntegrityError, match=r"vocabulary of .*vocabulary\.json and of .*embeddings/words differ"):
        run_command("align", *arguments, "--output", tmp_path / "test.jsonl")
