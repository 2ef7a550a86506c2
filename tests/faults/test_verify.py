"""The command `verify` finds every kind of damage to a run, and prints a command that rebuilds the damaged files."""

import json
import os
import shlex
import shutil
from pathlib import Path
from random import Random

import damage
import pytest
import tiny_run
import yaml
from click.testing import CliRunner
from index_forgeries import forge_cell
from synthetic_run import retell

from pipeline.errors import IntegrityError
from pipeline.storage.commit import commit_path, publish
from pipeline.storage.index_shard import IndexShard
from pipeline.storage.locks import hold
from pipeline.storage.verify import examine, whole
from stages.operations.verify import verify as command

WITHOUT_COMMIT_RECORD = ["config.yaml"]
"""Files of a run that are not in any commit record."""
SHARD = "features/colour/shard-00001.h5"
"""A shard that the tests damage."""


def faults_of(run: Path) -> dict[str, str]:
    """Return the faulty files of a run, as relative path -> the reason up to its colon."""
    return {fault.path.relative_to(run).as_posix(): fault.reason.partition(":")[0] for fault in examine(run).faults}


def test_a_whole_run_has_no_fault_and_commit_records_for_all_files(run: Path) -> None:
    found = examine(run)
    assert not found.faults and not found.temporaries
    assert [path.name for path in found.unvouched if "index" not in path.parts] == WITHOUT_COMMIT_RECORD
    assert not examine(run, hashed=False).faults


# --- random damage


