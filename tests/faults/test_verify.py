"""`verify`: whatever is wrong with a run is listed, with what makes it anew."""

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest
import tiny_run
import yaml
from click.testing import CliRunner
from made_up import retell
from pipeline.storage.glance import glance

from pipeline.errors import IntegrityError
from pipeline.storage import commits, reading
from pipeline.storage.atomic import publish_json, read_json
from pipeline.storage.integrity import examine
from pipeline.storage.locks import hold
from stages.operations.verify import command

UNVOUCHED = ["config.yaml", "summary.md"]
"""What a run has for people, without a checksum."""


def faults_of(run: Path) -> dict[str, str]:
    return {fault.path.relative_to(run).as_posix(): fault.reason.partition(":")[0] for fault in examine(run).faults}


def test_a_whole_run_has_no_fault_and_everything_is_vouched_for(run: Path) -> None:
    found = examine(run)
    assert not found.faults and not found.temporaries
    assert [path.name for path in found.unvouched] == UNVOUCHED
    files = [path for path in run.rglob("*") if path.is_file()]
    # Each file is hashed or, being a commit, carries its own check; JSON of a bundle is its card's business.
    assert found.checked >= len(files) - 4


SHARD, PART = "features/colour/shard-00001.h5", "features/colour/parts/00001.json"
FAULTS = {
    "truncated": lambda run: os.truncate(run / SHARD, 100),
    "changed": lambda run: (run / SHARD).write_bytes(bytes((run / SHARD).stat().st_size)),
    "missing": lambda run: (run / SHARD).unlink(),
    "uncommitted": lambda run: (run / f"{SHARD}.json").unlink(),
    "damaged": lambda run: os.truncate(run / f"{SHARD}.json", 50),
}


@pytest.mark.parametrize("reason", FAULTS)
def test_each_fault_of_a_shard_is_told_from_the_others(reason: str, run: Path) -> None:
    FAULTS[reason](run)
    name = f"{SHARD}.json" if reason == "damaged" else SHARD
    found = {fault.path.relative_to(run).as_posix(): fault for fault in examine(run).faults}
    fault = found.pop(name)
    assert (fault.reason.partition(":")[0], fault.target) == (reason, run / PART)
    # Where the commit is gone, what was made from the shard is no longer of this run either.
    assert {other.reason.partition(":")[0] for other in found.values()} <= {"mixed"}
    assert set(found) <= {"embeddings/ncca/shard-00001.h5", "moments/target/shard-00001.h5", PART}
    assert (PART in found) == (reason in ("uncommitted", "damaged"))


def test_a_study_lists_its_cells_by_what_they_measure(run: Path) -> None:
    publish_json(run / "study/cells/ab12.json", {"chosen": {}})
    publish_json(run / "study/study.json", {"files": {'{"model": "ncca"}': ["ab12.json"]}, "setting": {}})
    assert not faults_of(run)


def test_a_shard_that_is_gone_with_its_sidecar_is_missed(run: Path) -> None:
    for name in (SHARD, f"{SHARD}.json"):
        (run / name).unlink()
    found = faults_of(run)
    assert (found[SHARD], found[PART]) == ("missing", "mixed")


def test_a_part_lists_the_shards_that_are_here(run: Path) -> None:
    """A part of other shards than there are, and one whose shards are all gone."""
    path = run / "text/tokens/parts/00002.json"
    publish_json(path, {**read_json(path), "shards": {"2": "of another time"}})
    publish_json(path.with_name("00003.json"), {"fingerprint": "f", "shards": {"3": "a", "4": "b"}})
    found = {fault.path.relative_to(run).as_posix(): fault for fault in examine(run).faults}
    assert {name: fault.reason for name, fault in found.items()} == {
        "text/tokens/parts/00002.json": "mixed: shard 2 is not the one that it lists",
        "text/tokens/parts/00003.json": "mixed: shard 3 is not the one that it lists",
    }
    assert all(fault.target == fault.path for fault in found.values())


