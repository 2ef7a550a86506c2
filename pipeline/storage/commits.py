"""The commits of a run: what each vouches for, which rule makes that, and what it was made from."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import IntegrityError
from pipeline.storage import shards
from pipeline.storage.alignments import ALIGNMENTS
from pipeline.storage.atomic import CHECK, is_sidecar, read_json
from pipeline.storage.embeddings import FRAGMENTS
from pipeline.storage.parameters import ENCODER, MODEL, TEXT_ENCODER
from pipeline.storage.phrases import TABLES as PHRASE_TABLES
from pipeline.storage.reading import REMEDY, file_sha256, is_there
from pipeline.storage.tables import MOST_DIGITS
from pipeline.storage.text_shards import TOKENS
from pipeline.storage.trees import PARSES, TREES

REJECTS = "rejects.jsonl"
MANIFEST = "manifest.json"
SUM = "sum.h5"  # of the moments of all shards beside it
PARTS = "parts"  # folder beside shards; each commit in it lists the shards of one part
COMMITTED = frozenset({".h5", ".parquet", ".safetensors", ".faiss", ".conllu", ".brackets", ".jsonl"})
"""Suffixes of files that do not exist without a commit."""
READ_BY_PEOPLE = frozenset({".png", ".md", ".json"})  # suffixes of files for which a sidecar is optional
KINDS = {
    "encoder": ENCODER, "encoders": ENCODER, "features": shards.FEATURES, "text": shards.VECTORS, "tokens": TOKENS,
    "target": shards.MOMENTS, "auxiliary": shards.MOMENTS, "dev": shards.MOMENTS, "model": MODEL, "start": MODEL,
    "models": MODEL, "chosen": MODEL, "space": MODEL, "generator": MODEL, "regions": "regions", "parses": PARSES,
    "trees": TREES, "simulated": "simulated-documents", "snippets": ALIGNMENTS, "phrases": "embedded-phrases",
    "text_encoder": TEXT_ENCODER, "text_encoders": TEXT_ENCODER, "manifest": MANIFEST,
    "embeddings": shards.EMBEDDINGS, "vocabulary": "vocabulary",
}  # fmt: skip
"""First part of an input's name -> kind of that artefact."""


def fault_of(path: Path, about: Any, hashed: bool = True) -> str | None:
    """How the file differs from the `bytes` and, if it is to be `hashed`, the `sha256` in `about`; None if it does
    not."""
    if not isinstance(about, Mapping) or not isinstance(about.get("sha256"), str):
        return "damaged: its commit has no sha256"
    expected = about.get("bytes")
    try:
        size = path.stat().st_size
        if isinstance(expected, int) and size < expected:
            return f"truncated: {size:,} of {expected:,} bytes"
        if isinstance(expected, int) and size > expected:
            return f"changed: {size:,} bytes where {expected:,} were written"
        if hashed and file_sha256(path) != about["sha256"]:
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
    """The file to ask Snakemake for, to make again what `commit` vouches for."""
    if commit.parent.name == "shards" and commit.stem.isdecimal():
        return commit.parent.with_name(MANIFEST)
    artefact = commit.with_suffix("")
    if artefact.name == SUM:
        return commit.parent / PARTS / "00000.json"
    if artefact.suffix == ".jsonl":
        return commit
    if artefact.suffix == ".parquet" and artefact.stem in PHRASE_TABLES:
        return commit.with_name("phrases.parquet.json")
    return artefact if artefact.suffix in COMMITTED | READ_BY_PEOPLE else commit


def listed_shards(commit: Path, value: Any) -> dict[int, str]:
    """The shards that the commit of a part lists, number -> fingerprint; empty for other commits."""
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


def kind_of_place(commit: Path) -> str:
    """The kind of artefact whose sidecar `commit`, a path under a run, is; empty where its folder does not say."""
    match commit.parts:
        case ("encoders" | "models" as folder, _, "model.json"):
            return KINDS[folder]
        case ("text", "encoders", _, "model.json"):
            return TEXT_ENCODER
        case ("features" | "regions" | "embeddings" as folder, _, name) if name.startswith("shard-"):
            return KINDS[folder]
    return ""


def inputs_of(value: Mapping[str, Any]) -> dict[str, str]:
    """What an artefact was made from, by its commit: name -> fingerprint."""
    details = value.get("details", value)
    if not isinstance(details, Mapping):
        return {}
    inputs = details.get("inputs")
    found = dict(inputs) if isinstance(inputs, Mapping) else {}
    found |= {"vocabulary": details["vocabulary"]} if "vocabulary" in details else {}
    for key in ("encoders", "text_encoders"):
        origins = details.get(key)
        for name, origin in origins.items() if isinstance(origins, Mapping) else ():
            if isinstance(origin, Mapping) and "encoder" in origin:
                found[f"{key}/{name}"] = origin["encoder"]
    return {name: digest for name, digest in found.items() if isinstance(digest, str)}


def kind_of_input(name: str) -> str:
    """The kind of artefact that an input of this name is; empty if it is not an artefact."""
    return KINDS.get(re.split("[/ ]", name, maxsplit=1)[0], "")


def fingerprint_of(commit: Path) -> str:
    """The fingerprint that a commit records; for a file that is its own commit and has none, its digest.

    Raises IntegrityError if the artefact is missing, or the file is not a commit.
    """
    if not is_there(commit):
        raise IntegrityError(f"{commit} does not exist; run its stage first")
    value = read_json(commit)
    digest = (value.get("fingerprint") or value.get(CHECK)) if isinstance(value, Mapping) else None
    if not isinstance(digest, str):
        raise IntegrityError(f"{commit} has no fingerprint, so it is not a commit; {REMEDY}")
    return digest


def combined_fingerprint(parts: Iterable[str]) -> str:
    """One digest of several fingerprints, in their order."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def is_made(commit: Path, fingerprint: str) -> bool:
    """Whether what `commit` vouches for is there and whole, and has this fingerprint."""
    try:
        if not is_there(commit) or fingerprint_of(commit) != fingerprint:
            return False
        value = read_json(commit)
    except IntegrityError:
        return False
    if is_sidecar(value):
        return fault_of(artefact_of(commit), value) is None
    files = value.get("files") or {}
    return not any(fault_of(commit.with_name(name), about) for name, about in files.items())
