"""Whether an artefact is what its name says: misplaced artefacts are refused.

A run's layout (docs/artefacts.md) names every artefact after its shard, encoder, model, split and protocol, and its
commit repeats them. This catches a copy of shard 0 under the name of shard 1, or one model's embeddings in another's
folder: intact files in the wrong place.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.registry.generators import GENERATORS
from pipeline.errors import IntegrityError, UsageError

SHARD, OF = "shard", "of"
PATTERNS = tuple(
    re.compile(f"(?:^|/){pattern}$")
    for pattern in (
        r"shard-(?P<shard>\d{5,})\.[^/.]+",
        r"(?:features|regions|encoders|text_encoders)/(?P<encoder>[^/]+)/(?:shard-\d+\.h5|model\.safetensors)",
        r"(?:models|embeddings)/(?P<model>[^/]+)/(?:shard-\d+\.h5|model\.safetensors)",
        r"generators/(?P<generator>[^/]+)/model\.safetensors",
        r"text/(?P<encoder>(?!tokens/|trees/)[^/]+)/shard-\d+\.h5",
        r"text/documents/(?P<documents>[^/]+)/(?P<encoder>[^/]+)/shard-\d+\.h5",
        r"text/simulated/(?P<simulated>[^/]+)\.parquet",
        r"moments/(?P<pairs>target|dev|auxiliary)/(?:(?P<documents>[^/]+)/)?shard-\d+\.h5",
        r"(?P<model>[^/]+)\.(?P<split>train|dev|test|weak)\.(?P<protocol>all-sentences|first-sentence)\.json",
        r"evaluation/phrases/(?P<model>[^/]+?)\.(?P<split>[^/.]+)(?:\.boxes)?\.json",
        r"descriptions/(?P<generator>[^/]+?)\.(?P<split>[^/.]+)(?P<of>\.boxes)?(?:\.json|/descriptions\.json)",
        r"alignments/(?P<model>[^/]+)/(?P<split>[^/.]+)\.jsonl",
        r"phrases/(?P<model>[^/]+)/(?P<split>[^/.]+)/(?:regions|phrases)\.parquet",
    )
)
"""Ends of the paths in the layout; a group is named after the key whose value it holds."""


def claims(path: Path) -> dict[str, str | int]:
    """What an artefact's path says about it, by key; empty for a path outside the layout."""
    name = Path(os.path.abspath(path)).as_posix()
    found: dict[str, str | int] = {}
    for pattern in PATTERNS:
        if match := pattern.search(name):
            found |= {key: value for key, value in match.groupdict().items() if value is not None}
            if OF in match.groupdict():
                found[OF] = "boxes" if match[OF] else "images"
    if SHARD in found:
        found[SHARD] = int(found[SHARD])
    if found.get("generator") not in [spec.name for spec in GENERATORS]:  # folders of other names are allowed
        found.pop("generator", None)
    if "simulated" in found:
        found["documents"] = found.pop("simulated")
    return found


def stated(record: Mapping[str, Any]) -> dict[str, Any]:
    """The same from its record: a sidecar's details, or a JSON object that is its own commit."""
    encoder = record.get("encoder")
    known = {
        "encoder": encoder.get("name") if isinstance(encoder, Mapping) else record.get("name"),
        "model": record.get("model"),
        **{key: record.get(key) for key in ("shard", "generator", "documents", "pairs", "split", "protocol", "of")},
    }
    return {key: value for key, value in known.items() if value is not None}


def misplaced(path: Path, record: Mapping[str, Any]) -> str | None:
    """Why an artefact with this record does not belong at `path`; None if it does."""
    found = stated(record)
    for key, claim in claims(path).items():
        if key == SHARD and key not in found:
            return "does not say which shard it is: an earlier version wrote it"
        if found.get(key, claim) != claim:
            return f"is of {key} {found[key]}, not of {claim}: it was moved or copied there"
    return None


def require_place(path: Path, record: Mapping[str, Any]) -> None:
    """Raises IntegrityError if the artefact's record contradicts its `path`."""
    if reason := misplaced(path, record):
        raise IntegrityError(f"{path} {reason}; run its stage again")


def require_output(path: Path, record: Mapping[str, Any]) -> None:
    """Raises UsageError if what a command is about to write contradicts the name `path`."""
    found = stated(record)
    for key, claim in claims(path).items():
        if found.get(key, claim) != claim:
            raise UsageError(f"{path} is the place of {key} {claim}, and {found[key]} was asked for; correct its name")
