"""Commits: which files an artefact has, where it lies, what made it, and from what.

The commit of an artefact is a JSON file beside it, or the artefact itself where that is JSON:

    place      its own path below the folder of the run: "embeddings/ncca/shard-00003.h5.json"
    made_by    {stage, version, keys}: what decided the result
    inputs     {place: digest} of the commits that it was made from. "moments/target/shard-*.h5.json" stands for the
               shards of all numbers, "manifest/shards/00003.json#images" for what that commit says under `images`
    files      {name: {bytes, sha256}} of the files that it vouches for, beside it or below
    digest     of all that readers get: the files and everything else here but `made_by` and `inputs`

A commit is valid if it lies at its place, its files are as they were written, and its inputs are what is there now. An
artefact is written under temporary names, its commit last; without that it does not exist. If the whole folder of an
input is gone, somebody has deleted it on purpose; what was made from it stays valid.
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

from pipeline.errors import IntegrityError
from pipeline.storage.batch import FileBatch, FileSum
from pipeline.storage.files import REMEDY, file_sha256, is_regular, plain, read_bytes, refusing
from pipeline.storage.json_files import File, Form, Json, canonical_json, fingerprint, read_json, require_form, to_json

MANIFEST = "manifest/manifest.json"
CARRIED = "commit"
"""The key of an index's card that holds its commit: an index travels, and its card has a form of its own."""
KEPT = 1 << 12
"""Commits that a process keeps once they are read."""


@dataclass(frozen=True)
class Provenance:
    """The origin of an artefact in the run `root`: `stage`, its `version`, the `keys` that decide the result, and the
    `inputs` (place -> digest)."""

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
        """The fingerprint by which a rerun finds its own unfinished work."""
        return fingerprint(self.stage, self.version, self.keys, self.inputs)


class About(TypedDict, total=False):
    """The arguments that a writer of an artefact passes on to `publish`."""

    provenance: Provenance | None
    details: Mapping[str, Json] | None
    batch: FileBatch | None


class CommitForm(Form):
    place: str
    made_by: dict[str, Any]
    inputs: dict[str, str]
    files: dict[str, File]
    digest: str
    check: str


@dataclass(frozen=True)
class Commit:
    """The commit in the file `path`, whose `value` is as the module says."""

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
        """The size of all files together."""
        return sum(about["bytes"] for about in self.files.values())

    @cached_property
    def root(self) -> Path | None:
        """The folder of the run by the place; None for a commit that lies elsewhere."""
        path = Path(os.path.abspath(self.path))
        parts = len(Path(self.place).parts)
        return path.parents[parts - 1] if path.as_posix().endswith(f"/{self.place}") else None


class Fault(NamedTuple):
    """A fault of the file `path`. Its `reason` begins with truncated, changed, missing, misplaced or mixed."""

    path: Path
    reason: str
    gone: bool = False  # a commit that something here was made from


