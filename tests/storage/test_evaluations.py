"""Evaluations and their summary: of one run, each model of one set of embeddings."""

import os
from pathlib import Path

import pytest

from pipeline.errors import IntegrityError
from pipeline.storage.commit import publish_record
from pipeline.storage.evaluations import read_evaluations, read_summary, write_summary

SCORES = {"recall@1": 1.0, "recall@5": 1.0, "recall@10": 1.0, "median_rank": 1, "mean_rank": 1.0}


def evaluation(model: str = "ncca", split: str = "test") -> dict:
    both = dict.fromkeys(("image_to_sentence", "sentence_to_image"), SCORES)
    about = {"model": model, "split": split, "protocol": "all-sentences", "n_images": 1, "n_sentences": 5}
    return {**about, **both}


def write(folder: Path, *values: dict) -> list[Path]:
    paths = [folder / f"{value['model']}.{value['split']}.{value['protocol']}.json" for value in values]
    for path, value in zip(paths, values, strict=True):
        publish_record(path, value)
    return paths


def test_the_summary_comes_back(tmp_path: Path) -> None:
    values = read_evaluations(write(tmp_path, evaluation(), evaluation(split="dev"), evaluation("sae")))
    write_summary(tmp_path / "summary.json", values, "| a |\n")
    assert read_summary(tmp_path / "summary.json") == values
    assert (tmp_path / "summary.md").read_text() == "| a |\n"


def test_another_model_s_evaluation_is_refused_by_its_name(tmp_path: Path) -> None:
    (path, other) = write(tmp_path, evaluation(), evaluation("sae"))
    other.replace(path)
    with pytest.raises(IntegrityError, match=r"ncca\.test\.all-sentences\.json is misplaced"):
        read_evaluations([path])


def test_what_is_no_evaluation_or_half_a_summary_is_refused(tmp_path: Path) -> None:
    (path,) = write(tmp_path, evaluation())
    value = {name: part for name, part in evaluation().items() if name != "n_images"}
    publish_record(tmp_path / "less.json", value)
    with pytest.raises(IntegrityError, match=r"less\.json has another form .*n_images: field required"):
        read_evaluations([tmp_path / "less.json"])
    (tmp_path / "bare.json").write_text("{}")
    with pytest.raises(IntegrityError, match=r"bare\.json"):
        read_evaluations([tmp_path / "bare.json"])
    summary = tmp_path / "summary.json"
    write_summary(summary, [evaluation(), evaluation("sae")], "")
    os.truncate(summary, summary.stat().st_size // 2)
    with pytest.raises(IntegrityError, match=r"summary\.json is truncated"):
        read_summary(summary)
    summary.with_name("summary.json.json").unlink()
    with pytest.raises(IntegrityError, match=r"summary\.json\.json does not exist"):
        read_summary(summary)
