"""Files are written completely or not at all, and only regular files with safe names are read."""

import errno
import hashlib
import os
import re
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path

import pytest

from pipeline.errors import IntegrityError, JointspaceError
from pipeline.storage import batch
from pipeline.storage import files as reading
from pipeline.storage.batch import FileBatch, is_orphan, sweep
from pipeline.storage.commit import commit_path, open_commit, publish, publish_record
from pipeline.storage.files import first_unplain, inside, map_verified, name_fault, open_regular, read_bytes, walk
from pipeline.storage.json_files import publish_json, read_json, to_json


def publish_bytes_with_record(path: Path, data: bytes = b"some bytes") -> None:
    publish(path, data, kind="thing", rows=1, details={"a": 1})


@pytest.mark.parametrize("change", ["size", "time"])
def test_a_file_that_is_replaced_within_a_process_is_checked_again(tmp_path: Path, change: str) -> None:
    path = tmp_path / "numbers.bin"
    publish_bytes_with_record(path, b"right")
    open_commit(path, "thing")
    before = path.stat()
    path.write_bytes(b"wrong" if change == "time" else b"wrong as well")
    moved = before.st_mtime_ns + (change == "time") * 10**9
    os.utime(path, ns=(moved, moved))
    with pytest.raises(IntegrityError, match=r"numbers\.bin"):
        open_commit(path, "thing")


def kill_at(step: int, path: Path) -> bool:
    """Publish `path` in a forked process that kills itself at the step with the number `step`, from 0.

    A step is a call that opens, syncs or renames a file. The process is killed before this call. Return whether the
    process finished before it reached the step.
    """
    if not (child := os.fork()):
        count = iter(range(10**6))

        def counted(function: Callable) -> Callable:
            return lambda *given, **named: (
                os.kill(os.getpid(), signal.SIGKILL) if next(count) == step else function(*given, **named)
            )

        for name in ("fsync", "replace", "open"):
            setattr(os, name, counted(getattr(os, name)))
        code = 70
        try:
            publish(path, b"second" * 1000, kind="thing", rows=1, details={"a": 2})
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_kill_at_every_step_leaves_old_new_or_nothing_committed(tmp_path: Path) -> None:
    outcomes = set()
    for step in range(20):
        path = tmp_path / str(step) / "x.bin"
        publish_bytes_with_record(path, b"first")
        if kill_at(step, path):
            assert open_commit(path, "thing").details == {"a": 2}
            break
        if commit_path(path).exists():
            outcomes.add(open_commit(path, "thing").details["a"])
        else:
            outcomes.add("uncommitted")
        sweep(path.parent)
        assert not list(path.parent.glob(".*.tmp.*"))
    else:
        pytest.fail("the writer never finished")
    assert outcomes == {1, "uncommitted", 2}


@pytest.mark.parametrize("value", [{"n": 1, "text": "Ünïcode"}, [{"n": 1}, {"n": 2}]])
def test_a_changed_json_file_is_refused(tmp_path: Path, value: object) -> None:
    path = tmp_path / "value.json"
    parts = value if isinstance(value, list) else []
    for number, part in enumerate(parts):
        publish_json(tmp_path / f"{number}.json", part)
    publish_json(path, [read_json(tmp_path / f"{number}.json") for number in range(len(parts))] or value)
    read_json(path)
    path.write_text(path.read_text().replace('"n": 1', '"n": 3'))
    with pytest.raises(IntegrityError, match="value.json is damaged or was edited"):
        read_json(path)


GENERATIONS = {b"old": {"generation": 1}, b"new": {"generation": 2}}