@pytest.mark.parametrize("shards", [3, ["0"], {"x": "f"}, {"9" * 5000: "f"}, {"\u00b2": 1}])
def test_a_part_of_another_form_lists_nothing(shards: object, run: Path) -> None:
    publish_json(run / PART, {"fingerprint": "f", "shards": shards})
    assert not faults_of(run)


def swap_folders(one: Path, other: Path) -> None:
    """The parameters of each in the place of the other's."""
    for name in ("model.safetensors", "model.json"):
        aside = one / f"{name}.aside"
        os.rename(one / name, aside)
        os.rename(other / name, one / name)
        os.rename(aside, other / name)


MOVED = {
    "a model and an encoder": (
        lambda run: swap_folders(run / "models/ncca", run / "encoders/colour"),
        {"models/ncca/model.safetensors", "encoders/colour/model.safetensors"},
    ),
    "a model and a text encoder": (
        lambda run: swap_folders(run / "models/ncca", run / "text/encoders/tfidf"),
        {"models/ncca/model.safetensors", "text/encoders/tfidf/model.safetensors"},
    ),
    "a part's commit": (
        lambda run: shutil.copy(run / PART, (run / PART).with_name("00002.json")),
        {PART, "features/colour/parts/00002.json"},
    ),
    "a part's commit over an earlier one": (
        lambda run: shutil.copy(run / "embeddings/ncca/parts/00001.json", run / "embeddings/ncca/parts/00000.json"),
        {"embeddings/ncca/parts/00000.json", "embeddings/ncca/parts/00001.json"},
    ),
    "the manifest": (lambda run: (run / "manifest/manifest.json").unlink(), {"manifest/manifest.json"}),
}


@pytest.mark.parametrize("what", MOVED)
def test_what_is_in_another_place_or_gone_is_found_and_remade(what: str, run: Path) -> None:
    disturb, places = MOVED[what]
    disturb(run)
    faults = {fault.path.relative_to(run).as_posix(): fault for fault in examine(run).faults}
    assert places <= set(faults)
    assert {faults[name].reason.partition(":")[0] for name in places} <= {"misplaced", "missing"}
    assert all(faults[name].target for name in places)


def test_a_glance_misses_no_manifest(run: Path) -> None:
    (run / "manifest/manifest.json").unlink()
    assert [fault.path for fault in glance(run).faults] == [run / "manifest/manifest.json"]


def test_artefacts_of_something_else_are_mixed(run: Path) -> None:
    retell(run / "text/encoders/tfidf/model.json", "fingerprint", value="another")
    found = faults_of(run)
    assert found["text/tfidf/shard-00000.h5"] == found["models/ncca/model.json"] == "mixed"
    assert found["index/ncca/card.json"] == "mixed" and "features/colour/shard-00000.h5" not in found


@pytest.mark.parametrize("reason", [*FAULTS, "whole"])
def test_a_glance_finds_what_is_not_there_and_hashes_nothing(
    reason: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "file_sha256", None)
    FAULTS.get(reason, lambda run: None)(run)
    found = {fault.path.relative_to(run).as_posix(): fault for fault in glance(run).faults}
    seen = {"missing", "uncommitted"}  # of shards it looks at names alone
    assert set(found) == ({SHARD.removesuffix(".h5")} if reason in seen else set())
    assert all(fault.target == run / PART for fault in found.values())
    result = CliRunner().invoke(command, [str(run), "--quick"])
    assert bool(result.exception) == (reason in seen)


@pytest.mark.parametrize(
    "name", ["models/ncca/model.safetensors", "index/ncca/images.faiss", "manifest/shards/00001.images.parquet"]
)
def test_a_glance_misses_no_file_of_other_commits(name: str, run: Path) -> None:
    os.rename(run / name, run.parent / "aside")
    assert [fault.path for fault in glance(run).faults] == [run / name]


