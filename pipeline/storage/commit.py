"""Commit records: the files of an artefact, its path in the run, the stage that made it, and its inputs.

The commit record of an artefact is a JSON file next to it. An artefact that is itself a JSON file is its own record.

    place      the path of the record below the folder of the run: "embeddings/ncca/shard-00003.h5.json"
    made_by    {stage, version, keys}: the stage, the version of its code, and the configuration keys that decide the
               result
    inputs     {place: digest} of the records of the inputs. "text/tfidf/shard-*.h5.json" means the records of all
               shards, "moments/target/chunk-*.h5.json" the records of all chunks of shards, and
               "manifest/shards/00003.json#images" the value under the key `images` of that record
    files      {name: {bytes, sha256}} of the files for which it vouches, in its folder or below
    digest     the hash of everything that readers get: the files, and all other keys except `made_by` and `inputs`

A commit record is valid if it is at its `place`, its files have not changed since they were written, and the digests
of its inputs are the current ones. The files of an artefact are written under temporary names, and its record is
written last. Without a record, the artefact does not exist. If the whole folder of an input is missing, a user has
deleted it on purpose, and the artefacts that were made from it stay valid.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain, count, takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypedDict

from pipeline.compute.mapreduce import split_into_chunks
from pipeline.errors import IntegrityError
from pipeline.storage.batch import FileBatch, FileSum
from pipeline.storage.files import REMEDY, RUN_FIRST, file_sha256, is_regular, plain, read_bytes, refusing
from pipeline.storage.json_files import File, Form, Json, canonical_json, check_form, fingerprint, read_json, to_json

MANIFEST = "manifest/manifest.json"
CARRIED = "commit"
"""The key of an index's card that contains the commit record of the index. A card is not a commit record itself,
because an index may be copied away from its run."""
MAX_CACHED_COMMITS = 1 << 12
"""Maximum number of commit records that a process keeps in memory. The limit for hashes of files is equal."""


@dataclass(frozen=True)
class Provenance:
    """The origin of an artefact in the run whose folder is `root`.

    `stage` and `version` say which code makes it, `keys` are the configuration keys that decide the result, and
    `inputs` are the digests of the inputs by place.
    """

    root: Path
    stage: str
    version: int
    keys: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def made_by(self) -> dict[str, Any]:
        return {"stage": self.stage, "version": self.version, "keys": self.keys}

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the origin. A rerun uses stored unfinished work only if its origin has the same
        fingerprint as the origin of the job."""
        return fingerprint(self.stage, self.version, self.keys, self.inputs)


class About(TypedDict, total=False):
    """Keyword arguments that a function which writes an artefact passes on to `publish`.

    They are the origin, further values for the commit record, and the batch that makes the files visible.
    """

    provenance: Provenance | None
    details: Mapping[str, Json] | None
    batch: FileBatch | None


class CommitForm(Form):
    """The form of a commit record."""

    place: str
    made_by: dict[str, Any]
    inputs: dict[str, str]
    files: dict[str, File]
    digest: str
    check: str


@dataclass(frozen=True)
class Commit:
    """The commit record in the file `path`.

    `value` is the JSON object of the file. The docstring of this module describes its keys.
    """

    path: Path
    value: Mapping[str, Any]
    place: str
    made_by: Mapping[str, Any]
    inputs: Mapping[str, str]
    files: Mapping[str, FileSum]
    digest: str

    @property
    def kind(self) -> str:
        return str(self.value.get("kind", ""))

    @property
    def rows(self) -> int:
        return self.value["rows"]

    @property
    def details(self) -> Mapping[str, Any]:
        return self.value["details"]

    @property
    def bytes(self) -> int:
        """The sum of the sizes of `files` in bytes."""
        return sum(about["bytes"] for about in self.files.values())

    @cached_property
    def root(self) -> Path | None:
        """The folder of the run: `path` without `place` at its end. None if `path` does not end with `place`."""
        path = Path(os.path.abspath(self.path))
        parts = len(Path(self.place).parts)
        return path.parents[parts - 1] if path.as_posix().endswith(f"/{self.place}") else None


