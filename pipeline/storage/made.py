"""Whether an artefact is there, and what it was made from, by its commit alone."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from pipeline.errors import IntegrityError
from pipeline.storage.atomic import CHECK, is_sidecar, read_json
from pipeline.storage.commits import artefact_of, fault_of
from pipeline.storage.reading import is_there


def fingerprint_of(commit: Path) -> str:
    """The fingerprint that a commit records; of a file that is its own commit and has none, its digest.

    Raises IntegrityError where the artefact is not there, or the file is no commit.
    """
    if not is_there(commit):
        raise IntegrityError(f"{commit} does not exist; run its stage first")
    value = read_json(commit)
    digest = (value.get("fingerprint") or value.get(CHECK)) if isinstance(value, Mapping) else None
    if not isinstance(digest, str):
        raise IntegrityError(f"{commit} has no fingerprint, so it is no commit; delete it and run its stage again")
    return digest


def combined_fingerprint(parts: Iterable[str]) -> str:
    """One digest of several fingerprints, in their order."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def is_made(commit: Path, fingerprint: str) -> bool:
    """Whether what `commit` vouches for is there, whole, and made from exactly what `fingerprint` says."""
    try:
        if not is_there(commit) or fingerprint_of(commit) != fingerprint:
            return False
        value = read_json(commit)
    except IntegrityError:
        return False
    return not is_sidecar(value) or fault_of(artefact_of(commit), value) is None
