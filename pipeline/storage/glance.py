"""A glance at a run: whether all that its commits list is there, by names and sizes, without reading artefacts.

Of shards only the commits of their parts are read, and that of the manifest, so that it takes seconds for tens of
thousands of them. What has been changed without another size is found by pipeline.storage.integrity alone.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

from pipeline.errors import IntegrityError
from pipeline.storage.atomic import is_sidecar, read_json
from pipeline.storage.bundle import CARD
from pipeline.storage.commits import MANIFEST, PARTS, artefact_of, fault_of, listed_shards, target_of
from pipeline.storage.integrity import CHECKPOINTS, Examination, Fault
from pipeline.storage.integrity import PARTS as UNFINISHED
from pipeline.storage.manifest import Manifest, table_file
from pipeline.storage.names import inside


def glance(run: Path) -> Examination:
    """The faults that names and sizes tell of. Raises IntegrityError if there is no commit at all."""
    found, commits, whole = Examination(), 0, cache(_whole)  # a folder has many parts
    for folder, names in _folders(Path(run)):
        if folder.name == "shards" and folder.parent.name == "manifest":  # looked at with their manifest
            if not (manifest := folder.with_name(MANIFEST)).exists():
                found.faults.append(Fault(manifest, "missing: its shards are here", manifest))
            continue
        records = [folder / name for name in sorted(names) if name.endswith(".json")]
        if CARD in names:
            records = [folder / CARD]
        elif (folder / PARTS).is_dir():
            records = [path for path in records if not path.name.startswith("shard-")]
        commits += len(records)
        for path in records:
            try:
                faults = list(_look(path, whole, found))
            except IntegrityError as error:
                faults = [Fault(path, f"damaged: {error}", target_of(path))]
            found.faults += faults
    if not commits:
        raise IntegrityError(f"{run} holds no artefact; give the folder of a run, such as results/demo")
    found.faults.sort(key=lambda fault: fault.path)
    return found


def _folders(run: Path) -> Iterator[tuple[Path, set[str]]]:
    """The folders below `run` that hold finished work, with the names in them."""
    for folder, below, names in os.walk(run):
        below[:] = sorted(name for name in below if not name.startswith(".") and not name.endswith(UNFINISHED))
        below[:] = [name for name in below if name != CHECKPOINTS]
        yield Path(folder), {name for name in names if not name.startswith(".")}


def _look(path: Path, whole: Callable[[Path], set[str]], found: Examination) -> Iterator[Fault]:
    """What is wrong with the files that the commit `path` is of; `whole(folder)` are the shards in a folder."""
    value = read_json(path)
    found.checked += 1
    if path.name == MANIFEST and isinstance(value, Mapping) and "shard_size" in value:
        manifest, here = Manifest(path.parent), set(os.listdir(path.parent / "shards"))
        expected = (name for n in range(manifest.n_shards) for name in (f"{n:05d}.json", table_file(n, "images")))
        yield from _missing(path.parent / "shards", expected, here, path, found)
    elif listed := listed_shards(path, value):
        folder = path.parents[1]
        yield from _missing(folder, (f"shard-{number:05d}" for number in listed), whole(folder), path, found)
    elif is_sidecar(value):
        yield from _file(artefact_of(path), value, target_of(path), found)
    elif isinstance(value, Mapping) and isinstance(value.get("files"), Mapping):
        for name, about in value["files"].items():
            if isinstance(about, Mapping):
                yield from _file(inside(path.parent, name, path), about, path, found)


def _whole(folder: Path) -> set[str]:
    """The names in a folder, without endings, of what has its sidecar beside it."""
    there = set(os.listdir(folder))
    return {name.partition(".")[0] for name in there if f"{name}.json" in there}


def _missing(
    folder: Path, expected: Iterator[str], there: set[str], commit: Path, found: Examination
) -> Iterator[Fault]:
    for name in expected:
        found.checked += 1
        if name not in there:
            yield Fault(folder / name, f"missing: {commit.name} lists it", commit)


def _file(path: Path, about: Mapping, target: Path, found: Examination) -> Iterator[Fault]:
    found.checked += 1
    if reason := fault_of(path, about, hashed=False):
        yield Fault(path, reason, target)
