"""Checking a run's artefacts against their commits: missing, truncated, changed, uncommitted, misplaced, or foreign.

A commit is a JSON file of ours: a sidecar, a manifest, a bundle's card, a vocabulary, an evaluation. It holds its own
`fingerprint` and those of its `inputs`, which must be artefacts of this run. Whatever cannot be read is a fault, too:
links, pipes, devices, and files that this user may not read.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.errors import IntegrityError
from pipeline.storage import commits
from pipeline.storage.atomic import CHECK, is_sidecar, read_json
from pipeline.storage.batch import TEMPORARY, is_orphan, is_regular
from pipeline.storage.bundle import CARD
from pipeline.storage.commits import MANIFEST, artefact_of
from pipeline.storage.locks import is_held, is_lock
from pipeline.storage.manifest import TABLES, Manifest, shard_commit
from pipeline.storage.manifest_writer import shard_fingerprints
from pipeline.storage.names import inside
from pipeline.storage.places import misplaced
from pipeline.storage.reading import explain, kind_of, walk

PARTS, CHECKPOINTS = ".parts", "checkpoints"  # folders of unfinished work, which a stage checks when it resumes


@dataclass(frozen=True)
class Fault:
    """What is wrong with the file `path`, and the target whose rule makes it again; None if no rule does."""

    path: Path
    reason: str
    target: Path | None


@dataclass
class Examination:
    """The number of `checked` files, and the `faults` among them; `unvouched` files, which no commit names;
    `unfinished` work of stages that were killed or still run; `temporaries` and locks, with whether their writer is
    dead."""

    checked: int = 0
    faults: list[Fault] = field(default_factory=list)
    unvouched: list[Path] = field(default_factory=list)
    unfinished: list[Path] = field(default_factory=list)
    temporaries: dict[Path, bool] = field(default_factory=dict)


def examine(run: Path, progress: Callable[[list[Path]], Iterable[Path]] = iter) -> Examination:
    """Hash every artefact under the folder `run`. Raises IntegrityError if there is no commit at all."""
    found = _Examiner(Path(run))
    records = [path for path in found.files if path.suffix == ".json"]
    if not records and all(fault.path == Path(run) for fault in found.result.faults):
        raise IntegrityError(f"{run} holds no artefact; give the folder of a run, such as results/demo")
    for path in progress(records):
        found.check_commit(path)
    found.check_manifests()
    found.check_inputs()
    found.check_strays()
    found.check_parts()
    found.result.faults.sort(key=lambda fault: fault.path)
    return found.result


class _Examiner:
    def __init__(self, run: Path) -> None:
        self.run = run
        self.result = Examination()
        self.files: list[Path] = []
        self.vouched: set[Path] = set()
        self.commits: list[tuple[Path, Mapping[str, Any]]] = []
        self.manifests: list[Path] = []
        self.shards: dict[Path, Mapping[str, Any]] = {}  # the commits of the manifest's shards
        for path, status in walk(run):
            if isinstance(status, OSError):
                self.result.faults.append(Fault(path, f"unread: {explain(path, status)}", None))
            elif kind := kind_of(status.st_mode):
                self.result.faults.append(
                    Fault(path, f"unread: it is {kind}; put the file or folder itself here", None)
                )
            else:
                self._sort_in(path)
        self._present = set(self.files)
        self._bundles = {path.parent for path in self.files if path.name == CARD}

    def _sort_in(self, path: Path) -> None:
        above = path.relative_to(self.run).parts[:-1]
        if TEMPORARY.fullmatch(path.name) and is_regular(path):
            self.result.temporaries[path] = is_orphan(path)
        elif is_lock(path):
            self.result.temporaries[path] = not is_held(path)
        elif any(part == CHECKPOINTS or part.endswith(PARTS) for part in above):
            self.result.unfinished.append(path)
        elif any(part.startswith(".") for part in above):
            self.result.unvouched.append(path)
        else:
            self.files.append(path)

    def add(self, path: Path, reason: str, target: Path | None = None) -> None:
        self.result.faults.append(Fault(path, reason, target or path))

    def check_commit(self, path: Path) -> None:
        """Read a commit, and hash what it vouches for. A bundle's card vouches for the commits inside it."""
        if path.name != CARD and any(parent in self._bundles for parent in path.parents):
            return
        self.vouched.add(path)
        target = commits.target_of(path)
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
        if path.parent.name == "shards" and isinstance(value, dict):
            self.shards[path] = value
        self.commits += [(target, part) for part in parts if isinstance(part, dict)]
        if is_sidecar(value):
            self._check_place(artefact_of(path), value["details"], target)
            expected = commits.kind_of_place(path.relative_to(self.run))
            if expected not in ("", kind := commits.kind_of_commit(path, value)):
                self.add(artefact_of(path), f"misplaced: it is of kind {kind}, and its place is for {expected}", target)
            self.check_file(artefact_of(path), value, target)
        elif isinstance(value, dict):
            self._check_place(path, value, target)
            self._check_files(path, value)

    def _check_place(self, path: Path, record: Mapping[str, Any], target: Path) -> None:
        if reason := misplaced(path, record):
            self.add(path, f"misplaced: it {reason}", target)
        model, named = record.get("model"), path.parent.name
        # A bundle may have any name but that of another model of the run.
        taken = self.run / "models" / named / "model.safetensors" in self._present
        if path.name == CARD and path.parents[1].name == "index" and model != named and taken:
            self.add(path, f"misplaced: it is of model {model}, not of {named}", target)
        part = record.get("part")
        placed = named.isdecimal() and (path.parents[1].name, path.parents[2].name) == (model, "index")
        if part and placed and part.get("number") != int(named):
            self.add(path, f"misplaced: it is bundle {part.get('number')}, not {int(named)}", target)

    def _check_files(self, path: Path, value: Mapping[str, Any]) -> None:
        """Check the files that a commit lists: name -> {bytes, sha256}, for a parser name -> sha256, or for a study
        number -> names of cells, each a commit of its own."""
        listed, cells = value.get("files", {}), set()
        if not isinstance(listed, dict):
            self.add(path, "damaged: its list of files has another form")
            return
        for name, about in listed.items():
            if isinstance(about, list):
                cells.update(map(str, about))
                continue
            folder = path.with_suffix("") if isinstance(about, str) else path.parent
            if (file := self._named(folder, name, path)) is not None:
                self.check_file(file, {"sha256": about} if isinstance(about, str) else about, path)
        for cell in (self._named(path.parent / "cells", name, path) for name in sorted(cells)):
            if cell is not None and cell not in self._present:
                self.add(cell, f"missing: {path.name} lists it", path)

    def _named(self, folder: Path, name: Any, commit: Path) -> Path | None:
        """The file `name` of a commit; None, and a fault, if it leads out of `folder`."""
        try:
            return inside(folder, name, commit)
        except IntegrityError as error:
            self.add(commit, f"damaged: {error}", commit)
            return None

    def check_file(self, path: Path, about: Any, target: Path) -> None:
        self.vouched.add(path)
        self.result.checked += 1
        if reason := commits.fault_of(path, about):
            self.add(path, reason, target)

    def check_manifests(self) -> None:
        """Check a manifest's tables, its shards' fingerprints, and whether all folders of shards are complete."""
        for folder in sorted({path.parents[1] for path in self.shards} - {path.parent for path in self.manifests}):
            self.add(folder / MANIFEST, "missing: its shards are here")
        for path in self.manifests:
            try:
                manifest = Manifest(path.parent)
                self._check_shards(manifest)
                for number in range(manifest.n_shards):
                    self._check_shard(manifest, number)
                _ = manifest.rejects
            except IntegrityError as error:
                if path not in {fault.target for fault in self.result.faults}:
                    self.add(path, f"mixed or missing: {error}")
            finally:
                self.vouched.add(path.with_name("rejects.jsonl"))

    def _check_shard(self, manifest: Manifest, number: int) -> None:
        """Check that the commit of a manifest's shard has the fingerprints of its tables."""
        said = {**manifest.shard(number).fingerprints, "content": manifest.summary["contents"][number]}
        if said != shard_fingerprints({name: manifest.table(name, number) for name in TABLES}):
            path = shard_commit(manifest.folder, number)
            self.add(path, "mixed or missing: it is not of the manifest's tables", manifest.folder / MANIFEST)

    def _check_shards(self, manifest: Manifest) -> None:
        names, folders = {f"shard-{number:05d}" for number in range(manifest.n_shards)}, defaultdict(set)
        for path in self.vouched:
            if path.stem in names and path.suffix != ".json":
                folders[path.parent, path.suffix].add(path.stem)
        for (folder, suffix), present in folders.items():
            for path in (folder / f"{name}{suffix}" for name in sorted(names - present)):
                if path not in self._present:
                    self.add(path, "missing: the manifest has this shard")

    def check_inputs(self) -> None:
        """Check that each artefact was made from this run's artefacts; inputs that are gone altogether are allowed."""
        present: dict[str, set[str]] = defaultdict(set)
        for path, value in self.commits:
            present[commits.kind_of_commit(path, value)].add(str(value.get("fingerprint")))
        for path, value in self.commits:
            for name, digest in commits.inputs_of(value).items():
                known = present[commits.kind_of_input(name)] or self._shard_inputs(path, name)
                if known and digest not in known:
                    self.add(path, f"mixed: made from another {name} than this run has")
                    break

    def check_parts(self) -> None:
        """Check the shards that each part lists. A rule makes all shards of a part together."""
        present, part_of, records = defaultdict(set), {}, {}
        for path, value in self.commits:
            present[path.with_suffix("")].add(value.get("fingerprint"))
        for path, value in self.commits:
            listed = commits.listed_shards(path, value)
            if listed and (other := records.setdefault((path.parent, tuple(listed.items())), path)) != path:
                for copy, original in ((path, other), (other, path)):  # which is which cannot be told
                    self.add(copy, f"misplaced: {original.name} lists the same shards")
            shards = {number: path.parents[1] / f"shard-{number:05d}" for number in listed}
            part_of |= dict.fromkeys(shards.values(), path)
            if others := [number for number, digest in listed.items() if digest not in present[shards[number]]]:
                self.add(path, f"mixed: shard {others[0]} is not the one that it lists")
        self.result.faults = [
            replace(fault, target=part_of.get(fault.target.with_suffix(""), fault.target)) if fault.target else fault
            for fault in self.result.faults
        ]

    def _shard_inputs(self, path: Path, name: str) -> set[str]:
        """The manifest's fingerprints for `name` (images, sentences and so on) in the shard of `path`."""
        number = path.stem.removeprefix("shard-")
        values = (self.shards.get(manifest.parent / "shards" / f"{number}.json", {}) for manifest in self.manifests)
        return {value[name] for value in values if isinstance(value.get(name), str) and number != path.stem}

    def check_strays(self) -> None:
        faulty = {fault.path for fault in self.result.faults} | {fault.target for fault in self.result.faults}
        for path in self.files:
            if path in self.vouched or path in faulty:
                continue
            committed = path.suffix in commits.COMMITTED and path.name != commits.REJECTS
            if committed and not any(parent in self._bundles for parent in path.parents):
                target = path.with_name(CARD) if path.suffix == ".faiss" else path
                self.add(path, "uncommitted: it has no sidecar, so its writer never finished", target)
            else:
                self.result.unvouched.append(path)