def test_shards_of_another_manifest_are_mixed(run: Path, collection: Path, tmp_path: Path) -> None:
    root = tiny_run.copy_collection(collection, tmp_path / "data")
    lines = (root / "captions.tsv").read_text().splitlines()
    (root / "captions.tsv").write_text("\n".join(["00.png\t0\tnothing", *lines[1:]]) + "\n")
    tiny_run.call("ingest", tiny_run.stages(root, run)["ingest"][0][0])
    found = faults_of(run)
    assert found["text/tfidf/shard-00000.h5"] == found["embeddings/ncca/shard-00000.h5"] == "mixed"
    assert "text/tfidf/shard-00001.h5" not in found and SHARD not in found


def test_a_manifests_parts_belong_together(run: Path) -> None:
    value = read_json(run / "manifest/shards/00001.json")
    publish_json(run / "manifest/shards/00001.json", {**value, "splits": "others"})
    (run / "manifest/rejects.jsonl").write_text("")
    found = examine(run).faults
    assert {fault.target for fault in found if "manifest" in fault.path.relative_to(run).parts} == {
        run / "manifest/manifest.json"
    }


def test_an_input_that_is_gone_altogether_is_no_fault(run: Path) -> None:
    shutil.rmtree(run / "features")
    assert faults_of(run) == {}


def test_a_bundles_files_are_its_cards(run: Path) -> None:
    (run / "index/ncca/images.faiss").unlink()
    os.truncate(run / "index/ncca/model.json", 10)
    found = examine(run).faults
    assert {fault.path.name for fault in found} == {"images.faiss", "model.json"}
    assert {fault.target for fault in found} == {run / "index/ncca/card.json"}


def test_the_cells_of_a_study_are_commits_that_it_lists(run: Path) -> None:
    for name in ("0.json", "1.json"):
        publish_json(run / "study/cells" / name, {"ranks": [1, 2]})
    publish_json(run / "study/study.json", {"files": {"first": ["0.json"], "second": ["1.json", "0.json"]}})
    assert faults_of(run) == {}
    (run / "study/cells/0.json").unlink()
    os.truncate(run / "study/cells/1.json", 5)
    assert faults_of(run) == {"study/cells/0.json": "missing", "study/cells/1.json": "damaged"}


def test_the_command_names_what_makes_it_anew(run: Path) -> None:
    (run / "config.yaml").write_text(yaml.safe_dump({"results_root": "results", "name": "tiny"}))
    assert CliRunner().invoke(command, [str(run)]).exit_code == 0
    os.truncate(run / SHARD, 7)
    result = CliRunner().invoke(command, [str(run)])
    assert f"{run / SHARD}: truncated: 7 of " in result.stdout
    assert isinstance(result.exception, IntegrityError) and result.exception.exit_code == 1
    rebuild = shlex.split(str(result.exception).partition("make them anew: ")[2])
    assert rebuild == (
        f"snakemake all --cores 2 --configfile results/tiny/config.yaml --forcerun results/tiny/{PART}".split()
    )


def test_temporaries_of_the_dead_are_listed_and_swept(run: Path) -> None:
    dead, living = run / "models/ncca/.model.json.tmp.999999999", run / f"text/.tokens.json.tmp.{os.getppid()}"
    for path in (dead, living):
        path.write_text("half of it")
    shown = CliRunner().invoke(command, [str(run)])
    assert shown.exit_code == 0 and f"{dead}: temporary, left by a dead writer" in shown.stdout
    assert f"{living}: temporary, being written" in shown.stdout and dead.exists()
    CliRunner().invoke(command, [str(run), "--sweep"], catch_exceptions=False)
    assert not dead.exists() and living.exists()


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="holds no artefact; give the folder of a run"):
        examine(tmp_path)


def test_locks_are_told_from_artefacts_and_swept_when_free(run: Path) -> None:
    free = run / "models/.ncca.lock"
    free.write_text(json.dumps({"host": "of a holder", "pid": 1, "command": "that was killed", "since": "then"}))
    with hold(run / "index/ncca"):
        held = run / "index/.ncca.lock"
        found = examine(run)
        assert not found.faults and found.temporaries == {held: False, free: True}
        assert [path.name for path in found.unvouched] == UNVOUCHED
        output = CliRunner().invoke(command, [str(run), "--sweep"], catch_exceptions=False).output
        assert f"{held}: temporary, being written" in output and f"{free}: temporary, removed" in output
        assert held.exists() and not free.exists()


