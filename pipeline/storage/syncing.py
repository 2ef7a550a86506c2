"""A run in an object store: its finished artefacts, under the names that they have in its folder.

`sync.json` there lists every file with its size, sha256 and the tag that the store gave it, and whether all of the run
is there. On either side commits go before what they vouch for is replaced, and come after it, so that an artefact that
is there has its files whole. A sync that was killed goes on where it was.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import IntegrityError, UsageError
from pipeline.plain_files import UnopenedFile
from pipeline.remote import stores
from pipeline.remote.paths import RemotePath
from pipeline.remote.scratch import Scratch
from pipeline.storage.atomic import publish_json, read_json
from pipeline.storage.batch import FileBatch
from pipeline.storage.commits import PARTS, fault_of
from pipeline.storage.finished import finished_files
from pipeline.storage.forms import Form
from pipeline.storage.names import inside
from pipeline.storage.reading import file_sha256
from pipeline.storage.records import require_form

log = logging.getLogger(__name__)
JOURNAL, VERSION = "sync.json", 1
AT_ONCE = 8
"""Files that are under way together."""
EVERY = 64
"""Files after which the journal is written: what a kill costs at most."""
REMEDY = "sync the run there again"


class SyncedFile(Form):
    """`tag` is the store's, `time` that of the file's last change in nanoseconds, by which Snakemake judges."""

    bytes: int
    sha256: str
    tag: str
    time: int


class SyncJournal(Form):
    version: int
    complete: bool
    files: dict[str, SyncedFile]


@dataclass
class Synced:
    """The names of files that were `moved` and `removed`, how many were `kept`, and of files that are not of finished
    artefacts."""

    moved: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    kept: int = 0
    unfinished: list[str] = field(default_factory=list)


Progress = Callable[[list[str]], Iterable[str]]


def upload(run: Path, target: RemotePath, scratch: Scratch, progress: Progress = iter) -> Synced:
    """Send what has changed of the finished artefacts of `run`, and remove what an earlier sync sent and is no more.

    Raises UsageError where other files than a sync's lie at the `target`, IntegrityError for an artefact that is not
    what its commit says.
    """
    result, known = Synced(), _read_journal(target, scratch)
    there = stores.find(target, scratch.patience)
    if known is None and there:
        raise UsageError(f"{target} holds other files, such as {min(there)}; name a place of the run's own")
    before = {} if known is None else known["files"]
    files, digests, result.unfinished = finished_files(run)
    changed = []
    for name, path in files.items():
        old, status = before.get(name), path.stat()
        digest = digests.get(name) or file_sha256(path)
        digests[name] = digest
        here = {"bytes": status.st_size, "sha256": digest}
        found = there.get(name)
        if old and here == {key: old[key] for key in here} and found and found.tag == old["tag"]:
            result.kept += 1
        else:
            changed.append(name)
    journal = {name: about for name, about in before.items() if name in files and name not in changed}
    gone = [name for name in before if name not in files]

    def write(complete: bool) -> None:
        part = scratch.folder / JOURNAL
        publish_json(part, {"version": VERSION, "complete": complete, "files": dict(sorted(journal.items()))})
        stores.send(part, target / JOURNAL, scratch.patience)

    def send(name: str) -> dict[str, Any]:
        path = files[name]
        status = path.stat()
        if file_sha256(path) != digests[name]:
            raise IntegrityError(f"{path} is not what its commit says; run its stage again")
        version = stores.send(path, target / name, scratch.patience)
        if _identity(path.stat()) != _identity(status):
            raise IntegrityError(f"{path} was replaced while it was sent; sync again when nothing writes the run")
        return {"bytes": status.st_size, "sha256": digests[name], "tag": version.tag, "time": status.st_mtime_ns}

    if changed or gone or known is None or not known["complete"]:
        write(complete=False)
        for name in sorted([*gone, *changed], key=_level, reverse=True):  # commits first
            if name in there and (name in gone or _level(name)):
                stores.remove(target / name, scratch.patience)
        with closing(_in_order(changed, send, progress)) as sent:
            for number, (name, about) in enumerate(sent, 1):
                journal[name] = about
                if number % EVERY == 0:
                    write(complete=False)
        write(complete=True)
    result.moved, result.removed = changed, gone
    return result


def download(source: RemotePath, run: Path, scratch: Scratch, progress: Progress = iter) -> Synced:
    """Fetch what is not here of the run at `source`, or is not what it is there; further files here stay.

    Raises UsageError where no run was synced there, or the folder `run` holds something else, and IntegrityError for
    names that lead out of it, and for bytes that are not those that were sent.
    """
    journal = _read_journal(source, scratch)
    if journal is None:
        raise UsageError(f"{source} holds no run that `jointspace sync` sent (there is no {JOURNAL})")
    if not journal["complete"]:
        raise UsageError(f"{source} holds a run of which only a part was sent; {REMEDY} first")
    held = (path for path in run.rglob("*") if path.is_file() and not path.name.startswith("."))
    if next(held, None) and not any((run / name).exists() for name in journal["files"]):
        raise UsageError(f"{run} holds something else; name a folder of the run's own")
    result, where = Synced(), source / JOURNAL
    paths = {name: _inside(run, name, where) for name in journal["files"]}
    changed = [name for name, about in journal["files"].items() if fault_of(paths[name], about)]
    result.kept = len(paths) - len(changed)
    for name in sorted(changed, key=_level, reverse=True):
        if _level(name):
            paths[name].unlink(missing_ok=True)

    def fetch(name: str) -> None:
        path, about, batch = paths[name], journal["files"][name], FileBatch()
        part = batch.place_for(path)
        try:
            found = stores.fetch(source / name, part, scratch.patience, stores.Version(about["bytes"], about["tag"]))
            if found != about["sha256"]:
                raise IntegrityError(f"{source / name} is not what was sent there; {REMEDY}")
            with open(part, "rb") as file:
                os.fsync(file.fileno())
            try:
                os.utime(part, ns=(about["time"], about["time"]))
            except (OverflowError, OSError) as error:
                raise IntegrityError(f"{where} gives {name} an impossible time; {REMEDY}") from error
            batch.adopt(path, found)
            batch.publish()
        finally:
            part.unlink(missing_ok=True)

    with closing(_in_order(changed, fetch, progress)) as fetched:
        result.moved = [name for name, _ in fetched]
    return result


def _in_order(names: list[str], act: Callable[[str], Any], progress: Progress) -> Iterator[tuple[str, Any]]:
    """Some at a time; what commits vouch for before the commits."""
    ordered = sorted(names, key=lambda name: (_level(name), name))
    levels = {level: [name for name in ordered if _level(name) == level] for level in map(_level, ordered)}
    shown = iter(progress(ordered))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for each in levels.values():
            for start in range(0, len(each), EVERY):
                some = each[start : start + EVERY]
                for name, made in zip(some, pool.map(act, some), strict=True):
                    next(shown)
                    yield name, made
    next(shown, None)  # which ends a bar


def _level(name: str) -> int:
    """0 for what commits vouch for, 1 for sidecars and the commits of a manifest's shards, 2 for those of parts, 3 for
    what may vouch for all of these, 4 for sidecars of such."""
    path = Path(name)
    if path.suffix != ".json":
        return 0
    if path.stem.endswith(".json"):
        return 4
    if path.parent.name == PARTS:
        return 2
    return 1 if path.parent.name == "shards" or "." in path.stem else 3


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _inside(run: Path, name: str, source: RemotePath) -> Path:
    if any(part.startswith(".") for part in name.split("/")) or name == JOURNAL:
        raise IntegrityError(f"{source} names {name!r}, which no artefact is called; {REMEDY}")
    return inside(run, name, str(source))


def _read_journal(place: RemotePath, scratch: Scratch) -> dict[str, Any] | None:
    """None where there is none."""
    part = scratch.folder / JOURNAL
    try:
        stores.fetch(place / JOURNAL, part, scratch.patience)
        value = require_form(read_json(part), SyncJournal, part)
    except UnopenedFile:
        return None
    except IntegrityError:
        log.warning("%s is damaged; %s", place / JOURNAL, REMEDY)
        return {"version": VERSION, "complete": False, "files": {}}
    if value["version"] != VERSION:
        raise UsageError(f"{place / JOURNAL} is of another version of jointspace; {REMEDY} by that")
    return value
