"""Choosing an index by measuring candidates on a sample of the vectors with real queries.

Each candidate is built on a sample, its lists fewer by the square root of the share that was sampled, and tuned to
the recall floor. What it would be with all vectors is carried over from there: bytes by what each vector added; a
query's time by the vectors that it compares (all of them; lists and the vectors in those visited; the logarithm of
the number in a graph); building by what was trained and added. Among those that meet the requirements the one is
chosen that takes least time to build and then to answer `workload` queries.
"""

import logging
import math
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np

from pipeline.errors import UsageError
from pipeline.index.candidates import (
    TRAINING_LEAST,
    Built,
    Progress,
    build,
    candidate_factories,
    code_bytes,
    lists_of,
    require_known,
    with_lists,
)
from pipeline.index.format import to_bytes
from pipeline.index.tuning import NEIGHBOURS, Setting, ask, latency, stages_of, tune
from pipeline.index.vectors import ArrayVectors, Vectors, evenly_spaced

MEBI = 1 << 20
SAMPLE_QUERIES = 300
"""Queries that measure a candidate on the sample."""
DOMINATED = 4
"""A candidate that takes this many times as long as the fastest good one is not tuned further."""


@dataclass(frozen=True)
class Requirements:
    """What is asked of an index: at most `memory` MiB (None: any), at least `recall_floor` of the true neighbours, one
    query alone in at most `latency_ms` (None: any). Up to `exact_limit` vectors are searched exactly where that meets
    the others. `candidates` are factory strings or "auto", tried on `sample` vectors; `workload` is how many queries
    the building has to pay for."""

    recall_floor: float
    memory: int | None
    latency_ms: float | None
    exact_limit: int
    candidates: str | tuple[str, ...]
    sample: int
    workload: int

    @property
    def bytes(self) -> float:
        return math.inf if self.memory is None else self.memory * MEBI

    def failure(self, recall: float, size: int, latency_ms: float) -> str | None:
        """What an index of `size` bytes misses; None: nothing."""
        if recall < self.recall_floor:
            return f"recall below {self.recall_floor:g}"
        if size > self.bytes:
            return f"more than {self.memory} MiB"
        if self.latency_ms is not None and latency_ms > self.latency_ms:
            return f"slower than {self.latency_ms:g} ms"
        return None


@dataclass(frozen=True)
class Trial:
    """A candidate at the `setting` that reaches the recall floor: `seconds` is one query's share of a batch,
    `latency_ms` the 95th percentile of one alone, `failure` which requirement it misses (None: it meets all)."""

    factory: str
    setting: Setting
    recall: float
    bytes: int
    seconds: float
    latency_ms: float
    build_seconds: float
    failure: str | None

    def cost(self, workload: int) -> float:
        return self.build_seconds + workload * self.seconds

    def to_dict(self) -> dict[str, Any]:
        values = {**vars(self), **self.setting.to_dict(), f"recall@{NEIGHBOURS}": self.recall}
        values["queries_per_second"] = 1 / self.seconds
        return {name: value for name, value in values.items() if name not in ("setting", "seconds", "recall")}


def choose(
    vectors: Vectors,
    queries: np.ndarray,
    metric: str,
    requirements: Requirements,
    progress: Progress,
) -> list[Trial]:
    """All trials, the best first, those that miss a requirement last.

    Raises UsageError when nothing meets the requirements, naming what comes nearest.
    """
    count = vectors.count
    if requirements.candidates == "auto":
        tiers = candidate_factories(count, vectors.dim)
    else:
        tiers = [require_known(requirements.candidates, vectors.dim)]
    bench, trials, good = _Bench(vectors, queries, metric, requirements), [], []
    for tier in tiers:
        if not good:
            trials += map(bench.try_out, progress(bench.hopeful(tier), "measuring"))
            good = sorted((t for t in trials if t.failure is None), key=lambda t: t.cost(requirements.workload))
    if not good:  # what is too large was left out so far, and the nearest that would do may be among it
        rest = [factory for tier in tiers for factory in tier if factory not in {t.factory for t in trials}]
        trials += map(bench.try_out, progress(rest, "measuring"))
        raise UsageError(refusal(trials, count, vectors.dim, requirements))
    return good + [trial for trial in trials if trial.failure]


def refusal(trials: list[Trial], count: int, dim: int, requirements: Requirements) -> str:
    """Why nothing will do, and the nearest that would."""
    floor, asked = requirements.recall_floor, []
    for name, unit, value in (("memory", "MiB", requirements.memory), ("latency_ms", "ms", requirements.latency_ms)):
        if value is not None:
            asked.append(f"index.{name} {value:g} {unit}")
    parts = [
        f"no index of {count:,} vectors of {dim} dimensions has index recall@{NEIGHBOURS} {floor:g}"
        f" within {' and '.join(asked) or 'what was tried'}"
    ]
    if reaching := [trial for trial in trials if trial.recall >= floor]:
        by_size = min(reaching, key=lambda t: t.bytes)
        by_speed = min(reaching, key=lambda t: t.latency_ms)
        parts.append(
            f"the smallest that has it needs {math.ceil(by_size.bytes / MEBI)} MiB and {by_size.latency_ms:.2g} ms"
            f" ({by_size.factory})"
        )
        if by_speed is not by_size:
            parts.append(
                f"the fastest {math.ceil(by_speed.bytes / MEBI)} MiB and {by_speed.latency_ms:.2g} ms"
                f" ({by_speed.factory})"
            )
    if fitting := [t for t in trials if t.bytes <= requirements.bytes]:
        best = max(fitting, key=lambda t: t.recall)
        parts.append(f"the best within the memory reaches {best.recall:.3f} ({best.factory})")
    return "; ".join(parts) + ": raise index.memory or index.latency_ms, or lower index.recall_floor"


