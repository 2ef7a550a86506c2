"""Evaluations and their summary: of one run, each model of one set of embeddings."""

import os
from pathlib import Path

import pytest

from pipeline.errors import IntegrityError
from pipeline.storage.atomic import read_json
from pipeline.storage.commit import publish_record
from pipeline.storage.evaluations import read_evaluations, read_summary, write_summary

SCORES = {"recall@1": 1.0, "recall@5": 1.0, "recall@10": 1.0, "median_rank": 1, "mean_rank": 1.0}


def evaluation(model: str = "ncca", split: str = "test", embeddings: str = "e", manifest: str = "m") -> dict:
    both = dict.fromkeys(("image_to_sentence", "sentence_to_image"), SCORES)
    about = {"model": model, "split": split, "protocol": "all-sentences", "n_images": 1, "n_sentences": 5}
    return {**about, **both, "inputs": {"manifest": manifest, "embeddings/00000": embeddings}, "fingerprint": "f"}


def write(folder: Path, *values: dict) -> list[Path]:
    paths = [folder / f"{value['model']}.{value['split']}.{value['protocol']}.json" for value in values]
    for path, value in zip(paths, values, strict=True):
        publish_record(path, value)
    return paths


def test_the_summary_comes_back(tmp_path: Path) -> None:
    values = read_evaluations(write(tmp_path, evaluation(), evaluation(split="dev"), evaluation("sae", embeddings="x")))
    write_summary(tmp_path / "summary.json", values, "| a |\n")
    assert read_summary(tmp_path / "summary.json") == values
    assert (tmp_path / "summary.md").read_text() == "| a |\n"
    assert read_json(tmp_path / "summary.json.json")["details"]["inputs"] == {"manifest": "m"}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (evaluation(split="dev", manifest="n"), "manifest of .* differ"),
        (evaluation(split="dev", embeddings="x"), "embeddings of ncca of .* differ"),
    ],
)
def test_evaluations_of_two_runs_are_not_one_summary(other: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=said):
        read_evaluations(write(tmp_path, evaluation(), other))


def test_another_model_s_evaluation_is_refused_by_its_name(tmp_path: Path) -> None:
    (path, other) = write(tmp_path, evaluation(), evaluation("sae"))
    other.replace(path)
    with pytest.raises(IntegrityError, match=r"ncca\.test\.all-sentences\.json is of model sae, not of ncca"):
        read_evaluations([path])


def test_what_is_no_evaluation_or_half_a_summary_is_refused(tmp_path: Path) -> None:
    (path,) = write(tmp_path, evaluation())
    value = {name: part for name, part in read_json(path).items() if name not in ("check", "n_images")}
    publish_record(tmp_path / "less.json", value)
    with pytest.raises(IntegrityError, match=r"less\.json has another form .*n_images: field required"):
        read_evaluations([tmp_path / "less.json"])
    (tmp_path / "bare.json").write_text("{}")
    with pytest.raises(IntegrityError, match=r"bare\.json"):
        read_evaluations([tmp_path / "bare.json"])
    summary = tmp_path / "summary.json"
    write_summary(summary, [evaluation(), evaluation("sae")], "")
    os.truncate(summary, summary.stat().st_size // 2)
    with pytest.raises(IntegrityError, match=r"summary\.json is damaged"):
        read_summary(summary)
    summary.with_name("summary.json.json").unlink()
    with pytest.raises(IntegrityError, match=r"summary\.json\.json does not exist"):
        read_summary(summary)
