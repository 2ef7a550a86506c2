"""Fingerprints: what an artefact was made from, as one hash.

A fingerprint covers the artefact's kind, the version of its format, the configuration keys that it depends on, and the
fingerprints of all its inputs. Two artefacts fit together if and only if one recorded the other's fingerprint.
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
    (first, expected), *others = fingerprints.items()
    for name, found in others:
        if found != expected:
            raise IntegrityError(f"{what} of {first} and of {name} differ: they are of two runs; rebuild the older one")
    return expected
