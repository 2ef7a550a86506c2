"""Evaluations of one run, `<model>.<split>.<protocol>.json`, each with its ranks in `<...>.ranks.npz`, and the summary
of them all, each with its commit; other records with the arrays that they were measured from."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.storage.atomic import read_json, to_json
from pipeline.storage.commit import Provenance, open_commit, publish, publish_record
from pipeline.storage.forms import Evaluation, Form, Summary
from pipeline.storage.records import read_record, require_form

SUMMARY = "summary"
RANKS = ("image_to_sentence", "sentence_to_image", "owners", "sentence_similarity")
"""Ranks of the n images and the m sentences of a gallery, and which image each sentence is of; the last is left out
where it was not measured."""


def write_evaluation(
    path: Path, value: Mapping[str, Any], ranks: Mapping[str, np.ndarray], provenance: Provenance | None = None
) -> None:
    """Publish an evaluation and, beside it, the `ranks` that it was measured from: name -> (n,) or (m,) of RANKS."""
    found = {name: ranks[name].astype(np.int32) for name in RANKS if ranks.get(name) is not None}
    write_measured(path, value, "ranks", found, provenance)


def read_ranks(path: Path) -> dict[str, np.ndarray]:
    """The ranks of the evaluation in `path`, as `write_evaluation` has them."""
    return read_measured(path, Evaluation, "ranks")[1]


def write_measured(
    path: Path,
    value: Mapping[str, Any],
    kind: str,
    arrays: Mapping[str, np.ndarray],
    provenance: Provenance | None = None,
) -> None:
    """Publish a record and, beside it in `<...>.<kind>.npz`, the `arrays` that it was measured from, by which others
    compare it with another one image by image."""
    data = io.BytesIO()
    np.savez_compressed(data, **arrays)
    publish_record(path, value, {_beside(path, kind).name: data.getvalue()}, provenance)


def read_measured(path: Path, form: type[Form], kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The record in `path` and the arrays beside it, as `write_measured` has them."""
    value = read_record(path, form)
    with np.load(_beside(path, kind), allow_pickle=False) as arrays:
        return value, {name: arrays[name] for name in arrays}


def _beside(path: Path, kind: str) -> Path:
    return path.with_suffix(f".{kind}.npz")


def read_evaluations(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """What `evaluate` wrote."""
    return [read_record(path, Evaluation) for path in paths]


def write_summary(
    path: Path, evaluations: Sequence[Mapping[str, Any]], table: str, provenance: Provenance | None = None
) -> None:
    """Publish the list of `evaluations`, and beside it the same as a `table` in Markdown."""
    about = {"kind": SUMMARY, "rows": len(evaluations), "provenance": provenance}
    beside = {path.with_suffix(".md").name: table.encode()}
    publish(path, to_json(list(evaluations)), **about, beside=beside)


def read_summary(path: Path) -> list[dict[str, Any]]:
    """The evaluations that `summarise` wrote."""
    open_commit(path, SUMMARY)
    value = read_json(path)
    require_form({"evaluations": value}, Summary, path)
    return value