class DamagedRun:
    """A run whose files can be damaged and restored."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.sound = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        self.artefacts: dict[Path, list[Path]] = {}  # Path of each commit record -> its files.
        index_folders = {path.parent for path in self.sound if path.name == "card.json"}
        for path in sorted(path for path in self.sound if path.suffix == ".json"):
            value = json.loads(self.sound[path])
            inside_index = path.name != "card.json" and not index_folders.isdisjoint(path.parents)
            if isinstance(value, dict) and "files" in value and not inside_index:
                self.artefacts[path] = [path.parent / name for name in value["files"]]

    def damage(self, how: str, rng: Random) -> None:
        """Damage a random artefact. `how` is the kind of damage, one of KINDS."""
        commits = sorted(self.artefacts)
        commit = rng.choice(commits)
        other = rng.choice([path for path in commits if path.suffixes == commit.suffixes and path != commit] or commits)
        files, others = ([path for path in self.artefacts[one] if path.suffix != ".json"] for one in (commit, other))
        path = rng.choice([commit, *files])
        if how in damage.ALL:
            path.write_bytes(damage.ALL[how](self.sound[path], rng))
        elif how == "deleted":
            path.unlink()
        elif how == "artefacts exchanged":
            for one, two in zip([commit, *files], [other, *others], strict=False):
                swap_contents(one, two)
        elif how == "files exchanged" and files and others:
            swap_contents(files[0], others[0])
        elif how == "another's commit":
            shutil.copy(other, commit)
        elif how == "uncommitted":
            (commit.parent / f"left{rng.choice(['.h5', '.parquet', '.safetensors', '.faiss'])}").write_bytes(
                b"of nobody"
            )

    def restore(self) -> bool:
        """Restore all files, and return whether any file had other content than before or was added. A file that was
        deleted does not count."""
        changed = False
        for path in [path for path in self.run.rglob("*") if path.is_file() and path not in self.sound]:
            path.unlink()
            changed = True
        for path, data in self.sound.items():
            now = path.read_bytes() if path.exists() else None
            if now != data:
                path.write_bytes(data)
            changed |= now is not None and not same_content(now, data)  # A missing file cannot give a wrong answer.
        return changed


def swap_contents(one: Path, other: Path) -> None:
    """Swap the contents of two files."""
    first = one.read_bytes()
    second = other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def same_content(now: bytes, before: bytes) -> bool:
    """Return whether two files have the same content. The keys of JSON objects may be in another order."""
    if now == before or not before.startswith((b"{", b"[")):
        return now == before
    try:
        return json.loads(now) == json.loads(before)
    except ValueError:
        return False


KINDS = (*damage.ALL, "deleted", "files exchanged", "artefacts exchanged", "another's commit", "uncommitted")
"""Kinds of damage that `DamagedRun.damage` can do."""


@pytest.mark.parametrize(
    ("count", "seed"), [(3 * len(KINDS), 5), *(pytest.param(1000, seed, marks=pytest.mark.nightly) for seed in (2, 3))]
)
def test_random_damage_that_changes_a_file_is_found(run: Path, count: int, seed: int) -> None:
    rng = Random(seed)
    damaged = DamagedRun(run)
    found = 0
    for number in range(count):
        how = KINDS[number % len(KINDS)]
        damaged.damage(how, rng)
        faults = examine(run).faults
        changed = damaged.restore()
        assert faults or not changed, (number, how)
        found += bool(faults)
    assert found > 0.85 * count
    assert not examine(run).faults


# --- kinds of faults, and the command that repairs them


def test_shards_of_another_manifest_are_mixed(run: Path, collection: Path, tmp_path: Path) -> None:
    root = shutil.copytree(collection, tmp_path / "data")
    tiny_run.write_config(root)
    lines = (root / "captions.tsv").read_text().splitlines()
    (root / "captions.tsv").write_text("\n".join(["00.png\t0\tnothing", *lines[1:]]) + "\n")
    tiny_run.call("ingest", tiny_run.stages(root, run)["ingest"][0][0])
    found = faults_of(run)
    assert found["text/tfidf/shard-00000.h5.json"] == found["embeddings/ncca/shard-00000.h5.json"] == "mixed"
    assert "text/tokens/shard-00001.h5.json" not in found and f"{SHARD}.json" not in found
    values = yaml.safe_load((run / "config.yaml").read_text())
    values["text_encoders"] = [{"name": "words", "kind": "tf-idf"}]
    values |= {"results_root": str(run.parent), "name": run.name}
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    told = CliRunner().invoke(command, [str(run)])
    assert f"{run}/text/tfidf/shard-00000.h5.json: made with an earlier configuration" in told.stdout
    assert "text/tfidf" not in str(told.exception) and "embeddings/ncca" in str(told.exception)
    for line in told.stdout.splitlines():
        if "so you can delete it" in line:
            Path(line.partition(":")[0]).unlink()
    assert "uncommitted" not in faults_of(run).values()


def test_verify_prints_the_command_that_rebuilds_a_file(run: Path) -> None:
    (run / "config.yaml").write_text(yaml.safe_dump({"results_root": run.parent.name, "name": run.name}))
    assert CliRunner().invoke(command, [str(run)]).exit_code == 0
    os.truncate(run / SHARD, 7)
    result = CliRunner().invoke(command, [str(run)])
    assert f"{run / SHARD}: truncated: it has 7 of " in result.stdout
    assert isinstance(result.exception, IntegrityError) and result.exception.exit_code == 1
    for_programs = json.loads(CliRunner().invoke(command, [str(run), "--json"]).stdout.splitlines()[0])
    assert for_programs["checked"] == examine(run).checked
    assert str(run / SHARD) in [fault["path"] for fault in for_programs["faults"]]
    rebuild = shlex.split(str(result.exception).partition("To rebuild them, run: ")[2])
    place = f"{run.parent.name}/{run.name}"
    again = f"jointspace run {place}/config.yaml -- --forcerun {place}/features/colour/part-00001.json"
    assert rebuild == ["cd", str(run.parents[1]), "&&", *again.split()]
    copy = shutil.copytree(run, run.with_name("copy") / "inner", ignore=shutil.ignore_patterns("inner"))
    result = CliRunner().invoke(command, [str(copy)])
    assert f"made in {place}. Move it back" in str(result.exception)
    result = CliRunner().invoke(command, [str(copy.parent)])
    assert f"Did you mean {copy}?" in str(result.exception)


def test_a_copy_of_an_index_is_verified_without_its_run(run: Path, tmp_path: Path) -> None:
    """A copy of an index has no run, so `verify` names the damaged files, but no rule that makes them again."""
    (index,) = run.glob("index/*")
    copy = shutil.copytree(index, tmp_path / "copy")
    assert not examine(copy).faults and not examine(index).faults
    with open(copy / "images.faiss", "ab") as file:
        file.write(b"more")
    (copy / "stray.faiss").write_bytes(b"more")
    faults = examine(copy).faults
    assert [(fault.path.name, fault.target) for fault in faults] == [("images.faiss", None), ("stray.faiss", None)]
    with pytest.raises(IntegrityError, match="Copy them"):
        command.callback(copy, sweep=False, quick=False, as_json=True)


def test_a_row_that_search_refuses_is_a_fault(run: Path, tmp_path: Path) -> None:
    (index,) = run.glob("index/*")
    copy = shutil.copytree(index, tmp_path / "copy")
    forge_cell("images", "path", "Strand\\Ebbe.jpg")(copy, tmp_path)
    (fault,) = examine(copy).faults
    assert "images.parquet row 3" in fault.reason and "rename that photo and repeat `jointspace run`" in fault.reason
    added = tmp_path / "home/added/1-holiday"
    with pytest.raises(IntegrityError, match=f"rename that photo and delete {added} and add the photos again"):
        IndexShard(shutil.copytree(copy, added / "index/ncca")).check_rows()


def test_a_deleted_file_is_made_again_without_force(run: Path, collection: Path) -> None:
    for stage, name in [("import_vectors", SHARD), ("fit", "models/ncca/model.safetensors")]:
        content = (run / name).read_bytes()
        (run / name).unlink()
        calls, _ = tiny_run.stages(collection, run)[stage]
        tiny_run.call_all(stage, [[word for word in call if word != "--force"] for call in calls])
        assert (run / name).read_bytes() == content and name not in faults_of(run)


def test_temporary_files_and_locks_of_dead_processes_are_swept(run: Path) -> None:
    dead = run / "models/ncca/.model.json.tmp.999999999"
    living = run / f"text/.tokens.json.tmp.{os.getppid()}"
    free = run / "models/.ncca.lock"
    held = run / "index/.ncca.lock"
    for path in (dead, living):
        path.write_text("half of it")
    free.write_text(json.dumps({"host": "of a holder", "pid": 1, "command": "that was killed", "since": "then"}))
    with hold(run / "index/ncca"):
        found = examine(run)
        assert not found.faults and found.temporaries == {dead: True, living: False, free: True, held: False}
        shown = CliRunner().invoke(command, [str(run)])
        assert shown.exit_code == 0 and f"{dead}: temporary, the process that wrote this file has ended" in shown.stdout
        assert f"{living}: temporary, being written" in shown.stdout and dead.exists()
        CliRunner().invoke(command, [str(run), "--sweep"], catch_exceptions=False)
        assert [path.exists() for path in (dead, free, living, held)] == [False, False, True, True]


def test_a_lock_that_is_taken_during_the_sweep_is_kept(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `verify` has found a free lock, the lock is taken, and half of the new holder's description is in the lock
    file when the sweep begins. The sweep keeps the lock file."""
    lock = run / "index/.ncca.lock"
    lock.touch()
    found = examine(run)
    assert found.temporaries == {lock: True}
    with hold(run / "index/ncca"):
        lock.write_text('{"host": "of the ho')
        monkeypatch.setattr("pipeline.storage.verify.examine", lambda *_: found)
        CliRunner().invoke(command, [str(run), "--sweep"], catch_exceptions=False)
        assert lock.exists()


