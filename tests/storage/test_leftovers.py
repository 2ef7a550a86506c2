"""What a finished run removes: its own stale shards, proven to be that, and nothing of a user's."""

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.storage.atomic import publish, publish_json
from pipeline.storage.checkpoints import Checkpoints
from pipeline.storage.demo_folder import DemoFolder
from pipeline.storage.leftovers import remove_leftovers
from pipeline.storage.locks import hold, lock_path

SHARDS = 2


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run whose manifest counts SHARDS shards."""
    run = tmp_path / "results" / "holiday"
    about = {"counts": {}, "splits": {"train": 4 * SHARDS}, "rejects": "", "contents": ["c"] * SHARDS}
    value = {"fingerprint": "m", "root": str(tmp_path), "shard_size": 4, "shards": SHARDS, **about}
    publish_json(run / "manifest" / "manifest.json", value)
    return run


def put(path: Path) -> Path:
    publish(path, b"a shard of ours", kind="thing", rows=1, fingerprint="f")
    return path


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


FOLDERS = ["features/net", "text/documents/all/tfidf", "moments/study/auxiliary/all"]  # fmt: skip


@pytest.mark.parametrize("folder", FOLDERS)
def test_stale_shards_go_with_their_commits(run: Path, folder: str) -> None:
    for number in range(4):
        put(run / folder / f"shard-{number:05d}.h5")
    assert not remove_leftovers(run)
    assert files(run / folder) == {f"shard-{n:05d}.h5{end}" for n in range(SHARDS) for end in ("", ".json")}


def test_a_users_files_stay_whatever_they_are_called(run: Path) -> None:
    """Tars of a collection that lies in the run's folder, and files that only look like ours."""
    names = ["shard-00000.tar", "shard-00007.tar", "shard-1abc.txt", "shard-99999", "photographs/shard-00009.h5"]
    names += ["features/net/shard-00008.h5", "features/net/shard-1abc.h5", "features/net/shard-00008.txt"]
    names += ["features/net/shard-00009.h5.parts/mine.h5", "features/deep/er/shard-00009.h5"]
    for name in names:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(b"a photograph")
    put(run / "photographs/shard-00010.h5")  # ours by its commit, but in no folder of a run
    before = files(run)
    (warning,) = remove_leftovers(run)
    assert files(run) == before
    assert "shard-00008.h5" in warning and warning.startswith("2 files such as")


def test_nothing_goes_through_a_link(run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    put(elsewhere / "net/shard-00005.h5")
    (run / "embeddings").symlink_to(elsewhere)
    (run / "features").mkdir()
    (run / "features/net").symlink_to(elsewhere / "net")
    (run / "text/tfidf").mkdir(parents=True)
    for ending in ("", ".json"):
        (run / f"text/tfidf/shard-00005.h5{ending}").symlink_to(elsewhere / f"net/shard-00005.h5{ending}")
    before = files(tmp_path)
    remove_leftovers(run)
    assert files(tmp_path) == before


def test_locks_of_the_dead_go_and_a_users_files_stay(run: Path) -> None:
    dead, mine, empty = run / "models/.ncca.lock", run / "models/.poetry.lock", run / "models/.sae.lock"
    dead.parent.mkdir()
    dead.write_text(json.dumps({"host": "h", "pid": 1, "command": "c", "since": "s"}))
    mine.write_text("important")
    empty.touch()
    with hold(run / "models/held"):
        assert not remove_leftovers(run)
        assert lock_path(run / "models/held").exists()
    assert files(run / "models") == {".poetry.lock"} and mine.read_text() == "important"


def test_the_end_of_a_training_removes_its_checkpoints_alone(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", "f", 0)
    mine = {"step-best.safetensors", "notes.txt", "step-1.safetensors"}
    for step in range(2):
        checkpoints.offer(lambda step=step: ({"w": np.zeros(3)}, {"step": step}))
        for name in mine:
            (checkpoints.folder / name).write_text("precious")
    assert checkpoints.latest().settings == {"step": 1}
    checkpoints.clear()
    assert files(checkpoints.folder) == mine


def test_a_demo_leaves_photographs_that_are_not_its_own(tmp_path: Path) -> None:
    demo = DemoFolder(tmp_path / "demo", 1, {})
    demo.claim()
    (demo.folder / "images/scene-00001.jpg").write_bytes(b"of a larger demo")
    mine = {"images/scene-mine.jpg", "images/weak-end.jpg", "images/scene-00002.jpg.bak"}
    for name in mine:
        (demo.folder / name).write_bytes(b"precious")
    demo.add("scene-00000.jpg", b"a drawing")
    demo.commit({})
    assert files(demo.folder) == mine | {"images/scene-00000.jpg", "demo.json", ".jointspace-demo"}