def test_what_is_behind_a_link_is_a_fault(run: Path, tmp_path: Path) -> None:
    """Features on another disk, one changed: verify follows no link, and says so."""
    (run / "features").rename(tmp_path / "features")
    (run / "features").symlink_to(tmp_path / "features")
    (run / "text/tokens/shard-00000.h5").unlink()
    (run / "text/tokens/shard-00000.h5").symlink_to(run / "text/tokens/shard-00001.h5")
    found = {(fault.path.relative_to(run).as_posix(), fault.reason) for fault in examine(run).faults}
    reason = "unread: it is a link; put the file or folder itself here"
    assert {("features", reason), ("text/tokens/shard-00000.h5", reason)} <= found
    result = CliRunner().invoke(command, [str(run)])
    assert f"{run}/features: unread: it is a link" in result.stdout and result.exception.exit_code == 1


def test_a_pipe_is_a_fault_and_keeps_nobody_waiting(run: Path) -> None:
    os.mkfifo(run / "features/colour/pipe.json")
    os.mkfifo(run / "text/pipe")
    found = {fault.path.name: fault.reason for fault in examine(run).faults}
    assert found == dict.fromkeys(("pipe", "pipe.json"), "unread: it is a pipe; put the file or folder itself here")


def test_a_folder_that_may_not_be_read_is_a_fault(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another user than root, whose answer is made up here."""
    scan = os.scandir

    def forbidden(path: os.PathLike) -> object:
        if Path(path) == run / "features/colour":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(reading.os, "scandir", forbidden)
    (fault,) = (fault for fault in examine(run).faults if fault.target is None)
    assert fault.path == run / "features/colour" and "permission denied" in fault.reason
    result = CliRunner().invoke(command, [str(run)])
    assert result.exception.exit_code == 1 and "features/colour: unread: cannot read" in result.stdout


def test_where_nothing_can_be_made_anew_the_remedy_is_another(run: Path) -> None:
    (run / "link").symlink_to("nowhere")
    result = CliRunner().invoke(command, [str(run)])
    assert str(result.exception) == (
        f"1 files of {run} are not as they were written; see to the links and permissions above"
    )


@pytest.mark.parametrize("files", [["a"], "a", 3, {"a": 3}, {"a": {"sha256": 3}}, {"a": {"sha256": "x", "bytes": "y"}}])
@pytest.mark.parametrize("name", ["index/ncca/card.json", "new.json"])
def test_a_card_of_another_form_is_a_fault(files: object, name: str, run: Path) -> None:
    publish_json(run / name, {"files": files})
    found = {fault.path for fault in examine(run).faults}
    assert found & {run / name, (run / name).with_name("a")}


def test_rows_whose_names_end_as_folders_of_work_are_examined(run: Path) -> None:
    for row in ("mycheckpoints", "checkpoints.parts-of-mine"):
        (run / "embeddings" / row).mkdir()
        (run / "embeddings" / row / "x.h5").write_text("no sidecar")
    for folder in ("models/ncca/checkpoints", "features/colour/shard-00000.h5.parts"):
        (run / folder).mkdir()
        (run / folder / "x.h5").write_text("a stage's business")
    (run / ".cache").mkdir()
    (run / ".cache/x").write_text("")
    found = examine(run)
    assert {fault.path.parent.name for fault in found.faults} == {"mycheckpoints", "checkpoints.parts-of-mine"}
    assert {path.parent.name for path in found.unfinished} == {"checkpoints", "shard-00000.h5.parts"}
    assert run / ".cache/x" in found.unvouched


def test_a_file_with_more_bytes_than_were_written_is_changed(run: Path) -> None:
    with open(run / SHARD, "ab") as file:
        file.write(b"x")
    assert faults_of(run)[SHARD] == "changed"