class Fault(NamedTuple):
    """A fault of the file `path`. The `reason` begins with truncated, changed, missing, misplaced, mixed or unreadable.
    `gone` is true if the file is the missing commit record of an input."""

    path: Path
    reason: str
    gone: bool = False


def commit_path(path: Path) -> Path:
    """Return the path of the commit record of the artefact `path`.

    The record of `shard-00000.h5` is `shard-00000.h5.json`, but the record of `model.safetensors` is `model.json`.
    """
    path = Path(path)
    return path.with_suffix(".json") if path.suffix == ".safetensors" else path.with_name(path.name + ".json")


# --- writing


def publish(
    path: Path,
    data: bytes | memoryview,
    *,
    kind: str,
    rows: int,
    provenance: Provenance | None = None,
    details: Mapping[str, Json] | None = None,
    beside: Mapping[str, bytes | memoryview] = MappingProxyType({}),
    batch: FileBatch | None = None,
) -> Commit:
    """Write an artefact, further files in its folder, and their commit record. Return the record.

    `data` is the content of the file `path`, and `beside` the contents of the further files by name. The record notes
    the `kind` of the artefact, its number of `rows`, and `details`, which are further values for its readers. An older
    version of the artefact stays intact until all files are written. With a `batch`, the files become visible when the
    caller publishes the batch. An artefact without `provenance` does not belong to a run. Raises JointspaceError if a
    file cannot be written.
    """
    value = {"kind": kind, "rows": rows, "details": dict(details or {})}
    return publish_record(commit_path(path), value, {path.name: data, **beside}, provenance, batch=batch)


def publish_record(
    path: Path,
    value: Mapping[str, Json],
    beside: Mapping[str, bytes | memoryview] = MappingProxyType({}),
    provenance: Provenance | None = None,
    files: Mapping[str, FileSum] = MappingProxyType({}),
    batch: FileBatch | None = None,
) -> Commit:
    """Write the JSON object `value` to `path` as its own commit record, and further files into the folder of `path`.

    `beside` has the contents of the further files by name. The record vouches for the further files, and for `files`,
    which are already written: file name -> the result of `describe_file`. With a `batch`, all files become visible when
    the caller publishes the batch. An artefact without `provenance` does not belong to a run. Returns the record.
    Raises JointspaceError if a file cannot be written.
    """
    writer = FileBatch() if batch is None else batch
    written = {name: writer.add(path.with_name(name), data) for name, data in beside.items()}
    commit = seal(path, value, {**files, **written}, provenance)
    writer.add(path, to_json(commit.value), commit=True)
    if batch is None:
        writer.publish()
    return commit


def describe_file(path: Path) -> FileSum:
    """Return the size and the sha256 of a file, as a commit record lists them."""
    return {"bytes": path.stat().st_size, "sha256": file_sha256(path)}


def seal(
    path: Path,
    value: Mapping[str, Json],
    files: Mapping[str, FileSum],
    provenance: Provenance | None,
    digest: str | None = None,
) -> Commit:
    """Return a commit record with the keys of `value` that vouches for `files`. The caller writes the record to `path`.

    The place of the record is `path` relative to the root of `provenance`, or only the name of `path` if `provenance`
    is None. The digest is computed from `value`, `files` and the place, unless the caller passes a `digest`.
    """
    place = path.name if provenance is None else Path(os.path.relpath(path, provenance.root)).as_posix()
    rest = {**value, "place": place, "files": dict(files)}
    made_by = provenance.made_by if provenance and provenance.stage else {}
    inputs = dict(provenance.inputs) if provenance else {}
    digest = digest or _digest(rest)
    whole = {"place": place, "made_by": made_by, "inputs": inputs, **value, "files": dict(files), "digest": digest}
    return Commit(path, whole, place, made_by, inputs, files, digest)


def carry(provenance: Provenance, path: Path, digest: str) -> dict[str, Any]:
    """Return the commit record of an index, which the caller stores under the key CARRIED in the card `path`.

    `digest` is the fingerprint on the card, and becomes the digest of the record. The record does not list files,
    because the card lists them.
    """
    commit = seal(path, {}, {}, provenance, digest)
    return {key: value for key, value in commit.value.items() if key != "files"}