def publish_two(folder: Path, content: bytes) -> None:
    """Publish two shards with this `content`, and a summary, in one batch. The commit record of the summary vouches for
    the records of both shards."""
    together = FileBatch()
    vouched = {}
    for number in range(2):
        about = {"details": GENERATIONS[content], "beside": {f"{number}.txt": content}, "batch": together}
        commit = publish(folder / f"{number}.bin", content * 99, kind="thing", rows=1, **about)
        data = to_json(commit.value)
        vouched[commit.path.name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    publish_record(folder / "summary.json", GENERATIONS[content], files=vouched, batch=together)
    together.publish()


def failing_at(step: int, function: Callable) -> Callable:
    """Wrap `function` so that only the call with the number `step`, from 0, raises an OSError (a stale file handle)."""
    calls = iter(range(10**6))

    def fail(*given: object, **named: object) -> object:
        if next(calls) == step:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return function(*given, **named)

    return fail


@pytest.mark.parametrize(("name", "calls"), [("replace", 7), ("unlink", 3)])
def test_readers_never_see_a_mixture_when_publishing_fails(
    name: str, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call that renames a file, or removes an older commit record, fails once. A reader then finds the complete
    old version or no version, and publishing again succeeds."""
    for step in range(calls):
        folder = tmp_path / str(step)
        publish_two(folder, b"old")
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing_at(step, getattr(os, name)))
            with pytest.raises(JointspaceError, match=rf"cannot write {folder}/.* Stale file handle\. Free some disk"):
                publish_two(folder, b"new")
        assert not list(folder.glob(".*")) and read_generation(folder) in ({}, GENERATIONS[b"old"])
        publish_two(folder, b"new")
        assert read_generation(folder) == GENERATIONS[b"new"]


def read_generation(folder: Path) -> dict[str, int]:
    """Read the generation of the summary, as `publish_two` has written it. Return {} if there is no summary.

    Each file for which a commit record vouches is checked: it must exist and have the content of its generation.
    """
    generations = {}
    for path in sorted(folder.glob("?.bin.json")):
        details = open_commit(path).value["details"]
        (content,) = (content for content, about in GENERATIONS.items() if about == details)
        data = [path.with_name(path.name.partition(".")[0] + end).read_bytes() for end in (".bin", ".txt")]
        assert data == [content * 99, content]
        generations[path.name] = details["generation"]
    if not (folder / "summary.json").exists():
        return {}
    generation = open_commit(folder / "summary.json").value["generation"]
    assert generations == dict.fromkeys(["0.bin.json", "1.bin.json"], generation)
    return {"generation": generation}


def test_an_error_while_cleaning_up_does_not_hide_the_first_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = FileBatch()
    together.add(tmp_path / "a/x.bin", b"1")
    together.add(tmp_path / "b/y.bin", b"2")
    monkeypatch.setattr(os, "replace", failing_at(0, os.replace))
    monkeypatch.setattr(os, "unlink", failing_at(0, os.unlink))
    with pytest.raises(JointspaceError, match=r"cannot write .*x\.bin .*Stale file handle"):
        together.publish()
    assert not list(tmp_path.glob("b/.*"))


def half_written(path: Path, host: str, pid: int, patch: pytest.MonkeyPatch) -> Path:
    """Make the temporary file that the process `pid` on the machine `host` would write before it publishes `path`.

    Return the path of the temporary file, which is in the folder of `path`.
    """
    with patch.context() as there, tempfile.TemporaryDirectory(dir=path.parent.parent) as folder:
        there.setattr(socket, "gethostname", lambda: host)
        there.setattr(os, "getpid", lambda: pid)
        FileBatch().add(Path(folder) / path.name, b"half of it")
        (file,) = Path(folder).iterdir()
        return file.rename(path.parent / file.name)


DEAD = 999_999_999


def test_only_temporary_files_of_dead_processes_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only two of the files of five processes on several machines are swept: the file of a dead process of this
    machine, and a file that a process of another machine wrote long ago. A dead process's file of an earlier version is
    swept too. Other names, a folder and a link stay."""
    here = socket.gethostname()
    path = tmp_path / "x.bin"
    files = {
        "living": half_written(path, here, os.getppid(), monkeypatch),
        "dead": half_written(path, here, DEAD, monkeypatch),
        "elsewhere": half_written(path, "another", DEAD, monkeypatch),
        "elsewhere with a number that lives here": half_written(path, "another", os.getppid(), monkeypatch),
        "long ago": half_written(path, "a third", os.getppid(), monkeypatch),
        "of an earlier version": tmp_path / f".x.bin.tmp.{DEAD}",
        "not ours": tmp_path / ".x.bin.tmp.old",
    }
    assert len(set(files.values())) == len(files)
    for name in ("of an earlier version", "not ours"):
        files[name].write_bytes(b"half of it")
    for name, days in {"living": 99, "elsewhere": 29, "long ago": 31}.items():
        then = time.time() - days * 24 * 3600
        os.utime(files[name], (then, then))
    files["a folder"], files["a link"] = tmp_path / f".x.bin.tmp.{DEAD + 1}", tmp_path / f".x.bin.tmp.{DEAD + 2}"
    files["a folder"].mkdir()
    files["a link"].symlink_to(files["living"].name)
    gone = {"dead", "long ago", "of an earlier version"}
    assert {name for name, file in files.items() if is_orphan(file)} == gone
    copies = [shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-{n}"), symlinks=True) for n in range(2)]
    sweep(copies[0])
    FileBatch().add(copies[1] / "x.bin", b"more")
    FileBatch().add(copies[1] / "y.bin", b"more")
    for folder in copies:
        assert {name for name, file in files.items() if not (folder / file.name).exists()} == gone


def test_file_published_during_the_check_is_not_an_orphan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts").mkdir()
    file = half_written(tmp_path / "parts/x.bin", "another", DEAD, monkeypatch)
    monkeypatch.setattr(batch, "is_regular", lambda path: path.unlink() is None)
    assert not is_orphan(file)


def test_two_machines_write_one_file_under_two_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.bin"
    together = FileBatch()
    together.add(path, b"ours")
    half_written(path, "another", os.getpid(), monkeypatch)
    together.publish()
    assert path.read_bytes() == b"ours"


def test_new_folder_removes_only_leftovers_of_dead_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "copy"
    here = socket.gethostname()
    names = {
        key: half_written(tmp_path / "copy", host, pid, monkeypatch)
        for key, host, pid in [("dead", here, DEAD), ("own", here, os.getpid()), ("elsewhere", "another", DEAD)]
    }
    for file in names.values():
        file.unlink()
        (file / "deep").mkdir(parents=True)
    synced = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_ino) or sync(number))
    with batch.new_folder(output) as folder:
        (folder / "deep").mkdir()
        for name in ("x", "deep/y"):
            (folder / name).write_text(name)
    assert sorted(synced) == sorted((output / name).stat().st_ino for name in ("x", "deep/y"))
    assert {path.name for path in tmp_path.iterdir()} == {"copy", names["elsewhere"].name}
    assert {path.name for path in output.iterdir()} == {"x", "deep"}


def test_nothing_is_written_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = half_written(tmp_path / "x.bin", socket.gethostname(), os.getpid(), monkeypatch)
    temporary.unlink()
    (tmp_path / "precious").write_text("precious")
    temporary.symlink_to(tmp_path / "precious")
    with pytest.raises(JointspaceError, match="cannot write .*x.bin"):
        publish_bytes_with_record(tmp_path / "x.bin")
    assert (tmp_path / "precious").read_text() == "precious"


def test_hard_link_of_a_killed_process_with_the_same_number_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    FileBatch().link(tmp_path / "x.bin", tmp_path / "precious")
    publish_bytes_with_record(tmp_path / "x.bin")
    assert (tmp_path / "precious").read_text() == "precious" != (tmp_path / "x.bin").read_text()
    FileBatch().link(tmp_path / "x.bin", tmp_path / "precious")
    FileBatch().link(tmp_path / "x.bin", tmp_path / "precious")


def test_only_own_names_are_removed_from_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    publish_bytes_with_record(folder / "0000000.h5")
    for name in ("0000001.h5.bak", "x.h5", "00000000.h5"):
        (folder / name).write_text("precious")
    (folder / "0000002.h5").symlink_to(folder / "x.h5")
    (tmp_path / "link").symlink_to(folder)
    names = re.compile(r"\d{7}\.h5(\.json)?")
    batch.remove_own(tmp_path / "link", names)
    assert (folder / "0000000.h5").exists()
    batch.remove_own(folder, names)
    assert {path.name for path in folder.iterdir()} == {"0000001.h5.bak", "x.h5", "00000000.h5", "0000002.h5"}
    publish_bytes_with_record(tmp_path / "all/0000000.h5")
    batch.remove_own(tmp_path / "all", names)
    assert not (tmp_path / "all").exists()


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(path.parent)  # The kernel limits the length of a socket's name.
        listener.bind(path.name)


ODD = {
    "a folder": (Path.mkdir, "it is a folder, not a file"),
    "a pipe": (os.mkfifo, "it is a pipe, not a file"),
    "a socket": (bind, "cannot read"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "it is a device, not a file"),
    "a circle": (lambda path: path.symlink_to(path), "links form a circle"),
    "nothing": (lambda path: None, "does not exist. Run the stage that makes it"),
    "a link to nothing": (lambda path: path.symlink_to("nowhere"), "does not exist"),
}


@pytest.mark.parametrize("odd", ODD)
def test_path_that_is_not_a_regular_file_is_refused_at_once(
    odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make, said = ODD[odd]
    make(tmp_path / "x")
    with pytest.raises(IntegrityError, match=f"{tmp_path}/x.*{said}|{said} {tmp_path}/x"):
        read_bytes(tmp_path / "x")
    with pytest.raises(OSError):
        open_regular(tmp_path / "x")


def test_a_refused_file_is_closed_although_the_error_is_kept(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="it is a pipe") as error:
        open_regular(tmp_path / "x")
    assert os.listdir("/proc/self/fd") == before and error.tb


def test_folder_with_the_name_of_a_written_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "x.json").mkdir()
    batch = FileBatch()
    batch.add(tmp_path / "x", b"1")
    batch.add(tmp_path / "x.json", b"2", commit=True)
    with pytest.raises(JointspaceError, match=r"cannot write .*x\.json \(Is a directory\)\. Move the existing"):
        batch.publish()
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_bytes_with_record(tmp_path / "open/x.bin")
    publish_bytes_with_record(tmp_path / "closed/y.bin")
    scan = os.scandir

    def refuse(path: str) -> object:
        if Path(path).name == "closed":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = {path.relative_to(tmp_path).as_posix(): about for path, about in walk(tmp_path)}
    assert found.keys() == {"open/x.bin", "open/x.bin.json", "closed"}
    assert isinstance(found["closed"], PermissionError)


WRONG = [
    "", "/etc/passwd", "..", "../x", "a/../x", "a//b", "a/", "./a", "a/./b", "a\\b", "..\\x", "C:x", "c:/x", "a\0b",
    None, 3, ["a"], {"a": 1}, "\ud800", "x" * 300,
]  # fmt: skip


@pytest.mark.parametrize("name", WRONG, ids=repr)
def test_name_that_is_not_plain_is_refused(name: object, tmp_path: Path) -> None:
    said = r"^the/card\.json names the file .{1,400}\. Copy the file that contains this name again from its source\.$"
    with pytest.raises(IntegrityError, match=said):
        inside(tmp_path, name, Path("the/card.json"))


@pytest.mark.parametrize("link", ["k", "k/l", "k/l/file"])
def test_path_with_a_link_is_refused_even_if_the_link_stays_inside(link: str, tmp_path: Path) -> None:
    (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / link).symlink_to(tmp_path)
    with pytest.raises(IntegrityError, match=f"card names the file 'k/l/file', but .*/{link} is a link"):
        inside(tmp_path, "k/l/file", "card")


# --- files that were verified before


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Return a list to which the name of each file is added when the file is hashed. The memory of verified files is
    empty, and accepts files of any age."""
    names: list[str] = []
    digest = hashlib.file_digest

    def noting(file: BufferedReader, name: str) -> "hashlib._Hash":
        names.append(Path(file.name).name)
        return digest(file, name)

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(reading, "SETTLED_SECONDS", -1.0)
    monkeypatch.setattr(hashlib, "file_digest", noting)
    return names


def write_random(path: Path, size: int = 1 << 20) -> str:
    """Write random bytes, and return their SHA-256."""
    data = os.urandom(size)
    path.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def test_a_large_verified_file_is_not_hashed_again(tmp_path: Path, hashed: list[str]) -> None:
    for name, size in (("large", 1 << 20), ("small", 1000)):
        sha256 = write_random(tmp_path / name, size)
        for _ in range(3):
            data, found = map_verified(tmp_path / name, sha256)
            assert (bytes(data), found) == ((tmp_path / name).read_bytes(), sha256)
    assert hashed == ["large", "small", "small", "small"]


def test_the_memory_of_verified_files_can_be_read_by_its_owner_only(tmp_path: Path, hashed: list[str]) -> None:
    map_verified(tmp_path / "a", write_random(tmp_path / "a"))
    folders = {path.parent for path in (tmp_path / "state").rglob("*") if path.is_file()}
    assert [folder.stat().st_mode & 0o077 for folder in folders] == [0]


def test_other_bytes_are_found_although_size_and_time_were_restored(tmp_path: Path, hashed: list[str]) -> None:
    path = tmp_path / "images.faiss"
    sha256 = write_random(path)
    map_verified(path, sha256)
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(1000)
        file.write(b"changed")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)
    assert map_verified(path, sha256)[1] != sha256


def test_another_file_of_the_same_name_is_hashed(tmp_path: Path, hashed: list[str]) -> None:
    path = tmp_path / "images.faiss"
    sha256 = write_random(path)
    map_verified(path, sha256)
    before = path.stat()
    shutil.copy2(path, tmp_path / "copy")
    os.replace(tmp_path / "copy", path)
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    map_verified(path, sha256)
    map_verified(path, "0" * 64)
    assert hashed == ["images.faiss"] * 3


def test_a_damaged_file_and_a_new_file_are_not_remembered(
    tmp_path: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256 = write_random(tmp_path / "a")
    for _ in range(2):
        map_verified(tmp_path / "a", "0" * 64)
    monkeypatch.setattr(reading, "SETTLED_SECONDS", 1000.0)  # The file is younger than 1,000 seconds.
    for _ in range(2):
        map_verified(tmp_path / "a", sha256)
    assert hashed == ["a"] * 4


@pytest.mark.parametrize("wrong", ["", "/a", "a/../b", "..", "b\\c", "C:d", "e\0f", "g\n/..", None])
def test_one_search_in_all_names_finds_what_each_name_alone_shows(wrong: str | None) -> None:
    names = ["a.jpg", None, "folder/b.jpg", "c\n/d.jpg", wrong, "..e"]
    expected = next((row for row, name in enumerate(names) if name is not None and name_fault(name)), None)
    assert first_unplain(names) == expected
    assert (expected is None) == (wrong is None)
