"""Evaluations of one run, `<model>.<split>.<protocol>.json`, each with its ranks in `<...>.ranks.npz`, and the summary
of them all, each with its commit; other records with the arrays that they were measured from."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import IntegrityError
from pipeline.storage.atomic import publish, publish_record, read_json, to_json, verify
from pipeline.storage.batch import FileBatch
from pipeline.storage.commits import fault_of
from pipeline.storage.fingerprint import fingerprint, require_same
from pipeline.storage.forms import Evaluation, Form, Summary
from pipeline.storage.records import read_record, require_form

SUMMARY = "summary"
RANKS = ("image_to_sentence", "sentence_to_image", "owners", "sentence_similarity")
"""Ranks of the n images and the m sentences of a gallery, and which image each sentence is of; the last is left out
where it was not measured."""


def write_evaluation(path: Path, value: Mapping[str, Any], ranks: Mapping[str, np.ndarray]) -> None:
    """Publish an evaluation and, beside it, the `ranks` that it was measured from: name -> (n,) or (m,) of RANKS."""
    found = {name: ranks[name].astype(np.int32) for name in RANKS if ranks.get(name) is not None}
    write_measured(path, value, "ranks", found)


def read_ranks(path: Path) -> dict[str, np.ndarray]:
    """The ranks of the evaluation in `path`, as `write_evaluation` has them. Raises IntegrityError if they differ from
    what it vouches for."""
    return read_measured(path, Evaluation, "ranks", RANKS[:3], "evaluate")[1]


def write_measured(path: Path, value: Mapping[str, Any], kind: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Publish a record and, beside it in `<...>.<kind>.npz`, the `arrays` that it was measured from, by which others
    compare it with another one image by image."""
    data = io.BytesIO()
    np.savez_compressed(data, **arrays)
    publish_record(path, value, {_beside(path, kind).name: data.getvalue()})


def read_measured(
    path: Path, form: type[Form], kind: str, names: Sequence[str], stage: str
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The record in `path` and the arrays beside it, as `write_measured` has them. Raises IntegrityError, naming the
    `stage` that makes them, if they differ from what the record vouches for or if one of `names` is not among them."""
    value, beside = read_record(path, form), _beside(path, kind)
    if reason := fault_of(beside, (value.get("files") or {}).get(beside.name)):
        raise IntegrityError(f"{beside} is {reason}; run {stage} again")
    with np.load(beside, allow_pickle=False) as found:
        if missing := set(names) - set(found):
            raise IntegrityError(f"{beside} has no {min(missing)}; run {stage} again")
        return value, {name: found[name] for name in found}


def _beside(path: Path, kind: str) -> Path:
    return path.with_suffix(f".{kind}.npz")


def read_evaluations(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """What `evaluate` wrote. Raises IntegrityError as `require_one_run` does."""
    values = {str(path): read_record(path, Evaluation) for path in paths}
    require_one_run(values)
    return list(values.values())


def require_one_run(files: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises IntegrityError if two of `files` (name -> evaluation) differ in manifest or in a model's embeddings."""
    require_same("manifest", {file: value["inputs"]["manifest"] for file, value in files.items()})
    for model in dict.fromkeys(value["model"] for value in files.values()):
        own = {file: embedded(value["inputs"]) for file, value in files.items() if value["model"] == model}
        require_same(f"embeddings of {model}", own)


def embedded(inputs: Mapping[str, str]) -> str:
    """One fingerprint of all shards of embeddings in the `inputs` of an evaluation or an index."""
    return fingerprint("embedded", 1, inputs={k: v for k, v in inputs.items() if k.startswith("embeddings/")})


def write_summary(path: Path, evaluations: Sequence[Mapping[str, Any]], table: str) -> None:
    """Publish the list of `evaluations`, and beside it the same as a `table` in Markdown."""
    batch, inputs = FileBatch(), {"manifest": evaluations[0]["inputs"]["manifest"]}
    digest = fingerprint(SUMMARY, 1, [value["fingerprint"] for value in evaluations], inputs)
    batch.add(path.with_suffix(".md"), table.encode())
    about = {"kind": SUMMARY, "rows": len(evaluations), "fingerprint": digest, "details": {"inputs": inputs}}
    publish(path, to_json(list(evaluations)), **about, batch=batch)
    batch.publish()


def read_summary(path: Path) -> list[dict[str, Any]]:
    """The evaluations that `summarise` wrote."""
    verify(path, SUMMARY)
    value = read_json(path)
    require_form({"evaluations": value}, Summary, path)
    return value