def _digest(content: Mapping[str, Json]) -> str:
    plain = json.loads(json.dumps(content, allow_nan=False))
    return hashlib.sha256(canonical_json(plain)).hexdigest()


def remove_artefact(path: Path, alone: bool = False) -> None:
    """Remove the files for which the commit record `path` vouches, and then the record.

    With `alone`, only the record is removed, because another record vouches for its files. A file that differs from
    the record stays, and nothing is removed through a link. If `path` is not a commit record at its place, nothing is
    removed at all.
    """
    try:
        commit = read_commit(path) if is_regular(path) else None
    except IntegrityError:
        return
    if commit is None or commit.root is None:
        return
    for name, about in ({} if alone else commit.files).items():
        file = path.parent / name
        if is_regular(file) and not file.parent.is_symlink() and not file_fault(file, about):
            file.unlink()
    path.unlink()


def remove_from(first: int, path_of: Callable[[int], Path], alone: bool = False) -> None:
    """Remove the artefacts with the numbers `first`, `first + 1` and so on, up to the first missing commit record.

    `path_of(number)` is the path of a commit record. The record and the files for which it vouches are removed. A file
    that differs from the record stays. With `alone`, only the commit records are removed. The artefact with the highest
    number is removed first. If the process is killed before the end, the remaining numbers therefore have no gap, and
    the next call finds all of them.
    """
    numbers = takewhile(lambda number: is_regular(path_of(number)), count(first))
    for number in reversed(list(numbers)):
        remove_artefact(path_of(number), alone)


# --- reading


def read_commit(path: Path) -> Commit:
    """Read the commit record in the file `path`.

    Raises IntegrityError if the file does not exist, is damaged, is not a commit record, or is the card of an index
    that was changed after its run had built the index.
    """
    with refusing(path):
        status = os.stat(path)
    return _read(os.path.abspath(path), status.st_mtime_ns, status.st_size, status.st_ino)


@lru_cache(MAX_CACHED_COMMITS)
def _read(name: str, *_: int) -> Commit:
    path = Path(name)
    value = read_json(path)
    own = value
    if isinstance(value, Mapping) and isinstance(value.get(CARRIED), Mapping):
        own = {**value[CARRIED], "files": value.get("files"), "check": value.get("check")}
        if own.get("digest") != value.get("fingerprint"):
            raise IntegrityError(
                f"{path.parent} was changed by `remove`, `add` or `calibrate` after the run had built it. `jointspace"
                " run CONFIG` builds it again, without the removed photos. `calibrate` must then be repeated."
            )
    check_form(own, CommitForm, path, what="is not a commit record of this version")
    for file in own["files"]:
        plain(file, path)
    return Commit(path, value, own["place"], own["made_by"], own["inputs"], own["files"], own["digest"])


def open_commit(path: Path, kind: str | None = None, hashed: bool = True, anywhere: bool = False) -> Commit:
    """Read the commit record of the artefact `path`, and check the artefact, before its files are read.

    `path` is an artefact of the kind `kind`. If `kind` is None, `path` is the commit record itself. With `hashed`, the
    files are compared by their hashes and not only by their sizes. With `anywhere`, the record need not be at its
    place, and its inputs are not checked: a file of an index may be copied away from its run, and the card of the index
    vouches for it. Raises IntegrityError if the record is not valid, or is of another kind.
    """
    commit = read_commit(path if kind is None else commit_path(path))
    if kind is not None and commit.kind != kind:
        raise IntegrityError(
            f"{path} has the kind {commit.kind or 'unknown'}, but a file of the kind {kind} is expected there. Name a"
            f" file or folder of the kind {kind}."
        )
    if kind is not None and not (
        isinstance(commit.value.get("details"), Mapping) and type(commit.value.get("rows")) is int
    ):
        raise IntegrityError(f"{commit.path} is not a commit record of this version. {REMEDY}")
    if anywhere or commit.root is None:
        faults = file_faults(commit, hashed) if anywhere else iter([_misplaced(commit)])
    else:
        faults = Commits(commit.root).faults(commit.place, hashed)
    for fault in faults:
        raise IntegrityError(f"{fault.path} is {fault.reason}. {REMEDY}")
    return commit


