"""Whether an artefact is there, and what it was made from, by its commit alone."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from pipeline.errors import IntegrityError
from pipeline.storage.atomic import CHECK, is_sidecar, read_json
from pipeline.storage.commits import artefact_of, fault_of
from pipeline.storage.reading import is_there


def fingerprint_of(commit: Path) -> str:
    """The fingerprint that a commit records; of a file that is its own commit and has none, its digest.

    Raises IntegrityError where the artefact is not there.
    """
    if not is_there(commit):
        raise IntegrityError(f"{commit} does not exist; run its stage first")
    value = read_json(commit)
    return value.get("fingerprint") or value[CHECK]


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
