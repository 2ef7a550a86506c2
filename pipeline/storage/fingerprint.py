"""Fingerprints: what an artefact was made from, as one hash.

A fingerprint covers the artefact's kind, the version of the code's format, the configuration slice, and
the fingerprints of every input. Two artefacts fit together exactly when the fingerprints that one of them
recorded for its inputs are those of the other.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pipeline.errors import IntegrityError


def canonical_json(value: Any) -> bytes:
    """The one spelling of a JSON value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def fingerprint(kind: str, version: int, settings: Any = None, inputs: Mapping[str, str] | None = None) -> str:
    """64 hexadecimal digits for an artefact of `kind`, made with `settings` from `inputs` (name -> fingerprint)."""
    parts = {"kind": kind, "version": version, "settings": settings, "inputs": dict(inputs or {})}
    return hashlib.sha256(canonical_json(parts)).hexdigest()


def require_same(what: str, fingerprints: Mapping[str, str]) -> str:
    """The fingerprint that all of `fingerprints` (file -> fingerprint) share.

    Raises IntegrityError naming two files that differ: artefacts of different runs must not be mixed.
    """
    if not fingerprints:
        raise IntegrityError(f"no {what} given")
    names = list(fingerprints)
    for name in names[1:]:
        if fingerprints[name] != fingerprints[names[0]]:
            raise IntegrityError(
                f"{what} of {names[0]} and of {name} differ: they come from different runs; rebuild the older one"
            )
    return fingerprints[names[0]]