def read_record(path: Path, anywhere: bool = False) -> Any:
    """Read the JSON object in the file `path`, which is its own commit record.

    With `anywhere`, the record need not be at its place, and its inputs are not checked. Raises IntegrityError if the
    record is missing or not valid.
    """
    return open_commit(path, anywhere=anywhere).value


def read_verified(path: Path, kind: str, anywhere: bool = False) -> tuple[bytes, Commit]:
    """Read a small artefact into memory. Return its bytes and its commit record.

    With `anywhere`, the record need not be at its place, and its inputs are not checked. Raises IntegrityError if the
    record is missing, not valid or not of this `kind`, and if another process replaced the file during the call.
    """
    commit = open_commit(path, kind, anywhere=anywhere)
    data = read_bytes(path)
    if file_fault(path, commit.files[path.name]):  # `file_fault` hashes the file again only if the file was replaced.
        raise IntegrityError(f"{path} was replaced while it was read. Run the same command again.")
    return data, commit


# --- validity


class Commits:
    """The commit records below the folder `root` of a run.

    The methods take an input as `source`, which is a key of the `inputs` of a commit record (see the docstring of this
    module). The digest of an input, and the comparison of a record with the digests of its inputs, are computed once
    and kept, so a later change of an input is not noticed. Apart from this, the result of a method does not depend on
    earlier calls.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self._digests: dict[str, str | None] = {}
        self._valid: set[str] = set()
        self._mixed: dict[tuple[str, bool], Fault | None] = {}

    def faults(self, place: str, hashed: bool = False, deep: bool = False) -> Iterator[Fault]:
        """Yield the faults of the commit record at `place` and of its files. A record without a fault is valid.

        The files are compared with the record by size, and, with `hashed`, also by hash. The record must have the
        current digests of its inputs. With `deep`, the records of the inputs must have the current digests of their
        own inputs, and so on. Raises IntegrityError if there is no readable commit record at `place`.
        """
        commit = read_commit(self.root / place)
        if commit.place != place:
            yield _misplaced(commit)
        yield from file_faults(commit, hashed)
        if fault := self._mixture(place, deep):
            yield fault

    def is_done(self, path: Path, provenance: Provenance) -> bool:
        """Return whether the artefact whose commit record is `path` is complete and up to date.

        The artefact is complete if the record is at its place and the files have the sizes that the record lists. The
        artefact is up to date if the record has the stage, the version, the keys, and the inputs with their digests of
        `provenance`, and no other inputs.
        """
        try:
            commit = read_commit(path)
        except IntegrityError:
            return False
        same = canonical_json(commit.made_by) == canonical_json(provenance.made_by)
        same = same and provenance.inputs == commit.inputs
        return same and commit.root is not None and not any(file_faults(commit, False))

    def require(self, source: str) -> str:
        """Return the current digest of the input `source`.

        Raises IntegrityError if one of its commit records does not exist or is not valid.
        """
        if source not in self._valid:
            faults = [self.faults(place, deep=True) for place in self.places(source)]
            faults += [self.faults(part, hashed=True) for part in self._parts(source)]
            for fault in chain.from_iterable(faults):
                raise IntegrityError(f"{fault.path} is {fault.reason}. {REMEDY}")
            self._valid.add(source)
        if (digest := self.digest(source)) is None:
            raise IntegrityError(f"{self.root / source} does not exist. {RUN_FIRST}")
        return digest

    def digest(self, source: str) -> str | None:
        """Return the current digest of the input `source`.

        Return None if one of its commit records is missing or damaged, or lacks the key after `#`.
        """
        if source not in self._digests:
            self._digests[source] = self._find(source)
        return self._digests[source]

    def places(self, source: str) -> Iterable[str]:
        """Return the places of the commit records of an input: one record, or the record of each shard or chunk.

        Raises IntegrityError if `source` means all shards or chunks, and the manifest, which says how many there are,
        is missing or damaged.
        """
        place, _, _ = source.partition("#")
        if "*" not in place:
            return [place]
        summary = read_commit(self.root / MANIFEST).value
        count = int(summary["shards"])
        if "/chunk-*" in place:
            count = len(split_into_chunks(count, int(summary["shard_size"])))
        return (place.replace("*", f"{number:05d}") for number in range(count))

    def _parts(self, source: str) -> Iterator[str]:
        """Yield the places of the existing records `part-00000.json` and so on of the folder of `source`, if `source`
        means all shards or chunks. Otherwise, yield nothing.

        A part is a range of shards made by one job, and the record of the part lists the records of these shards. If a
        job was killed after it had made only some of its shards again, the folder has a mixture of new and old shards,
        which do not fit the record of the part. The caller checks the records of the parts to find such a mixture.
        """
        folder = Path(source).parent
        places = (f"{folder}/part-{number:05d}.json" for number in count()) if "*" in source else ()
        return takewhile(lambda place: (self.root / place).exists(), places)

    def _find(self, source: str) -> str | None:
        _, _, key = source.partition("#")
        digests = []
        try:
            for place in self.places(source):
                commit = read_commit(self.root / place)
                digests.append(commit.value.get(key) if key else commit.digest)
        except IntegrityError:
            return None
        if not all(isinstance(digest, str) for digest in digests):
            return None
        return combine_digests(digests) if "*" in source else digests[0]

    def _mixture(self, place: str, deep: bool) -> Fault | None:
        """Return the fault if the inputs of a commit record have changed or are missing, or None.

        With `deep`, an input whose own inputs have changed is a fault too.
        """
        if (place, deep) in self._mixed:
            return self._mixed[place, deep]
        commit = read_commit(self.root / place)
        fault = None
        for source, digest in commit.inputs.items():
            now = self.digest(source)
            if now is None:
                fault = self._missing(source)
            elif now != digest:
                fault = Fault(commit.path, f"mixed: it was made from another version of {source}")
            elif deep and any(self._mixture(one, deep) for one in self.places(source)):
                fault = Fault(commit.path, f"mixed: it was made from {source}, which is out of date")
            if fault is not None:
                break
        self._mixed[place, deep] = fault
        return fault

    def _missing(self, source: str) -> Fault | None:
        """Return a fault if a commit record of the input `source` is missing, although the folder of the record exists.

        If the manifest is needed to list the commit records and does not exist, return a fault for the manifest. In all
        other cases, also for a damaged record, return None.
        """
        place = source.partition("#")[0]
        folder = (self.root / place).parent
        if not folder.is_dir():
            return None
        try:
            paths = [self.root / one for one in self.places(source)]
        except IntegrityError:
            paths = [self.root / MANIFEST]
        path = next((path for path in paths if not path.exists()), None)  # A damaged record is a fault of its own.
        return Fault(path, "missing: other files of this run were made from it", gone=True) if path else None


def combine_digests(digests: Iterable[str]) -> str:
    """Return one digest of several digests, which depends on the order of `digests`."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _misplaced(commit: Commit) -> Fault:
    return Fault(commit.path, f"misplaced: it belongs at {commit.place}, but was moved or copied to another place")


