"""Tests which show that missing files, extras and splits are reported before the first job of a run."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from PIL import Image
from synthetic_run import CONFIG

from pipeline.config import loading
from pipeline.errors import InputError, UsageError
from pipeline.run import Run, machine
from pipeline.run.reading.requirements import require_all, require_splits
from pipeline.run.runner import run_stage
from pipeline.storage.demo_folder import MARK
from stages.catalogue import declared
from stages.collections.ingest import ingest

OWN = {"demo": {"generate": False}, "models": ["ncca"], "collection": {"format": "text-files"}}


def run_of(folder: Path, **values: object) -> Run:
    (folder / "photos").mkdir(exist_ok=True)
    values = {"data_root": str(folder / "photos"), "results_root": str(folder / "results"), **values}
    return Run(
        folder / "results/demo", loading.validate(loading.merge(loading.read_mapping(loading.default_path()), values))
    )


def test_all_missing_inputs_are_named_in_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "is_installed", lambda module: module != "timm")
    encoders = [
        {"name": "own", "architecture": "squeezenet1_1", "weights": "file", "file": str(tmp_path / "w.safetensors")},
        {"name": "library", "kind": "timm", "architecture": "resnet18", "weights": "untrained"},
        {"name": "given", "kind": "imported", "path": "vectors.npy"},
    ]
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/vectors.npy").touch()
    collection = {**OWN["collection"], "takedown": str(tmp_path / "gone.txt")}
    with pytest.raises(UsageError) as caught:
        require_all(run_of(tmp_path, **{**OWN, "encoders": encoders, "collection": collection}), declared())
    said = str(caught.value)
    for name in ("w.safetensors", "jointspace[timm]", "photos/vectors.txt", "gone.txt"):
        assert said.count(name) == 1, name
    assert "vectors.npy" not in said
    weights = f"reads {tmp_path / 'w.safetensors'}, which does not exist. Put the file there, or correct weights_root"
    assert weights in said and "The encoder library needs timm. Install it with `pip install" in said
    (tmp_path / "photos/vectors.npy.txt").touch()  # The names of the vectors may be in this file instead.
    with pytest.raises(UsageError) as caught:
        require_all(run_of(tmp_path, **{**OWN, "encoders": encoders}), declared())
    assert "vectors" not in str(caught.value)


def test_finished_artefacts_need_no_inputs(tmp_path: Path) -> None:
    run = run_of(tmp_path, **OWN, encoders=[{"name": "given", "kind": "imported", "path": "vectors.npy"}])
    with pytest.raises(UsageError, match=r"vectors\.npy"):
        require_all(run, declared())
    commits = [
        run.layout.encoder("given").commit,
        run.layout.features("given").part_record(0),
        run.layout.manifest.commit,
    ]
    for commit in commits:
        commit.parent.mkdir(parents=True, exist_ok=True)
        commit.touch()
    require_all(run, declared())


def test_the_demo_is_not_written_into_a_folder_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"fotos does not exist. Did you mean .*photos.*demo: \{generate: false\}"):
        require_all(run_of(tmp_path, data_root=str(tmp_path / "fotos")), declared())
    require_all(run_of(tmp_path, data_root=str(tmp_path / "demo-collection")), declared())
    require_all(run_of(tmp_path, data_root=str(tmp_path / "fotos"), demo={"train": 30}), declared())
    (tmp_path / "photos" / MARK).touch()
    require_all(run_of(tmp_path), declared())


@pytest.mark.parametrize(
    ("models", "evaluated", "splits", "missing"),
    [
        (["ncca"], ["dev", "test"], ["train", "dev", "test", "gallery"], None),
        (["ncca"], ["dev", "test"], ["gallery", "weak"], None),  # Without captions, no model is made or evaluated.
        (["ncca"], ["dev", "test"], ["train", "dev"], "test"),
        (["ncca"], ["test"], ["train", "test"], "dev"),  # Parameters are chosen on dev.
        (["ncca"], ["train"], ["dev"], "train"),
        (["both"], ["dev"], ["dev"], "train"),
        (["zero-shot"], ["test"], ["test"], None),
        (["zero-shot"], ["test"], ["dev"], "test"),
    ],
)
def test_splits_that_models_and_evaluations_need_must_have_captions(
    tmp_path: Path, models: list[str], evaluated: list[str], splits: list[str], missing: str | None
) -> None:
    config = run_of(
        tmp_path, models=models, evaluate={"splits": evaluated}, ensembles={"both": {"members": ["ncca", "zero-shot"]}},
        encoders=[{"name": "images", "kind": "imported", "path": "images.npy"}],
        text_encoders=[{"name": "texts", "kind": "imported", "imported": {"path": "texts.npy"}}],
    ).config  # fmt: skip
    with nullcontext() if missing is None else pytest.raises(InputError, match=f"the split {missing} has no photo"):
        require_splits(config, dict.fromkeys(splits, 40))


@pytest.mark.parametrize(
    ("splits", "draw", "remedies"),
    [
        ({"train": 40, "dev": 4}, [], ["list of splits", "draw: [test]", "evaluate.splits"]),
        ({"train": 40, "dev": 4}, ["test"], ["list of splits", "evaluate.splits"]),
        ({"train": 40, "test": 4}, [], ["list of splits", "draw: [dev]"]),
        ({"train": 4}, [], ["list of splits"]),
        ({"dev": 40}, [], ["list of splits"]),
    ],
)
def test_a_missing_split_comes_with_the_remedies_that_help(
    tmp_path: Path, splits: dict[str, int], draw: list[str], remedies: list[str]
) -> None:
    config = run_of(tmp_path, **{**OWN, "collection": {"draw": draw}}, encoders=CONFIG["encoders"]).config
    with pytest.raises(InputError) as caught:
        require_splits(config, splits)
    every = ["list of splits", "draw: [test]", "draw: [dev]", "draw: [dev, test]", "evaluate.splits"]
    assert [remedy for remedy in every if remedy in str(caught.value)] == remedies


def test_a_split_for_a_later_stage_is_missed_before_any_job(tmp_path: Path) -> None:
    own = {"models": ["ncca"], "demo": {"generate": False}, "encoders": CONFIG["encoders"]}
    run = run_of(tmp_path, **own, evaluate={"splits": ["dev"]})
    for number in range(12):
        colour = (20 * number, 0, 0)
        Image.new("RGB", (30, 20), colour).save(tmp_path / f"photos/{number}.png")
    (tmp_path / "photos/captions.tsv").write_text("".join(f"{number}.png\t0\ta dog\n" for number in range(12)))
    (tmp_path / "photos/splits.tsv").write_text(
        "".join(f"{number}.png\t{'dev' if number > 9 else 'train'}\n" for number in range(12))
    )
    run_stage(run, ingest)
    require_all(run, declared())
    with pytest.raises(InputError, match="the split test has no photo"):
        require_all(run_of(tmp_path, **own, evaluate={"splits": ["dev", "test"]}), declared())
