"""Which files of a run's folder belong to finished artefacts."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.errors import IntegrityError, UsageError
from pipeline.storage.atomic import is_sidecar, read_json
from pipeline.storage.batch import TEMPORARY, is_regular
from pipeline.storage.commits import COMMITTED, REJECTS, artefact_of, fault_of
from pipeline.storage.integrity import CHECKPOINTS
from pipeline.storage.integrity import PARTS as UNFINISHED
from pipeline.storage.locks import is_lock
from pipeline.storage.names import inside


def finished_files(run: Path) -> tuple[dict[str, Path], dict[str, str], list[str]]:
    """The files of finished artefacts by name, the sha256 of those that a commit vouches for, and the names of files
    that lack a commit.

    Only sizes are compared. Raises UsageError where there is no run, and IntegrityError for a file that is not as long
    as its commit says.
    """
    files: dict[str, Path] = {}
    for folder, below, names in os.walk(run):
        below[:] = sorted(one for one in below if not one.startswith(".") and not one.endswith(UNFINISHED))
        below[:] = [one for one in below if one != CHECKPOINTS]
        for name in sorted(names):
            path = Path(folder, name)
            if not (TEMPORARY.fullmatch(name) or is_lock(path) or name.startswith(".")) and is_regular(path):
                files[path.relative_to(run).as_posix()] = path
    if "config.yaml" not in files:
        raise UsageError(f"{run} holds no run; name the folder of one")
    digests: dict[str, str] = {}
    unfinished: list[str] = []
    for path in list(files.values()):
        if path.suffix == ".json":
            for own, about in _vouched(path):
                if fault := fault_of(own, about, hashed=False):
                    raise IntegrityError(f"{own}: {fault}; run its stage again, or `jointspace verify {run}`")
                digests[own.relative_to(run).as_posix()] = about["sha256"]
    for name, path in list(files.items()):
        if path.suffix in COMMITTED and path.name != REJECTS and name not in digests:
            unfinished.append(name)
            del files[name]
    return files, digests, unfinished


def _vouched(commit: Path) -> Iterator[tuple[Path, Any]]:
    """The files that a commit vouches for, with their bytes and sha256."""
    value = read_json(commit)
    if is_sidecar(value):
        yield artefact_of(commit), value
    elif isinstance(value, dict) and isinstance(value.get("files"), dict):
        for name, about in value["files"].items():
            if isinstance(about, dict) and isinstance(about.get("sha256"), str):
                yield inside(commit.parent, name, commit), about