def file_faults(commit: Commit, hashed: bool) -> Iterator[Fault]:
    """Yield the faults of the files for which a commit record vouches."""
    for name, about in commit.files.items():
        path = commit.path.parent / name
        if reason := file_fault(path, about, hashed):
            yield Fault(path, reason)


def file_fault(path: Path, about: FileSum, hashed: bool = True) -> str:
    """Return how the file `path` differs from the size, and with `hashed` also from the sha256, in `about`.

    The text begins with truncated, changed, missing or unreadable, and is empty if the file does not differ. A process
    hashes a file again only if the size, the inode or the time of modification has changed.
    """
    try:
        status = path.stat()
        if status.st_size < about["bytes"]:
            return f"truncated: it has {status.st_size:,} of {about['bytes']:,} bytes"
        if status.st_size > about["bytes"]:
            return f"changed: it has {status.st_size:,} bytes, but {about['bytes']:,} were written"
        if hashed and _sha256(str(path), status.st_mtime_ns, status.st_size, status.st_ino) != about["sha256"]:
            return "changed: its content is not what was written"
    except FileNotFoundError:
        return "missing: only its commit record exists"
    except OSError as error:
        return f"unreadable: reading it fails ({error.strerror})"
    return ""


@lru_cache(MAX_CACHED_COMMITS)
def _sha256(name: str, *_: int) -> str:
    return file_sha256(Path(name))
