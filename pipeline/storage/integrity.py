"""A run's artefacts against their commits: what is missing, truncated, changed, uncommitted, or of another run.

A commit is a JSON file of ours: a sidecar, a manifest, a bundle's card, a vocabulary, an evaluation. It names its own
`fingerprint` and those of its `inputs`, which must be the fingerprints of artefacts of this run.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import IntegrityError
from pipeline.storage import shards
from pipeline.storage.atomic import CHECK, is_sidecar, read_json
from pipeline.storage.batch import TEMPORARY, file_sha256, is_orphan, is_regular
from pipeline.storage.bundle import CARD
from pipeline.storage.fragments import FRAGMENTS
from pipeline.storage.locks import is_held, is_lock
from pipeline.storage.manifest import TABLES, Manifest, shard_fingerprints
from pipeline.storage.names import inside
from pipeline.storage.parameters import ENCODER, MODEL
from pipeline.storage.tokens import TOKENS

MANIFEST = "manifest.json"
COMMITTED = frozenset({".h5", ".parquet", ".safetensors", ".faiss", ".conllu", ".brackets"})
"""Endings of files that do not exist without a commit."""
UNFINISHED = (".parts", "checkpoints")
"""Folders of work that a killed stage goes on with, and checks itself."""
KINDS = {
    "encoder": ENCODER, "encoders": ENCODER, "features": shards.FEATURES, "tfidf": shards.TFIDF, "tokens": TOKENS,
    "target": shards.MOMENTS, "auxiliary": shards.MOMENTS, "model": MODEL, "start": MODEL, "regions": "regions",
    "embeddings": shards.EMBEDDINGS, "manifest": MANIFEST, "vocabulary": "vocabulary",
}  # fmt: skip
"""First part of an input's name -> kind of the artefact whose fingerprint it is."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with the file `path`, and the file whose rule makes it anew."""

    path: Path
    reason: str
    target: Path


@dataclass
class Examination:
    """`checked` files that are what their commits say or are in `faults`; `unvouched` ones, which no commit names;
    `temporaries` and locks of writers, with whether their writer is gone."""

    checked: int = 0
    faults: list[Fault] = field(default_factory=list)
    unvouched: list[Path] = field(default_factory=list)
    temporaries: dict[Path, bool] = field(default_factory=dict)


def examine(run: Path, progress: Callable[[list[Path]], Iterable[Path]] = iter) -> Examination:
    """Hash every artefact under the folder `run`. Raises IntegrityError where there is no commit at all."""
    found = _Examiner(Path(run))
    commits = [path for path in found.files if path.suffix == ".json"]
    if not commits:
        raise IntegrityError(f"{run} holds no artefact; give the folder of a run, such as results/demo")
    for path in progress(commits):
        found.check_commit(path)
    found.check_manifests()
    found.check_inputs()
    found.check_strays()
    result = found.result
    result.faults.sort(key=lambda fault: fault.path)
    return result


