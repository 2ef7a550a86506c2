"""Building the index that meets the requirements, and its card."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.errors import InputError, UsageError
from pipeline.index.bench import RULE, CandidateTrial
from pipeline.index.candidates import Built, Progress, build, unwatched
from pipeline.index.chooser import choose, refusal
from pipeline.index.exact import search_exact
from pipeline.index.format import to_bytes
from pipeline.index.requirements import Requirements
from pipeline.index.tuning import (
    EQUALS,
    NEIGHBOURS,
    NOWHERE,
    Operation,
    Questions,
    SearchSetting,
    latency,
    questions_of,
    tune,
)
from pipeline.index.vectors import Vectors
from pipeline.precision import require_finite

if TYPE_CHECKING:
    import torch

QUERIES = 1000
"""Vectors of the other modality that measure an index."""
FLAT_HEADER = 45
"""Bytes of an exact index beside its vectors."""
FINALISTS = 3
"""Choices that are built with all vectors, until one meets the requirements there too."""


@dataclass(frozen=True)
class IndexCard:
    """The properties and measurements of an index.

    `recall` is the share of a query's true `NEIGHBOURS` nearest that it finds on the `queries` that it was tuned with,
    `queries_per_second` what one core answers of a batch, by processor time, `latency_ms` the 95th percentile of one
    query alone. `nprobe`,
    `efSearch` and `k_factor` are what it was tuned to (None: it has no such parameter).
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
    vectors: Vectors,
    queries: np.ndarray,
    metric: str,
    requirements: Requirements,
    progress: Progress = unwatched,
    gpu: "torch.device | None" = None,
) -> BuiltIndex:
    """The index of `vectors` that meets `requirements`, tuned and measured with `queries` (q, c) of the other modality.

    Their true neighbours are found on `gpu`, where there is one. Raises InputError where there is nothing to index or
    to ask, IntegrityError for a row that is not finite, and UsageError where no index meets the requirements.
    """
    require_finite("embeddings", "queries", queries)
    count = vectors.count
    if not count or not len(queries):
        raise InputError("there is nothing to index; put splits that have images and sentences into index.splits")
    nearest = search_exact(queries, progress(vectors.blocks(), "exact search"), min(EQUALS, count), metric, gpu)
    questions = questions_of(queries, nearest, count)
    fits = count * vectors.dim * 4 + FLAT_HEADER <= requirements.bytes
    if count <= requirements.exact_limit and fits:
        finished = _finish(build("Flat", vectors, metric, progress=progress), "Flat", questions, requirements)
        if finished.trial.failure is None:
            return finished.deliver(vectors, questions, metric, [])
    trials = choose(vectors, queries, metric, requirements, progress)
    tried = []
    for trial in [trial for trial in trials if trial.failure is None][:FINALISTS]:
        built = build(trial.factory, vectors, metric, progress=progress)
        finished = _finish(built, trial.factory, questions, requirements, trial.setting)
        if finished.trial.failure is None:
            return finished.deliver(vectors, questions, metric, trials)
        tried.append(finished.trial)
    raise UsageError(refusal(tried, count, vectors.dim, requirements))


@dataclass(frozen=True)
class _Finished:
    """An index of all vectors, as bytes, the settings tried on it, and its measurements at the chosen one."""

    data: memoryview
    operations: list[Operation]
    trial: CandidateTrial

    def deliver(self, vectors: Vectors, questions: Questions, metric: str, trials: list[CandidateTrial]) -> BuiltIndex:
        trial, setting = self.trial, self.trial.setting
        card = IndexCard(
            factory=trial.factory,
            metric=metric,
            dim=vectors.dim,
            count=vectors.count,
            bytes=trial.bytes,
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
            "rule": RULE,
            "chosen": trial.to_dict(),
            "operations": [operation.to_dict() for operation in self.operations],
            "candidates": [candidate.to_dict() for candidate in trials],
        }
        return BuiltIndex(self.data, card, tradeoff if trials else None)


def _finish(
    built: Built,
    factory: str,
    questions: Questions,
    requirements: Requirements,
    near: SearchSetting = NOWHERE,
) -> _Finished:
    """Tune an index of all vectors `near` a setting, and measure it."""
    operations = tune(built.index, questions, requirements.recall_floor, near=near)
    best, alone = operations[-1], 1000 * latency(built.index, questions)
    data = to_bytes(built.index)
    size, seconds = len(data), built.train_seconds + built.add_seconds
    failure = requirements.failure(best.recall, size, alone)
    trial = CandidateTrial(factory, best.setting, best.recall, size, best.seconds, alone, seconds, failure)
    return _Finished(data, operations, trial)
