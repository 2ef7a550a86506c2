"""Files of results and vocabularies, with the arrays from which a result was computed.

Evaluations (`<model>.<split>.<protocol>.json` with the ranks in `<...>.ranks.npz`) and the numbers of a study are JSON
files that are their own commit records. The summary of all evaluations and the alignments
(`alignments/<model>/<split>.jsonl`) have commit records in other files. Vocabularies are also copied into indexes.

Snakemake writes the measurements of each job to `<folder>/<rule>/**/*.tsv`, one line with seconds and memory. These
files have no commit record. A damaged file is ignored with a warning.
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

ALIGNMENTS = "alignments"
SUMMARY = "summary"
RANKS = ("image_to_sentence", "sentence_to_image", "owners", "sentence_similarity")
"""The arrays of an evaluation on a gallery of n images with m captions. The first two are the ranks (n,) and (m,) of
the two directions. `owners` (m,) has the image of each caption. `sentence_similarity` has the ranks (m,) of caption
similarity, and is missing if they were not measured."""


class Terms(Form):
    """The form in JSON of the settings by which a text is split into terms (pipeline.text.tokens.TermSettings)."""

    lemmatise: bool
    stop_words: list[str]
    max_ngram: Annotated[int, Field(ge=1, le=3)]
    lemmas: dict[str, str] = {}
    english: bool = True
    max_characters: Annotated[int, Field(ge=1, le=3)] = 1
    pieces: bool = False


class VocabularyForm(Form):
    """The form of pipeline.text.vocabulary.Vocabulary in JSON.

    There must be at least one term. All terms must be different, and each term must have an idf weight.
    """

    settings: Terms
    normalise: bool
    terms: Annotated[list[str], Field(min_length=1)]
    idf: list[Finite]
    n_sentences: Count

    @model_validator(mode="after")
    def _check_terms(self) -> Self:
        if len(self.idf) != len(self.terms) or len(set(self.terms)) != len(self.terms):
            raise ValueError(
                f"the {len(self.terms)} terms must be different and have one idf weight each, but there are"
                f" {len(set(self.terms))} different terms and {len(self.idf)} idf weights"
            )
        return self


class VocabularyFile(VocabularyForm):
    """The form of a file with the vocabulary of one model."""

    fingerprint: str


class JointVocabulary(Form):
    """The form of a file with the vocabularies of an ensemble. `views` has a vocabulary for each form in which members
    read texts, such as tokens."""

    fingerprint: str
    views: dict[str, VocabularyForm]


def write_evaluation(
    path: Path, value: Mapping[str, Json], ranks: Mapping[str, np.ndarray], provenance: Provenance | None = None
) -> None:
    """Write the evaluation `value` as the JSON record `path`, and write the arrays in `ranks` next to it, to the file
    with the ending `.ranks.npz` in place of `.json`.

    The evaluation was computed from these arrays, which have the names in RANKS and are stored as int32. An array may
    be missing or None. An evaluation without `provenance` does not belong to a run.
    """
    arrays = {name: ranks[name].astype(np.int32) for name in RANKS if ranks.get(name) is not None}
    write_measured(path, value, "ranks", arrays, provenance)


def write_measured(
    path: Path,
    value: Mapping[str, Json],
    kind: str,
    arrays: Mapping[str, np.ndarray],
    provenance: Provenance | None = None,
) -> None:
    """Write the result `value` as the JSON record `path`, and the `arrays` from which it was computed next to it.

    The file of the arrays has the name of the record with the ending `.<kind>.npz` in place of `.json`. With the
    arrays, two results can be compared image by image. A result without `provenance` does not belong to a run.
    """
    data = io.BytesIO()
    np.savez_compressed(data, **arrays)  # pyright: ignore[reportArgumentType]  # the keywords are names of arrays
    publish_record(path, value, {_beside(path, kind).name: data.getvalue()}, provenance)


def read_measured(path: Path, kind: str) -> dict[str, np.ndarray]:
    """Read the arrays of this `kind` that `write_measured` has written next to the record `path`. Return them by name.

    Raises IntegrityError if the record or the file of the arrays is missing or was changed.
    """
    read_record(path)
    with np.load(_beside(path, kind), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays}


def _beside(path: Path, kind: str) -> Path:
    return path.with_suffix(f".{kind}.npz")


def write_summary(
    path: Path, evaluations: Sequence[Mapping[str, Json]], table: str, provenance: Provenance | None = None
) -> None:
    """Write the list of all `evaluations` as the JSON file `path`, and the Markdown `table` of this list next to it.

    The file of the table has the ending `.md`. One commit record vouches for both files. A list without `provenance`
    does not belong to a run.
    """
    beside = {path.with_suffix(".md").name: table.encode()}
    data = to_json(list(evaluations))
    publish(path, data, kind=SUMMARY, rows=len(evaluations), provenance=provenance, beside=beside)


def read_summary(path: Path) -> list[dict[str, Any]]:
    """Read the list of evaluations that the stage `summarise` has written to the JSON file `path`.

    Raises IntegrityError if the file is missing or was changed.
    """
    open_commit(path, SUMMARY)
    return read_json(path)


def write_alignments(path: Path, segments: Sequence[Mapping[str, Json]], **about: Unpack[About]) -> None:
    """Write the segments of the captions of a split as the file `path`, with its commit record.

    A segment consists of words of a caption that are aligned with a box in the caption's image. It is one line of the
    file, {sentence_id, image_id, words, box, score}. `about` has the provenance and the details.
    """
    lines = "".join(json.dumps(segment, ensure_ascii=False) + "\n" for segment in segments).encode()
    publish(path, lines, kind=ALIGNMENTS, rows=len(segments), **about)


def read_alignments(path: Path) -> list[dict[str, Any]]:
    """Read the segments that the stage `align` has written to the file `path`, one dictionary per segment.

    Raises IntegrityError if the file is missing or was changed.
    """
    return [json.loads(line) for line in read_verified(path, ALIGNMENTS)[0].splitlines()]


log = logging.getLogger(__name__)


class MeasuredJob(NamedTuple):
    """The wall time in seconds, the CPU seconds (`processor`) and the peak memory in MB of one job."""

    seconds: float
    processor: float
    memory: float


def read_benchmarks(folder: Path) -> dict[str, list[MeasuredJob]]:
    """Read Snakemake's measurements below `folder`, and return rule -> the measured jobs of this rule.

    Each direct subfolder of `folder` has the name of a rule and contains the files of this rule, at any depth. Damaged
    files are ignored with a warning.
    """
    rules: dict[str, list[MeasuredJob]] = {}
    for path in sorted(Path(folder).rglob("*.tsv")):
        if jobs := _read_jobs(path):
            rules.setdefault(path.relative_to(folder).parts[0], []).extend(jobs)
    return rules


class RuleCost(TypedDict):
    """The number of jobs of a rule, the sums of their wall times and CPU times in seconds, and the largest peak memory
    of a job in MB."""

    rule: str
    jobs: int
    seconds: float
    processor: float
    memory_mb: float


def cost_by_rule(recorded: Mapping[str, Sequence[MeasuredJob]]) -> list[RuleCost]:
    """Return the cost of each rule from the measurements of its jobs."""
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
    """Read the measurements of jobs in the file `path` of Snakemake. If the file cannot be read, log a warning and
    return an empty list."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        if not rows:
            raise ValueError("the file has no row")
        return [MeasuredJob(*(_number(row[column]) for column in ("s", "cpu_time", "max_rss"))) for row in rows]
    except (OSError, csv.Error, KeyError, TypeError, ValueError) as error:
        log.warning("%s is not a Snakemake benchmark (%s), so it is ignored. Delete the file.", path, error)
        return []


def _number(text: str) -> float:
    """Convert a measurement of Snakemake to a number. "-" and "NA" become 0.

    Snakemake writes "-" or "NA" for a job that ends within half a second, in place of all measurements except the wall
    time.
    """
    return 0.0 if text in ("-", "NA") else float(text)
