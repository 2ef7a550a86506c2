"""Results and vocabularies: JSON files that are their own commits, with the arrays that they were measured from.

Evaluations `<model>.<split>.<protocol>.json`, each with its ranks in `<...>.ranks.npz`, the summary of them all,
alignments `alignments/<model>/<split>.jsonl`, numbers of a study, and vocabularies, which travel in indexes.

Snakemake's measurements of every job, `<folder>/<rule>/**/*.tsv`, one line with seconds and memory, are its own and
have no commit: a damaged one is left out with a warning.
"""

import csv
import io
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self, TypedDict, Unpack

import numpy as np
from pydantic import Field, model_validator

from pipeline.storage.commit import About, Provenance, open_commit, publish, publish_record, read_record, read_verified
from pipeline.storage.json_files import Count, Finite, Form, Json, read_json, to_json

ALIGNMENTS, SUMMARY = "alignments", "summary"
RANKS = ("image_to_sentence", "sentence_to_image", "owners", "sentence_similarity")
"""Ranks of the n images and the m sentences of a gallery, and which image each sentence is of; the last is left out
where it was not measured."""


class Terms(Form):
    """pipeline.text.tokens.TermSettings."""

    lemmatise: bool
    stop_words: list[str]
    max_ngram: Annotated[int, Field(ge=1, le=3)]
    lemmas: dict[str, str] = {}
    english: bool = True
    max_characters: Annotated[int, Field(ge=1, le=3)] = 1


class VocabularyForm(Form):
    """pipeline.text.vocabulary.Vocabulary."""

    settings: Terms
    normalise: bool
    terms: Annotated[list[str], Field(min_length=1)]
    idf: list[Finite]
    n_sentences: Count

    @model_validator(mode="after")
    def _one_weight_a_term(self) -> Self:
        if len(self.idf) != len(self.terms) or len(set(self.terms)) != len(self.terms):
            raise ValueError("its terms are not each once, with one idf each")
        return self


class VocabularyFile(VocabularyForm):
    fingerprint: str


class JointVocabulary(Form):
    """The vocabularies of an ensemble, by form of sentences."""

    fingerprint: str
    views: dict[str, VocabularyForm]


def write_evaluation(
    path: Path, value: Mapping[str, Json], ranks: Mapping[str, np.ndarray], provenance: Provenance | None = None
) -> None:
    """Publish an evaluation and, beside it, the `ranks` that it was measured from: name -> (n,) or (m,) of RANKS."""
    arrays = {name: ranks[name].astype(np.int32) for name in RANKS if ranks.get(name) is not None}
    write_measured(path, value, "ranks", arrays, provenance)


def write_measured(
    path: Path,
    value: Mapping[str, Json],
    kind: str,
    arrays: Mapping[str, np.ndarray],
    provenance: Provenance | None = None,
) -> None:
    """Publish a record and, beside it in `<...>.<kind>.npz`, the `arrays` that it was measured from, by which others
    compare it with another one image by image."""
    data = io.BytesIO()
    np.savez_compressed(data, **arrays)  # pyright: ignore[reportArgumentType]  # the keywords are names of arrays
    publish_record(path, value, {_beside(path, kind).name: data.getvalue()}, provenance)


def read_measured(path: Path, kind: str) -> dict[str, np.ndarray]:
    """The arrays beside the record in `path`, as `write_measured` has them."""
    read_record(path)
    with np.load(_beside(path, kind), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays}


def _beside(path: Path, kind: str) -> Path:
    return path.with_suffix(f".{kind}.npz")


def write_summary(
    path: Path, evaluations: Sequence[Mapping[str, Json]], table: str, provenance: Provenance | None = None
) -> None:
    """Publish the list of `evaluations`, and beside it the same as a `table` in Markdown."""
    beside = {path.with_suffix(".md").name: table.encode()}
    data = to_json(list(evaluations))
    publish(path, data, kind=SUMMARY, rows=len(evaluations), provenance=provenance, beside=beside)


def read_summary(path: Path) -> list[dict[str, Any]]:
    """The evaluations that `summarise` wrote."""
    open_commit(path, SUMMARY)
    return read_json(path)


def write_alignments(path: Path, segments: Sequence[Mapping[str, Json]], **about: Unpack[About]) -> None:
    """Publish which words of the sentences of a split go with which box of their image: {sentence_id, image_id, words,
    box, score} of each segment, one a line. `about` is the `provenance` and `details`."""
    lines = "".join(json.dumps(segment, ensure_ascii=False) + "\n" for segment in segments).encode()
    publish(path, lines, kind=ALIGNMENTS, rows=len(segments), **about)


def read_alignments(path: Path) -> list[dict[str, Any]]:
    """Return the segments that `align` wrote."""
    return [json.loads(line) for line in read_verified(path, ALIGNMENTS)[0].splitlines()]


log = logging.getLogger(__name__)


class MeasuredJob(NamedTuple):
    """Wall and `processor` seconds of one job, and its peak memory in MB."""

    seconds: float
    processor: float
    memory: float


def read_benchmarks(folder: Path) -> dict[str, list[MeasuredJob]]:
    """Rule -> its jobs that have run."""
    rules: dict[str, list[MeasuredJob]] = {}
    for path in sorted(Path(folder).rglob("*.tsv")):
        if jobs := _read_jobs(path):
            rules.setdefault(path.relative_to(folder).parts[0], []).extend(jobs)
    return rules


class RuleCost(TypedDict):
    """The number of jobs of a rule, the sums of their wall and CPU seconds, and the memory of the largest in MB."""

    rule: str
    jobs: int
    seconds: float
    processor: float
    memory_mb: float


def add_up(recorded: Mapping[str, Sequence[MeasuredJob]]) -> list[RuleCost]:
    """Return the cost of each rule."""
    return [
        {
            "rule": rule,
            "jobs": len(jobs),
            "seconds": sum(job.seconds for job in jobs),
            "processor": sum(job.processor for job in jobs),
            "memory_mb": max(job.memory for job in jobs),
        }
        for rule, jobs in recorded.items()
    ]


def _read_jobs(path: Path) -> list[MeasuredJob]:
    """The jobs in one file; none, and a warning, if it cannot be read."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        if not rows:
            raise ValueError("it has no job")
        return [MeasuredJob(*(_number(row[column]) for column in ("s", "cpu_time", "max_rss"))) for row in rows]
    except (OSError, csv.Error, KeyError, TypeError, ValueError) as error:
        log.warning("%s is not a Snakemake benchmark (%s), so it is ignored; delete it", path, error)
        return []


def _number(text: str) -> float:
    """Jobs of less than half a second have no measurements but their wall time."""
    return 0.0 if text in ("-", "NA") else float(text)