def commit_path(path: Path) -> Path:
    """`shard-00000.h5.json` beside `shard-00000.h5`, but `model.json` beside `model.safetensors`."""
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
    """Write an artefact, files `beside` it (name -> bytes) and their commit; an older one stays whole until then.

    With a `batch`, all become visible when that is published. Without `provenance` it is no part of a run.
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
    """Write a JSON object that is its own commit, and the files `beside` it (name -> bytes). It vouches for these, and
    for the `files` that are written already, as `describe_file` describes them."""
    writer = FileBatch() if batch is None else batch
    written = {name: writer.add(path.with_name(name), data) for name, data in beside.items()}
    commit = seal(path, value, {**files, **written}, provenance)
    writer.add(path, to_json(commit.value), commit=True)
    if batch is None:
        writer.publish()
    return commit


def describe_file(path: Path) -> FileSum:
    """Return the size and the sha256 of a file, as a commit records them."""
    return {"bytes": path.stat().st_size, "sha256": file_sha256(path)}


def seal(
    path: Path,
    value: Mapping[str, Json],
    files: Mapping[str, FileSum],
    provenance: Provenance | None,
    digest: str | None = None,
) -> Commit:
    """The commit that is to be written as `path`, of `files` and all that `value` says."""
    place = path.name if provenance is None else Path(os.path.relpath(path, provenance.root)).as_posix()
    rest = {**value, "place": place, "files": dict(files)}
    made_by = provenance.made_by if provenance and provenance.stage else {}
    inputs = dict(provenance.inputs) if provenance else {}
    digest = digest or _digest(rest)
    whole = {"place": place, "made_by": made_by, "inputs": inputs, **value, "files": dict(files), "digest": digest}
    return Commit(path, whole, place, made_by, inputs, files, digest)


def carry(provenance: Provenance, path: Path, digest: str) -> dict[str, Any]:
    """Return what the card `path` of an index with the fingerprint `digest` has under CARRIED."""
    commit = seal(path, {}, {}, provenance, digest)
    return {key: value for key, value in commit.value.items() if key != "files"}


def _digest(content: Mapping[str, Json]) -> str:
    plain = json.loads(json.dumps(content, allow_nan=False))
    return hashlib.sha256(canonical_json(plain)).hexdigest()


def remove_artefact(path: Path, alone: bool = False) -> None:
    """Remove the files that the commit `path` vouches for, as far as they are what it says, and then the commit, which
    goes `alone` where others vouch for the files. What is not ours stays, and nothing is removed through a link."""
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
    """Remove what is numbered from `first` on, by the commits `path_of(number)`, as `remove_artefact` does; the last
    goes first, so that a kill leaves no gap behind which something stays."""
    numbers = takewhile(lambda number: is_regular(path_of(number)), count(first))
    for number in reversed(list(numbers)):
        remove_artefact(path_of(number), alone)


# --- reading


def read_commit(path: Path) -> Commit:
    """The commit in the file `path`. Raises IntegrityError if it is not there, damaged, or not a commit."""
    with refusing(path, missing="does not exist; run its stage first"):
        status = os.stat(path)
    return _read(os.path.abspath(path), status.st_mtime_ns, status.st_size, status.st_ino)


@lru_cache(KEPT)
def _read(name: str, *_: int) -> Commit:
    path = Path(name)
    value = read_json(path)
    own = value
    if isinstance(value, Mapping) and isinstance(value.get(CARRIED), Mapping):
        own = {**value[CARRIED], "files": value.get("files"), "check": value.get("check")}
        if own.get("digest") != value.get("fingerprint"):
            raise IntegrityError(
                f"{path.parent} was changed by `remove` or `add` after the run had built it. `jointspace run CONFIG`"
                " builds it again, and leaves out the removed photos"
            )
    require_form(own, CommitForm, path, what="is not a commit of this version")
    for file in own["files"]:
        plain(file, path)
    return Commit(path, value, own["place"], own["made_by"], own["inputs"], own["files"], own["digest"])


def open_commit(path: Path, kind: str | None = None, hashed: bool = True, anywhere: bool = False) -> Commit:
    """The commit of the artefact `path` of a `kind`, before anything reads that; without a kind `path` is the commit.
    Raises IntegrityError if it is not valid, or of another kind.

    A part of an index may lie `anywhere`, made from what is not here: the index's card has vouched for it.
    """
    commit = read_commit(path if kind is None else commit_path(path))
    if kind is not None and commit.kind != kind:
        raise IntegrityError(f"{path} holds {commit.kind or 'a record'}, not {kind}; name the right file")
    if kind is not None and not (
        isinstance(commit.value.get("details"), Mapping) and type(commit.value.get("rows")) is int
    ):
        raise IntegrityError(f"{commit.path} is not a commit of this version; {REMEDY}")
    if anywhere or commit.root is None:
        faults = file_faults(commit, hashed) if anywhere else iter([_misplaced(commit)])
    else:
        faults = Commits(commit.root).faults(commit.place, hashed)
    for fault in faults:
        raise IntegrityError(f"{fault.path} is {fault.reason}; {REMEDY}")
    return commit


def read_record(path: Path, anywhere: bool = False) -> Any:
    """The JSON object in `path`, which is its own commit. Raises IntegrityError if that is not valid; a part of an
    index may lie `anywhere`, as `open_commit` says."""
    return open_commit(path, anywhere=anywhere).value


def read_verified(path: Path, kind: str, anywhere: bool = False) -> tuple[bytes, Commit]:
    """Return the bytes of a (small) artefact, and its commit, as `open_commit` checks them. Raises IntegrityError, too,
    if another process has replaced the bytes after the check."""
    commit = open_commit(path, kind, anywhere=anywhere)
    data = read_bytes(path)
    if file_fault(path, commit.files[path.name]):  # which hashes it again only if it is another file now
        raise IntegrityError(f"{path} was replaced while it was read; run the same command again")
    return data, commit


# --- validity


class Commits:
    """The commits under the folder `root` of a run, as they are now. Each digest and each check is made once and kept,
    so that an answer does not depend on earlier questions."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self._digests: dict[str, str | None] = {}
        self._valid: set[str] = set()
        self._mixed: dict[tuple[str, bool], Fault | None] = {}

    def faults(self, place: str, hashed: bool = False, deep: bool = False) -> Iterator[Fault]:
        """Whatever makes the commit at `place` invalid; nothing for a valid one. This alone decides. Its files are
        compared by size, or `hashed`; if `deep`, what its inputs were made from has to be what is there, too.

        Raises IntegrityError where there is no commit.
        """
        commit = read_commit(self.root / place)
        if commit.place != place:
            yield _misplaced(commit)
        yield from file_faults(commit, hashed)
        if fault := self._mixture(place, deep):
            yield fault

    def is_done(self, path: Path, provenance: Provenance) -> bool:
        """Whether the artefact whose commit is `path` was made like this, from what is there now, and is whole."""
        try:
            commit = read_commit(path)
        except IntegrityError:
            return False
        same = canonical_json(commit.made_by) == canonical_json(provenance.made_by)
        same = same and provenance.inputs.items() <= commit.inputs.items()
        return same and commit.root is not None and not any(file_faults(commit, False))

    def require(self, source: str) -> str:
        """Return the digest of an input, as it is now. Raises IntegrityError if one of its commits is not valid."""
        if source not in self._valid:
            faults = [self.faults(place, deep=True) for place in self.places(source)]
            faults += [self.faults(part, hashed=True) for part in self._parts(source)]
            for fault in chain.from_iterable(faults):
                raise IntegrityError(f"{fault.path} is {fault.reason}; {REMEDY}")
            self._valid.add(source)
        if (digest := self.digest(source)) is None:
            raise IntegrityError(f"{self.root / source} does not exist; run its stage first")
        return digest

    def digest(self, source: str) -> str | None:
        """Return the digest of the input `source` as it is now, or None if a commit lacks it or is missing."""
        if source not in self._digests:
            self._digests[source] = self._find(source)
        return self._digests[source]

    def places(self, source: str) -> Iterable[str]:
        """The commits that an input is of: one, or that of each shard."""
        place, _, _ = source.partition("#")
        if "*" not in place:
            return [place]
        shards = int(read_commit(self.root / MANIFEST).value["shards"])
        return (place.replace("*", f"{number:05d}") for number in range(shards))

    def _parts(self, source: str) -> Iterator[str]:
        """The commits that vouch for those of the shards, if `source` is all shards: a stage that was killed while it
        made some of them anew has left the others, and the commits of their parts, as they were."""
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
        return combined(digests) if "*" in source else digests[0]

    def _mixture(self, place: str, deep: bool) -> Fault | None:
        """Say why a commit was not made from what is there now; None if it was."""
        if (place, deep) in self._mixed:
            return self._mixed[place, deep]
        commit, fault = read_commit(self.root / place), None
        for source, digest in commit.inputs.items():
            now = self.digest(source)
            if now is None:
                fault = self._missing(source)
            elif now != digest:
                fault = Fault(commit.path, f"mixed: made from another {source} than is there")
            elif deep and any(self._mixture(one, deep) for one in self.places(source)):
                fault = Fault(commit.path, f"mixed: {source}, from which it was made, is out of date")
            if fault is not None:
                break
        self._mixed[place, deep] = fault
        return fault

    def _missing(self, source: str) -> Fault | None:
        """The commit of an input that is gone, although its folder is there."""
        place = source.partition("#")[0]
        folder = (self.root / place).parent
        if not folder.is_dir():
            return None
        try:
            paths = [self.root / one for one in self.places(source)]
        except IntegrityError:
            paths = [self.root / MANIFEST]
        path = next((path for path in paths if not path.exists()), None)  # a damaged one speaks for itself
        return Fault(path, "missing: what is here was made from it", gone=True) if path else None