class _Bench:
    """The sample, its questions, and what the candidates that were tried have in common."""

    def __init__(self, vectors: Vectors, queries: np.ndarray, metric: str, requirements: Requirements) -> None:
        self.count, self.metric, self.requirements = vectors.count, metric, requirements
        self.sample = ArrayVectors(vectors.take(evenly_spaced(vectors.count, requirements.sample)))
        self.share = self.sample.count / self.count
        queries = queries[evenly_spaced(len(queries), SAMPLE_QUERIES)]
        self.questions = ask(queries, self.sample.blocks(), self.sample.count, metric)
        self.fastest = math.inf
        self.centroids: dict[int, tuple[np.ndarray, float]] = {}

    def hopeful(self, factories: list[str]) -> list[str]:
        """Those whose codes alone do not take more than the memory."""
        sizes = {
            factory: code_bytes(faiss.index_factory(self.sample.dim, factory)) * self.count for factory in factories
        }
        return [factory for factory, size in sizes.items() if size <= self.requirements.bytes]

    def try_out(self, factory: str) -> Trial:
        """Build and tune a candidate on the sample."""
        lists = lists_of(factory)
        sampled = max(1, min(round(lists * math.sqrt(self.share)), self.sample.count // TRAINING_LEAST))
        built = self._build(with_lists(factory, sampled), sampled if lists else 0)
        limit = DOMINATED * self.fastest / self._growth(built.index, sampled, lists)
        operation = tune(built.index, self.questions, self.requirements.recall_floor, limit)[-1]
        alone = 1000 * latency(built.index, self.questions)
        growth = self._growth(built.index, sampled, lists, operation.setting.lists)
        trained, added = self._building_growth(built.index, sampled, lists)
        size = self._bytes(built, lists - sampled)
        seconds = built.train_seconds * trained + built.add_seconds * added
        recall, failure = operation.recall, self.requirements.failure(operation.recall, size, alone * growth)
        trial = Trial(
            factory, operation.setting, recall, size, operation.seconds * growth, alone * growth, seconds, failure
        )
        if failure is None:
            self.fastest = min(self.fastest, trial.seconds)
        logging.getLogger(__name__).info(
            "%s: recall@10 %.3f, %d MiB, %.0f queries/s, built in %.1f s%s",
            factory, trial.recall, trial.bytes // MEBI, 1 / trial.seconds, seconds, f" ({failure})" if failure else "",
        )  # fmt: skip
        return trial

    def _build(self, factory: str, lists: int) -> Built:
        """The same lists serve all candidates that have as many of them and see the vectors as they are."""
        shared = bool(lists) and factory.startswith("IVF")
        centroids, seconds = self.centroids.get(lists, (None, 0.0)) if shared else (None, 0.0)
        built = build(factory, self.sample, self.metric, centroids)
        if shared and centroids is None:
            quantizer = stages_of(built.index).inverted.quantizer
            self.centroids[lists] = quantizer.reconstruct_n(0, lists), built.train_seconds
        return Built(built.index, built.train_seconds + seconds, built.add_seconds)

    def _growth(self, index: faiss.Index, sampled: int, lists: int, visited: int | None = None) -> float:
        """How many times longer a query takes with all vectors than with the sample, where it visits some lists."""
        stages = stages_of(index)
        if stages.graph is not None:
            return math.log(self.count) / math.log(self.sample.count)
        if stages.inverted is None:
            return 1 / self.share
        visited = visited or sampled
        return (lists + visited * self.count / lists) / (sampled + visited * self.sample.count / sampled)

    def _building_growth(self, index: faiss.Index, sampled: int, lists: int) -> tuple[float, float]:
        """How many times longer training and adding take with all vectors."""
        stages = stages_of(index)
        if stages.graph is not None:
            return 1, math.log(self.count) / math.log(self.sample.count) / self.share
        if stages.inverted is None:
            return 1, 1 / self.share
        return (lists / sampled) ** 2, max(1, lists / sampled) / self.share

    def _bytes(self, built: Built, more_lists: int) -> int:
        """What the whole index takes: what a vector added in the sample, and the lists' centroids."""
        size = to_bytes(built.index).nbytes
        built.index.reset()
        fixed = to_bytes(built.index).nbytes
        each = max(0, size - fixed) / self.sample.count
        return round(fixed + max(0, more_lists) * 4 * built.index.d + each * self.count)
