"""Building the index that meets the requirements, and the card that says what it does."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pipeline.errors import InputError, UsageError
from pipeline.index.candidates import Progress, build, unwatched
from pipeline.index.chooser import Requirements, Trial, choose, refusal
from pipeline.index.format import to_bytes
from pipeline.index.tuning import NEIGHBOURS, NOWHERE, Operation, Questions, Setting, ask, latency, tune
from pipeline.index.vectors import Vectors
from pipeline.precision import require_finite

QUERIES = 1000
"""Vectors of the other modality that measure an index."""
FLAT_HEADER = 45
"""Bytes of an exact index beside its vectors."""
FINALISTS = 3
"""Choices that are built with all vectors, until one meets the requirements there too."""


@dataclass(frozen=True)
class IndexCard:
    """What an index is and does.

    `recall` is the share of a query's true `NEIGHBOURS` nearest that it finds on the `queries` that it was tuned with,
    `queries_per_second` is of one batch of them, `latency_ms` the 95th percentile of one query alone. `nprobe`,
    `efSearch` and `k_factor` are what it was tuned to (None: it has no such thing).
    """

    factory: str
    metric: str
    dim: int
    count: int
    bytes: int
    nprobe: int | None
    efSearch: int | None  # noqa: N815  FAISS's own name
    k_factor: int | None
    recall: float
    queries: int
    queries_per_second: float
    latency_ms: float
    build_seconds: float

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        values[f"recall@{NEIGHBOURS}"] = values.pop("recall")
        return values


@dataclass(frozen=True)
class BuiltIndex:
    """A FAISS index as bytes, its position i being row i of the vectors, its card, and, where candidates were
    measured, what they did (`tradeoff`)."""

    data: memoryview
    card: IndexCard
    tradeoff: dict[str, Any] | None


def build_index(
    vectors: Vectors, queries: np.ndarray, metric: str, requirements: Requirements, progress: Progress = unwatched
) -> BuiltIndex:
    """The index of `vectors` that meets `requirements`, tuned and measured with `queries` (q, c) of the other modality.

    Raises InputError where there is nothing to index or to ask, IntegrityError for a row that is not finite, and
    UsageError where no index meets the requirements.
    """
    require_finite("embeddings", "queries", queries)
    count = vectors.count
    if not count or not len(queries):
        raise InputError("there is nothing to index; put splits that have images and sentences into index.splits")
    questions = ask(queries, progress(vectors.blocks(), "exact search"), count, metric)
    if count <= requirements.exact_limit and count * vectors.dim * 4 + FLAT_HEADER <= requirements.bytes:
        finished = _finish("Flat", vectors, questions, metric, requirements, progress)
        if finished.trial.failure is None:
            return finished.deliver(vectors, questions, metric, [])
    trials = choose(vectors, queries, metric, requirements, progress)
    tried = []
    for trial in [trial for trial in trials if trial.failure is None][:FINALISTS]:
        finished = _finish(trial.factory, vectors, questions, metric, requirements, progress, trial.setting)
        if finished.trial.failure is None:
            return finished.deliver(vectors, questions, metric, trials)
        tried.append(finished.trial)
    raise UsageError(refusal(tried, count, vectors.dim, requirements))


@dataclass(frozen=True)
class _Finished:
    """An index of all vectors, as bytes, what was tried on it, and how it does at what it is set to."""

    data: memoryview
    operations: list[Operation]
    trial: Trial

    def deliver(self, vectors: Vectors, questions: Questions, metric: str, trials: list[Trial]) -> BuiltIndex:
        trial, setting = self.trial, self.trial.setting
        card = IndexCard(
            factory=trial.factory,
            metric=metric,
            dim=vectors.dim,
            count=vectors.count,
            bytes=len(self.data),
            nprobe=setting.lists,
            efSearch=setting.vertices,
            k_factor=setting.k_factor,
            recall=trial.recall,
            queries=len(questions.queries),
            queries_per_second=1 / trial.seconds,
            latency_ms=trial.latency_ms,
            build_seconds=trial.build_seconds,
        )
        tradeoff = {
            "chosen": trial.to_dict(),
            "operations": [operation.to_dict() for operation in self.operations],
            "candidates": [candidate.to_dict() for candidate in trials],
        }
        return BuiltIndex(self.data, card, tradeoff if trials else None)


def _finish(
    factory: str,
    vectors: Vectors,
    questions: Questions,
    metric: str,
    requirements: Requirements,
    progress: Progress,
    near: Setting = NOWHERE,
) -> _Finished:
    """Build with all vectors, tune `near` a setting, and measure."""
    built = build(factory, vectors, metric, progress=progress)
    operations = tune(built.index, questions, requirements.recall_floor, near=near)
    best, alone = operations[-1], 1000 * latency(built.index, questions)
    data, seconds = to_bytes(built.index), built.train_seconds + built.add_seconds
    failure = requirements.failure(best.recall, len(data), alone)
    trial = Trial(factory, best.setting, best.recall, len(data), best.seconds, alone, seconds, failure)
    return _Finished(data, operations, trial)