def combined(digests: Iterable[str]) -> str:
    """One digest of several, in their order."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _misplaced(commit: Commit) -> Fault:
    return Fault(commit.path, f"misplaced: it belongs at {commit.place}, and was moved or copied here")


def file_faults(commit: Commit, hashed: bool) -> Iterator[Fault]:
    """Yield the faults of the files that a commit vouches for."""
    for name, about in commit.files.items():
        path = commit.path.parent / name
        if reason := file_fault(path, about, hashed):
            yield Fault(path, reason)


def file_fault(path: Path, about: FileSum, hashed: bool = True) -> str:
    """Say how a file differs from the `bytes` and, if it is to be `hashed`, the `sha256` in `about`. Return an empty
    text if it does not differ. A process hashes the same file once."""
    try:
        status = path.stat()
        if status.st_size < about["bytes"]:
            return f"truncated: {status.st_size:,} of {about['bytes']:,} bytes"
        if status.st_size > about["bytes"]:
            return f"changed: {status.st_size:,} bytes where {about['bytes']:,} were written"
        if hashed and _sha256(str(path), status.st_mtime_ns, status.st_size, status.st_ino) != about["sha256"]:
            return "changed: other bytes than were written"
    except FileNotFoundError:
        return "missing: its commit is there"
    except OSError as error:
        return f"unreadable: {error.strerror}"
    return ""


@lru_cache(KEPT)
def _sha256(name: str, *_: int) -> str:
    return file_sha256(Path(name))
