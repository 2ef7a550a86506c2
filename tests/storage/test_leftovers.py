"""What a finished run removes: its own stale shards, proven to be that, and nothing of a user's."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pipeline.storage.leftovers import remove_leftovers, remove_stale_shards

from pipeline.errors import JointspaceError, UsageError
from pipeline.run.layout import Shards
from pipeline.run.runner import commit_part
from pipeline.storage.atomic import publish_json
from pipeline.storage.checkpoints import Checkpoints
from pipeline.storage.commit import commit_path, publish
from pipeline.storage.demo_folder import DemoFolder
from pipeline.storage.locks import hold, lock_path
from pipeline.storage.manifest import BOXES, DOCUMENTS, IMAGES, SENTENCES
from pipeline.storage.manifest_writer import write_manifest
from pipeline.storage.rejects import remove_rejects, write_rejects

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


FOLDERS = [
    "features/net", "regions/net", "embeddings/gone", "text/tfidf", "text/tokens", "text/trees",
    "text/documents/all/tfidf", "moments/target", "moments/dev", "moments/auxiliary/all",
    "moments/study/target", "moments/study/auxiliary/all",
]  # fmt: skip


@pytest.mark.parametrize("folder", FOLDERS)
def test_stale_shards_go_with_their_commits(run: Path, folder: str) -> None:
    for number in range(4):
        put(run / folder / f"shard-{number:05d}.h5")
    assert not remove_leftovers(run)
    assert files(run / folder) == {f"shard-{n:05d}.h5{end}" for n in range(SHARDS) for end in ("", ".json")}


def test_parses_and_parts_go_too(run: Path) -> None:
    for number in (1, 2):
        for ending in ("conllu", "brackets"):
            put(run / f"text/parses/shard-{number:05d}.{ending}")
        put(run / f"features/net/shard-{number:05d}.h5.parts/0000000.h5")
    assert not remove_leftovers(run)
    assert {name for name in files(run / "text/parses") if "00002" in name} == set()
    assert [path.name for path in (run / "features/net").iterdir()] == ["shard-00001.h5.parts"]


def put_parts(folder: Path, *parts: range) -> None:
    """Shards, and the commits of these parts of them."""
    for number, shards in enumerate(parts):
        for shard in shards:
            put(folder / f"shard-{shard:05d}.h5")
        commit_part(Shards("features/net", folder), number, shards)


def test_parts_go_of_which_the_manifest_has_no_shard(run: Path) -> None:
    put_parts(run / "features/net", range(1), range(1, 3), range(3, 5))
    (run / "features/net/parts/mine.json").write_text("{}")
    (run / "features/net/parts/00007.json").write_text("mine, too")
    (run / "features/net/parts/00008.json").write_text('{"shards": {"9": "a list of my shards"}}')
    shutil.copy(run / "features/net/parts/00002.json", run / "features/net/parts/copy of 00002.json")
    mine = {"mine.json", "00007.json", "00008.json", "copy of 00002.json"}
    assert not remove_leftovers(run)
    assert files(run / "features/net/parts") == {"00000.json", "00001.json", *mine}


def test_parts_of_an_earlier_division_go(run: Path) -> None:
    """When `shards_per_job` has become larger: what the first part has, no other one has."""
    put_parts(run / "features/net", range(1), range(1, 2))
    put_parts(run / "features/net", range(2))
    assert not remove_leftovers(run)
    assert files(run / "features/net/parts") == {"00000.json"}


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


@pytest.mark.parametrize("harm", ["changed", "another", "no sidecar", "not a sidecar"])
def test_what_no_sidecar_vouches_for_stays(run: Path, harm: str) -> None:
    path = put(run / "features/net/shard-00005.h5")
    if harm == "changed":
        path.write_bytes(b"a shard of mine")  # of the same size
    elif harm == "another":
        path.write_bytes(b"longer than what the sidecar says")
    elif harm == "no sidecar":
        commit_path(path).unlink()
    else:
        commit_path(path).write_text(json.dumps({"sha256": "0"}))
    before = files(run)
    found = remove_stale_shards(run)
    assert files(run) == before and not found.removed and path in found.kept


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


def test_a_kill_between_the_two_files_is_made_good(run: Path) -> None:
    path = put(run / "features/net/shard-00005.h5")
    path.unlink()
    assert remove_stale_shards(run).removed == [commit_path(path)]
    assert not commit_path(path).exists()


def test_without_a_manifest_nothing_is_stale(run: Path) -> None:
    path = put(run / "features/net/shard-00005.h5")
    (run / "manifest/manifest.json").write_text("{}")
    (warning,) = remove_leftovers(run)
    assert "is not a manifest" in warning and path.exists()
    (run / "manifest/manifest.json").unlink()
    assert not remove_leftovers(run) and path.exists()


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


def test_what_is_counted_stays_whole(run: Path) -> None:
    rows = np.arange(3, dtype=np.int64).tobytes()
    publish(run / "features/net/shard-00001.h5", rows, kind="thing", rows=3, fingerprint="f")
    remove_leftovers(run)
    assert (run / "features/net/shard-00001.h5").read_bytes() == rows


def test_a_smaller_manifest_removes_its_own_shard_files_alone(tmp_path: Path) -> None:
    counts = {"images": {"given": 8, "kept": 8, "rejected": 0, "duplicate": 0}}
    for images in (8, 3):
        empty = {
            "sentences": SENTENCES.empty_table(),
            "documents": DOCUMENTS.empty_table(),
            "boxes": BOXES.empty_table(),
        }
        tables = {"images": pa.Table.from_pylist([image(number) for number in range(images)], IMAGES), **empty}
        write_manifest(tmp_path, tmp_path, [tables], [], counts, shard_size=2)
        if images == 8:
            for name in ("notes.json", "00009.json", "7.json", "00003.json.bak"):
                (tmp_path / "shards" / name).write_text('{"mine": true}')
    assert files(tmp_path / "shards") == {
        "00000.json", "00001.json", "00000.images.parquet", "00001.images.parquet",
        "notes.json", "00009.json", "7.json", "00003.json.bak",
    }  # fmt: skip


def image(number: int) -> dict:
    about = {"path": f"{number}.jpg", "split": "train", "width": 9, "height": 9, "sha256": f"{number:064x}"}
    return {"image_id": number, "member": None, "offset": None, "size": None, **about}


def test_only_a_report_of_rejects_is_removed_as_one(tmp_path: Path) -> None:
    ours, mine = tmp_path / "ours.jsonl", tmp_path / "rejects.jsonl"
    write_rejects(ours, [{"file": "a.jpg", "row": 1, "what": "images", "reason": "empty"}])
    mine.write_text('{"file": "a.jpg", "why": "my own list"}\n')
    for path in (ours, mine, tmp_path / "absent"):
        remove_rejects(path)
    assert files(tmp_path) == {"rejects.jsonl"}


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


def test_a_demo_is_not_drawn_through_links(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/scene-00000.jpg").write_bytes(b"precious")
    demo = DemoFolder(tmp_path / "demo", 1, {})
    demo.claim()
    (demo.folder / "images/scene-00000.jpg").symlink_to(tmp_path / "mine/scene-00000.jpg")
    with pytest.raises(JointspaceError, match="cannot write .*scene-00000.jpg"):
        demo.add("scene-00000.jpg", b"a drawing")
    other = DemoFolder(tmp_path / "other", 1, {})
    other.folder.mkdir()
    (other.folder / ".jointspace-demo").touch()
    (other.folder / "images").symlink_to(tmp_path / "mine")
    with pytest.raises(UsageError, match="images is a link"):
        other.claim()
    assert (tmp_path / "mine/scene-00000.jpg").read_bytes() == b"precious"


def test_a_file_that_stands_where_a_lock_goes_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".x.lock").write_text("precious")
    with pytest.raises(JointspaceError, match=r"\.x\.lock stands where a lock goes"), hold(tmp_path / "x"):
        pass
    assert (tmp_path / ".x.lock").read_text() == "precious"
