"""What a configuration names and is not here is said at once, before any job."""

from pathlib import Path

import pytest

from pipeline.config import loading
from pipeline.errors import UsageError
from pipeline.plan import machine
from pipeline.run import Run
from pipeline.storage.demo_folder import MARK
from stages.catalogue import declared
from stages.requirements import require_all

OWN = {"demo": {"generate": False}, "models": ["ncca"], "collection": {"format": "text-files"}}


def run_of(folder: Path, **values: object) -> Run:
    (folder / "photos").mkdir(exist_ok=True)
    values = {"data_root": str(folder / "photos"), "results_root": str(folder / "results"), **values}
    return Run(
        folder / "results/demo", loading.validate(loading.merge(loading.read_mapping(loading.default_path()), values))
    )


def test_all_that_is_missing_is_named_in_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    (tmp_path / "photos/vectors.npy.txt").touch()  # the names may lie here, too
    with pytest.raises(UsageError) as caught:
        require_all(run_of(tmp_path, **{**OWN, "encoders": encoders}), declared())
    assert "vectors" not in str(caught.value)


def test_what_is_made_needs_nothing_more(tmp_path: Path) -> None:
    run = run_of(tmp_path, **OWN, encoders=[{"name": "given", "kind": "imported", "path": "vectors.npy"}])
    with pytest.raises(UsageError, match=r"vectors\.npy"):
        require_all(run, declared())
    commits = [run.layout.encoder("given").commit, run.layout.features("given").part(0), run.layout.manifest.commit]
    for commit in commits:
        commit.parent.mkdir(parents=True, exist_ok=True)
        commit.touch()
    require_all(run, declared())


def test_the_demo_is_drawn_only_where_it_was_meant_to_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"data_root .*fotos .*did you mean .*photos.*demo: \{generate: false\}"):
        require_all(run_of(tmp_path, data_root=str(tmp_path / "fotos")), declared())
    require_all(run_of(tmp_path, data_root=str(tmp_path / "demo-collection")), declared())
    require_all(run_of(tmp_path, data_root=str(tmp_path / "fotos"), demo={"train": 30}), declared())
    (tmp_path / "photos" / MARK).touch()
    require_all(run_of(tmp_path), declared())
