"""A run in a bucket: sent and fetched whole, only what changed, and never by names that lead elsewhere."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from servers import S3Server

from pipeline.errors import IntegrityError, UnreachableError, UsageError
from pipeline.remote import stores
from pipeline.remote.paths import RemotePath, place
from pipeline.remote.scratch import Scratch
from pipeline.storage.atomic import publish, publish_json, to_json
from pipeline.storage.glance import glance
from pipeline.storage.syncing import download, upload
from stages.operations.sync import command


def write(run: Path, number: int, content: bytes) -> None:
    publish(run / f"features/x/shard-{number:05d}.h5", content, kind="features", rows=1, fingerprint=str(content))


def files_of(run: Path) -> dict[str, bytes]:
    found = (path for path in run.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in found}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("name: run\n")
    for number in range(5):
        write(run, number, bytes([number]) * 100)
    publish_json(run / "features/x/parts/00000.json", {"name": "features/x", "fingerprint": "f", "shards": {}})
    return run


@pytest.fixture
def target(s3: S3Server, request: pytest.FixtureRequest) -> RemotePath:
    bucket = request.node.name.replace("_", "-").split("[")[0][:50]
    s3.put(bucket, {})
    return place(f"s3://{bucket}/runs/one")


def test_a_run_goes_there_and_comes_back_and_only_changes_travel(
    run: Path, target: RemotePath, scratch: Scratch, tmp_path: Path
) -> None:
    sent, back = upload(run, target, scratch), tmp_path / "back"
    assert len(sent.moved) == 12 and upload(run, target, scratch).moved == []
    assert sorted(download(target, back, scratch).moved) == sorted(sent.moved)
    assert files_of(back) == files_of(run)
    assert download(target, back, scratch).kept == 12
    for name in files_of(run):  # Snakemake compares times
        assert (back / name).stat().st_mtime_ns == (run / name).stat().st_mtime_ns
    write(run, 3, b"other")
    (run / "features/x/shard-00004.h5").unlink()
    (run / "features/x/shard-00004.h5.json").unlink()
    again = upload(run, target, scratch)
    assert sorted(again.moved) == ["features/x/shard-00003.h5", "features/x/shard-00003.h5.json"]
    assert len(again.removed) == 2 and "features/x/shard-00004.h5" not in stores.find(target, 5)
    assert sorted(download(target, back, scratch).moved) == sorted(again.moved)
    assert (back / "features/x/shard-00003.h5").read_bytes() == b"other"
    (back / "features/x/shard-00001.h5").write_bytes(b"damaged")
    assert download(target, back, scratch).moved == ["features/x/shard-00001.h5"]


def test_what_is_unfinished_stays_and_what_is_damaged_is_not_sent(
    run: Path, target: RemotePath, scratch: Scratch
) -> None:
    (run / "features/x/shard-00009.h5").write_bytes(b"no sidecar yet")
    (run / "features/x/.shard-00010.h5.tmp.1").write_bytes(b"being written")
    assert upload(run, target, scratch).unfinished == ["features/x/shard-00009.h5"]
    assert not any("shard-00009" in name or "tmp" in name for name in stores.find(target, 5))
    path = run / "features/x/shard-00000.h5"
    path.write_bytes(b"x" * 100)
    (run / "features/x/shard-00000.h5.json").write_bytes((run / "features/x/shard-00000.h5.json").read_bytes())
    assert upload(run, target, scratch).moved == []  # the commit says what was sent
    path.write_bytes(b"short")
    with pytest.raises(IntegrityError, match=r"shard-00000\.h5: truncated"):
        upload(run, target, scratch)


@pytest.mark.parametrize("calls", [0, 1, 2, 5, 9, 12, 13])
def test_a_sync_that_is_killed_leaves_no_artefact_half_and_goes_on(
    run: Path, target: RemotePath, scratch: Scratch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """After so many files the server is gone, in either direction."""
    target = target / str(calls)

    def failing(act: Callable) -> Callable:
        left = [calls]

        def limited(*arguments: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise UnreachableError("gone")
            return act(*arguments)

        return limited

    def require_whole(there: set[str]) -> None:
        for name in there:
            if name.endswith(".h5.json"):
                assert name.removesuffix(".json") in there
            if "/parts/" in name:
                assert len([one for one in there if one.endswith(".h5.json")]) == 5

    with monkeypatch.context() as patched:
        patched.setattr(stores, "send", failing(stores.send))
        with pytest.raises(UnreachableError):
            upload(run, target, scratch)
    require_whole(set(stores.find(target, 5)))
    with pytest.raises(UsageError, match="sync"):
        download(target, tmp_path / "early", scratch)
    upload(run, target, scratch)
    back = tmp_path / "back"
    with monkeypatch.context() as patched:
        patched.setattr(stores, "fetch", failing(stores.fetch))
        if calls < 13:
            with pytest.raises(UnreachableError):
                download(target, back, scratch)
    require_whole(set(files_of(back)) if back.exists() else set())
    download(target, back, scratch)
    assert files_of(back) == files_of(run) and glance(back).faults == []


@pytest.mark.parametrize("name", ["../out", "/etc/x", "a/../../b", "a//b", ".hidden/x", "C:/x", "sync.json"])
def test_names_from_the_other_side_lead_nowhere(
    run: Path, target: RemotePath, scratch: Scratch, s3: S3Server, tmp_path: Path, name: str
) -> None:
    upload(run, target, scratch)
    bucket = target.parts[1]
    about = {"bytes": 1, "sha256": "0" * 64, "tag": "", "time": 0}
    s3.put(bucket, {"runs/one/sync.json": to_json({"version": 1, "complete": True, "files": {name: about}})})
    with pytest.raises((IntegrityError, UsageError)):
        download(target, tmp_path / "deep/er/back", scratch)
    assert not (tmp_path / "deep").exists() or list((tmp_path / "deep").rglob("*")) in ([], [tmp_path / "deep/er"])
    assert not (tmp_path / "out").exists()


def test_a_link_here_is_not_written_through(run: Path, target: RemotePath, scratch: Scratch, tmp_path: Path) -> None:
    upload(run, target, scratch)
    back, outside = tmp_path / "back", tmp_path / "outside"
    back.mkdir()
    outside.mkdir()
    (back / "features").symlink_to(outside)
    (back / "config.yaml").write_text("name: run\n")
    with pytest.raises(IntegrityError, match="is a link"):
        download(target, back, scratch)
    assert list(outside.iterdir()) == []


def test_an_object_that_somebody_changed_is_not_taken_for_what_was_sent(
    run: Path, target: RemotePath, scratch: Scratch, s3: S3Server, tmp_path: Path
) -> None:
    upload(run, target, scratch)
    s3.put(target.parts[1], {"runs/one/features/x/shard-00002.h5": b"?" * 100})
    with pytest.raises(IntegrityError, match=r"shard-00002\.h5 is not what was sent there; sync the run there again"):
        download(target, tmp_path / "back", scratch)
    assert upload(run, target, scratch).moved == ["features/x/shard-00002.h5"]
    download(target, tmp_path / "back", scratch)
    assert files_of(tmp_path / "back") == files_of(run)


def test_other_peoples_places_are_left_alone(
    run: Path, target: RemotePath, scratch: Scratch, s3: S3Server, tmp_path: Path
) -> None:
    s3.put(target.parts[1], {"runs/one/theirs.txt": b"x"})
    with pytest.raises(UsageError, match=r"holds other files, such as theirs\.txt"):
        upload(run, target, scratch)
    with pytest.raises(UsageError, match="holds no run"):
        download(target, tmp_path / "back", scratch)
    upload(run, target / "own", scratch)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("x")
    with pytest.raises(UsageError, match="holds something else"):
        download(target / "own", tmp_path / "full", scratch)


def test_the_command_takes_one_url_and_one_folder(run: Path, target: RemotePath, tmp_path: Path) -> None:
    there = CliRunner().invoke(command, [str(run), str(target), "--json"])
    assert there.exit_code == 0 and len(json.loads(there.stdout)["moved"]) == 12, there.output
    back = CliRunner().invoke(command, [str(target), str(tmp_path / "back")])
    assert back.exit_code == 0 and files_of(tmp_path / "back") == files_of(run)
    for wrong in (
        (str(run), str(run)),
        (str(target), str(target)),
        (str(run), "https://host/x"),
        (str(run), "ftp://x/y"),
    ):
        assert isinstance(CliRunner().invoke(command, [*wrong]).exception, UsageError)