class _Examiner:
    def __init__(self, run: Path) -> None:
        self.run = run
        self.result = Examination()
        self.files: list[Path] = []
        self.vouched: set[Path] = set()
        self.commits: list[tuple[Path, Mapping[str, Any]]] = []
        self.manifests: list[Path] = []
        for path in _walk(run):
            if TEMPORARY.fullmatch(path.name) and is_regular(path):
                self.result.temporaries[path] = is_orphan(path)
            elif is_lock(path):
                self.result.temporaries[path] = not is_held(path)
            elif not any(part.endswith(UNFINISHED) for part in path.relative_to(run).parts[:-1]):
                self.files.append(path)
        self._bundles = {path.parent for path in self.files if path.name == CARD}

    def add(self, path: Path, reason: str, target: Path | None = None) -> None:
        self.result.faults.append(Fault(path, reason, target or path))

    def check_commit(self, path: Path) -> None:
        """Read a commit, and hash what it vouches for. Those inside of a bundle are its card's business."""
        if path.name != CARD and any(parent in self._bundles for parent in path.parents):
            return
        self.vouched.add(path)
        target = _target(path)
        self.result.checked += 1
        try:
            value = read_json(path)
        except IntegrityError as error:
            self.add(path, f"damaged: {error}", target)
            self.vouched.add(target)
            return
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, dict) and CHECK in part for part in parts):
            self.result.unvouched.append(path)
        if path.name == MANIFEST:
            self.manifests.append(path)
        self.commits += [(target, part) for part in parts if isinstance(part, dict)]
        if is_sidecar(value):
            self.check_file(_artefact(path), value, target)
            return
        cells = set()
        for name, about in (value.get("files", {}) if isinstance(value, dict) else {}).items():
            if isinstance(about, list):  # a study's
                cells.update(about)
                continue
            folder = path.with_suffix("") if isinstance(about, str) else path.parent
            if (file := self._named(folder, name, path)) is not None:
                self.check_file(file, {"sha256": about} if isinstance(about, str) else about, path)
        for cell in (self._named(path.parent / "cells", name, path) for name in cells):
            if cell is not None and not cell.exists():  # each of them a commit of its own
                self.add(cell, f"missing: {path.name} lists it", path)

    def _named(self, folder: Path, name: Any, commit: Path) -> Path | None:
        """The file `name` of a commit; None, and a fault, where it lies elsewhere."""
        try:
            return inside(folder, name, commit)
        except IntegrityError as error:
            self.add(commit, f"damaged: {error}", commit)
            return None

    def check_file(self, path: Path, about: Mapping[str, Any], target: Path) -> None:
        self.vouched.add(path)
        self.result.checked += 1
        if reason := _fault(path, about):
            self.add(path, reason, target)

    def check_manifests(self) -> None:
        """A manifest's tables, the fingerprints of its shards, and whether other folders have all these shards."""
        for path in self.manifests:
            try:
                manifest = Manifest(path.parent)
                self._check_shards(manifest)
                tables = {name: getattr(manifest, name) for name in TABLES}
                expected = shard_fingerprints(tables, manifest.shard_size)
                _ = manifest.rejects
            except IntegrityError as error:
                if path not in {fault.target for fault in self.result.faults}:
                    self.add(path, f"mixed or missing: {error}")
                continue
            finally:
                self.vouched.add(path.with_name("rejects.jsonl"))
            for number, value in enumerate(expected):
                shard = path.parent / "shards" / f"{number:05d}.json"
                found = dict(self._value(shard))
                if {name: found.get(name) for name in value} != value:
                    self.add(shard, "mixed or missing: it is not of the manifest's tables", path)

    def _check_shards(self, manifest: Manifest) -> None:
        names = [f"shard-{number:05d}" for number in range(manifest.n_shards)]
        folders = defaultdict(set)
        for path in self.vouched:
            if path.stem in names and path.suffix != ".json":
                folders[path.parent, path.suffix].add(path.stem)
        for (folder, suffix), there in folders.items():
            for path in (folder / f"{name}{suffix}" for name in sorted(set(names) - there)):
                if not path.exists():
                    self.add(path, "missing: the manifest has this shard")

    def check_inputs(self) -> None:
        """Whether what each artefact was made from is what this run has; an input that is gone altogether may be."""
        there: dict[str, set[str]] = defaultdict(set)
        for path, value in self.commits:
            there[_kind(path, value)].add(value.get("fingerprint"))
        for path, value in self.commits:
            details = value.get("details", value)
            inputs = {**(details.get("inputs") or {}), **_vocabulary(details)}
            for name, digest in inputs.items():
                known = there[KINDS.get(name.partition("/")[0], "")] or self._shard_inputs(path, name)
                if known and digest not in known:
                    self.add(path, f"mixed: made from another {name} than this run has")
                    break

    def _shard_inputs(self, path: Path, name: str) -> set[str]:
        """The manifest's fingerprint of the images, sentences and so on of the shard that `path` is of."""
        number = path.stem.removeprefix("shard-")
        values = (self._value(manifest.parent / "shards" / f"{number}.json") for manifest in self.manifests)
        return {value[name] for value in values if isinstance(value.get(name), str) and number != path.stem}

    def _value(self, path: Path) -> Mapping[str, Any]:
        return next((value for found, value in self.commits if found == path), {})

    def check_strays(self) -> None:
        faulty = {fault.path for fault in self.result.faults} | {fault.target for fault in self.result.faults}
        for path in self.files:
            if path in self.vouched or path in faulty:
                continue
            if path.suffix in COMMITTED and not any(parent in self._bundles for parent in path.parents):
                target = path.with_name(CARD) if path.suffix == ".faiss" else path
                self.add(path, "uncommitted: it has no sidecar, so its writer never finished", target)
            else:
                self.result.unvouched.append(path)


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent) / name for name in sorted(names))


def _fault(path: Path, about: Mapping[str, Any]) -> str | None:
    """Why the file is not the one of `bytes` and `sha256` in `about`; None where it is."""
    try:
        size = path.stat().st_size
        if size < about.get("bytes", 0):
            return f"truncated: {size:,} of {about['bytes']:,} bytes"
        if file_sha256(path) != about["sha256"]:
            return "changed: other bytes than were written"
    except FileNotFoundError:
        return "missing: its commit is there"
    except OSError as error:
        return f"unreadable: {error.strerror}"
    return None


def _artefact(sidecar: Path) -> Path:
    """The artefact of a sidecar; the inverse of `sidecar_path`."""
    artefact = sidecar.with_suffix("")
    return artefact if artefact.suffix else artefact.with_suffix(".safetensors")


def _target(commit: Path) -> Path:
    """The file that a rule makes when it makes what `commit` vouches for."""
    if commit.parent.name == "shards" and commit.stem.isdecimal():
        return commit
    artefact = commit.with_suffix("")
    if artefact.suffix == ".parquet" and artefact.stem in TABLES and commit.with_name(MANIFEST).exists():
        return commit.with_name(MANIFEST)
    return artefact if artefact.suffix in COMMITTED else commit


def _kind(path: Path, value: Mapping[str, Any]) -> str:
    if "terms" in value or "views" in value:
        return "vocabulary"
    if path.name == MANIFEST and "shard_size" in value:
        return MANIFEST
    kind = str(value.get("kind"))
    return shards.EMBEDDINGS if kind == FRAGMENTS else kind


def _vocabulary(details: Mapping[str, Any]) -> dict[str, str]:
    found = details.get("vocabulary")
    return {"vocabulary": found} if isinstance(found, str) else {}