def test_commit_records_that_list_each_other_do_not_loop(run: Path) -> None:
    paths = [run / f"{SHARD}.json", run / "features/colour/part-00000.json"]
    for path, other in zip(paths, reversed(paths), strict=True):
        retell(
            path,
            "files",
            value={other.name: {"bytes": 9, "sha256": "0" * 64}, path.name: {"bytes": 9, "sha256": "0" * 64}},
        )
    assert {SHARD, f"{SHARD}.json"} <= faults_of(run).keys()
    assert {*whole(paths[0])} == {*paths}


def test_links_and_pipes_are_faults_and_are_not_read(run: Path, tmp_path: Path) -> None:
    """`examine` does not follow the link and does not wait for the pipe. A folder without commit records is refused."""
    (tmp_path / "empty").mkdir()
    (run / "features").rename(tmp_path / "features")
    (run / "features").symlink_to(tmp_path / "features")
    os.mkfifo(run / "text/pipe.json")
    found = {fault.path.relative_to(run).as_posix(): fault.reason for fault in examine(run).faults}
    assert found["features"].startswith("unread: it is a link")
    assert found["text/pipe.json"].startswith("unread: it is a pipe")
    with pytest.raises(IntegrityError, match="empty has no commit record"):
        examine(tmp_path / "empty")


def test_unfinished_work_of_a_stage_is_not_a_fault(run: Path) -> None:
    for folder in ("models/ncca/checkpoints", "features/colour/shard-00000.h5.parts"):
        (run / folder).mkdir()
        (run / folder / "x.h5").write_text("of a stage")
    publish(run / "models/ncca/other.h5", b"x", kind="k", rows=1)
    commit_path(run / "models/ncca/other.h5").unlink()
    found = examine(run)
    assert [(fault.path.name, fault.reason.partition(":")[0]) for fault in found.faults] == [
        ("other.h5", "uncommitted")
    ]
    assert {path.parent.name for path in found.unfinished} == {"checkpoints", "shard-00000.h5.parts"}
