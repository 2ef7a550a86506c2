"""What a commit of a run says: what it vouches for, which rule makes that, and what it was made from."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.storage import shards
from pipeline.storage.alignments import ALIGNMENTS
from pipeline.storage.embeddings import FRAGMENTS
from pipeline.storage.manifest import TABLES
from pipeline.storage.parameters import ENCODER, MODEL
from pipeline.storage.phrases import TABLES as PHRASE_TABLES
from pipeline.storage.reading import file_sha256
from pipeline.storage.tables import MOST_DIGITS
from pipeline.storage.tokens import TOKENS
from pipeline.storage.trees import PARSES, TREES

REJECTS = "rejects.jsonl"
MANIFEST = "manifest.json"
PARTS = "parts"
"""Folder beside shards of the commits of parts, each of which lists a range of them."""
COMMITTED = frozenset({".h5", ".parquet", ".safetensors", ".faiss", ".conllu", ".brackets", ".jsonl"})
"""Endings of files that do not exist without a commit."""
READ_BY_PEOPLE = frozenset({".png", ".md", ".json"})
"""Endings of files with a sidecar that need not have one."""
KINDS = {
    "encoder": ENCODER, "encoders": ENCODER, "features": shards.FEATURES, "tfidf": shards.TFIDF, "tokens": TOKENS,
    "target": shards.MOMENTS, "auxiliary": shards.MOMENTS, "dev": shards.MOMENTS, "model": MODEL, "start": MODEL,
    "models": MODEL, "chosen": MODEL, "space": MODEL, "generator": MODEL, "regions": "regions", "parses": PARSES,
    "trees": TREES, "simulated": "simulated-documents", "snippets": ALIGNMENTS, "phrases": "embedded-phrases",
    "embeddings": shards.EMBEDDINGS, "manifest": MANIFEST, "vocabulary": "vocabulary",
}  # fmt: skip
"""First part of an input's name -> kind of the artefact whose fingerprint it is."""


def fault_of(path: Path, about: Any) -> str | None:
    """Why the file is not the one of `bytes` and `sha256` in `about`; None where it is."""
    if not isinstance(about, Mapping) or not isinstance(about.get("sha256"), str):
        return "damaged: its commit does not say its sha256"
    expected = about.get("bytes")
    try:
        size = path.stat().st_size
        if isinstance(expected, int) and size < expected:
            return f"truncated: {size:,} of {expected:,} bytes"
        if isinstance(expected, int) and size > expected:
            return f"changed: {size:,} bytes where {expected:,} were written"
        if file_sha256(path) != about["sha256"]:
            return "changed: other bytes than were written"
    except FileNotFoundError:
        return "missing: its commit is there"
    except OSError as error:
        return f"unreadable: {error.strerror}"
    return None


def artefact_of(sidecar: Path) -> Path:
    """The artefact of a sidecar; the inverse of `sidecar_path`."""
    artefact = sidecar.with_suffix("")
    return artefact if artefact.suffix else artefact.with_suffix(".safetensors")


def target_of(commit: Path) -> Path:
    """The file that a rule makes when it makes what `commit` vouches for."""
    if commit.parent.name == "shards" and commit.stem.isdecimal():
        return commit
    artefact = commit.with_suffix("")
    if artefact.suffix == ".parquet" and artefact.stem in TABLES and commit.with_name(MANIFEST).exists():
        return commit.with_name(MANIFEST)
    if artefact.suffix == ".jsonl":
        return commit
    if artefact.suffix == ".parquet" and artefact.stem in PHRASE_TABLES:
        return commit.with_name("phrases.parquet.json")
    return artefact if artefact.suffix in COMMITTED | READ_BY_PEOPLE else commit


def listed_shards(commit: Path, value: Any) -> dict[int, str]:
    """The shards that the commit of a part lists, number -> fingerprint; nothing where `commit` is none of a part."""
    listed = value.get("shards") if commit.parent.name == PARTS and isinstance(value, Mapping) else None
    if not isinstance(listed, Mapping):
        return {}
    known = {number: digest for number, digest in listed.items() if number.isdecimal() and len(number) <= MOST_DIGITS}
    return {int(number): str(digest) for number, digest in known.items()}


def kind_of_commit(path: Path, value: Mapping[str, Any]) -> str:
    if "terms" in value or "views" in value:
        return "vocabulary"
    if path.name == MANIFEST and "shard_size" in value:
        return MANIFEST
    kind = str(value.get("kind"))
    if kind.startswith("embedded-"):
        return "embedded-phrases"
    return shards.EMBEDDINGS if kind == FRAGMENTS else kind


def inputs_of(value: Mapping[str, Any]) -> dict[str, str]:
    """What an artefact was made from, by the record of its commit: name -> fingerprint."""
    details = value.get("details", value)
    if not isinstance(details, Mapping):
        return {}
    inputs = details.get("inputs")
    found = dict(inputs) if isinstance(inputs, Mapping) else {}
    found |= {"vocabulary": details["vocabulary"]} if "vocabulary" in details else {}
    origins = details.get("encoders")
    for name, origin in origins.items() if isinstance(origins, Mapping) else ():
        if isinstance(origin, Mapping) and "encoder" in origin:
            found[f"encoders/{name}"] = origin["encoder"]
    return {name: digest for name, digest in found.items() if isinstance(digest, str)}


def kind_of_input(name: str) -> str:
    """The kind of artefact whose fingerprint an input of this name is; empty for one that is no artefact's."""
    return KINDS.get(re.split("[/ ]", name, maxsplit=1)[0], "")
