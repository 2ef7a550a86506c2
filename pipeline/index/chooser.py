"""Choosing an index by measuring candidates on a sample of the vectors with real queries.

Each candidate is built on a sample. It has fewer lists than with all vectors, by the square root of the sampled share,
and it is tuned to a recall above the floor (`Bench.floor`), because a sample flatters: its vectors lie further apart
than all vectors do. The measurements are extrapolated to all vectors. The bytes grow by the bytes that each vector
added. The time of a query grows with the number of vectors that it compares: all vectors, or the lists and the vectors
in the visited lists, or the logarithm of the number of vectors in a graph. The time of building grows with the training
and the adding.

Times are CPU seconds, and the candidates near the best are timed in turn (`Bench.settle`), so that the work of another
program does not decide. Among the candidates that meet the requirements, bytes and the time of a query weigh alike, and
the time of building decides between candidates that are otherwise equal (`best_of`).

An index of all vectors can still miss a requirement. `choose` therefore goes on, tier by tier, as long as it is asked.
"""

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal

import faiss
import numpy as np

from pipeline.index.candidates import (
    GRAPH_LINKS,
    TRAINING_LEAST,
    Built,
    Progress,
    build,
    candidate_factories,
    lists_of,
    require_known,
    with_lists,
)
from pipeline.index.exact import ArrayVectors, Vectors, evenly_spaced
from pipeline.index.format import code_bytes, to_bytes
from pipeline.index.tuning import NEIGHBOURS, SearchSetting, ask, latency, stages_of, timed_search, tune
from pipeline.storage.json_files import Json

if TYPE_CHECKING:
    import torch

    from pipeline.config.results import IndexSettings

MEBI = 1 << 20
SAMPLE_QUERIES = 300
"""Queries that measure a candidate on the sample."""
TENTH = 1.1
"""What differs by less than a tenth counts as equal."""
ROUNDS = 15
"""In which the candidates near the best are timed in turn."""
RULE = (
    "least bytes x seconds of a query wins; within a tenth of it the smallest;"
    " within a tenth of that what is built soonest"
)
"""How a candidate is chosen, as the table of candidates says it."""
OUT_OF_REACH = 3
"""Candidates that cost so many times as much as the best one, or as is allowed, are not considered further."""
FINALISTS = 3
"""Maximum number of candidates of one tier that are built with all vectors."""
FLATTERY = 1 / 3
"""Power of the sampled share by which fewer neighbours may be missed on the sample than with all vectors. Among 96
dimensions in 8 bits, four times as many vectors have 1.6 to 2.5 times as many misses."""


@dataclass(frozen=True)
class Requirements:
    """At most `memory` MiB (None: any), at least `recall_floor` of the true neighbours, one query alone in at most
    `latency_ms` (None: any). Up to `exact_limit` vectors are searched exactly where that meets the others. `candidates`
    are factory strings or "auto", tried on `sample` vectors.
    """

    recall_floor: float
    memory: int | None
    latency_ms: float | None
    exact_limit: int
    candidates: Literal["auto"] | tuple[str, ...]
    sample: int = 50_000

    @classmethod
    def of(cls, settings: "IndexSettings") -> "Requirements":
        """Return the requirements in the section `index` of a configuration."""
        return cls(**settings.model_dump(include={field.name for field in fields(cls)}))

    @property
    def bytes(self) -> float:
        return math.inf if self.memory is None else self.memory * MEBI

    def failure(self, recall: float, size: int, latency_ms: float) -> str | None:
        """Name the requirement that an index of `size` bytes misses, or return None if it meets all of them."""
        if recall < self.recall_floor:
            return f"recall below {self.recall_floor:g}"
        if size > self.bytes:
            return f"more than {self.memory} MiB"
        if self.latency_ms is not None and latency_ms > self.latency_ms:
            return f"slower than {self.latency_ms:g} ms"
        return None


@dataclass(frozen=True)
class CandidateTrial:
    """A candidate at the `setting` that reaches the recall floor: `seconds` is the processor time of one query of a
    batch, on one thread, `latency_ms` the 95th percentile of one alone, `build_seconds` the processor time of building
    it, `failure` which requirement it misses (None: it meets all)."""

    factory: str
    setting: SearchSetting
    recall: float
    bytes: int
    seconds: float
    latency_ms: float
    build_seconds: float
    failure: str | None

    @property
    def cost(self) -> float:
        """The cost by which candidates are compared: twice the bytes are worth half the time of a query."""
        return self.bytes * self.seconds

    def to_dict(self) -> dict[str, Json]:
        values = {**vars(self), **vars(self.setting), f"recall@{NEIGHBOURS}": self.recall}
        values |= {"queries_per_second": 1 / self.seconds, "bytes_times_seconds": self.cost}
        return {name: value for name, value in values.items() if name not in ("setting", "seconds", "recall")}


def best_of(trials: list[CandidateTrial]) -> CandidateTrial:
    """The one of least cost; of those within a tenth of it the smallest; of those within a tenth of that, the one that
    is built soonest. So none wins that is neither faster nor smaller than another by a tenth."""
    least = min(trial.cost for trial in trials)
    near = [trial for trial in trials if trial.cost <= TENTH * least]
    smallest = min(trial.bytes for trial in near)
    return min((trial for trial in near if trial.bytes <= TENTH * smallest), key=lambda trial: trial.build_seconds)


def in_order(trials: list[CandidateTrial]) -> list[CandidateTrial]:
    """The best, the best of the others, and so on."""
    left, ordered = list(trials), []
    while left:
        ordered.append(best_of(left))
        left.remove(ordered[-1])
    return ordered


@dataclass(frozen=True)
class Round:
    """The `finalists` are worth building with all vectors, the best first. The `trials` are all candidates that were
    measured so far, the best first, and the candidates that miss a requirement last."""

    finalists: list[CandidateTrial]
    trials: list[CandidateTrial]


class Bench:
    """The sample, its questions, and what the trials of candidates share. A candidate must reach the recall `floor` on
    the sample. With a thousandth of the vectors, it may miss a tenth of the neighbours that the index may miss."""

    def __init__(
        self, vectors: Vectors, queries: np.ndarray, metric: str, requirements: Requirements,
        gpu: "torch.device | None",
    ) -> None:  # fmt: skip
        self.count = vectors.count
        self.gpu = gpu
        self.metric = metric
        self.requirements = requirements
        self.sample = ArrayVectors(vectors.take(evenly_spaced(vectors.count, requirements.sample)))
        self.share = self.sample.count / self.count
        self.floor = 1 - (1 - requirements.recall_floor) * self.share**FLATTERY
        queries = queries[evenly_spaced(len(queries), SAMPLE_QUERIES)]
        self.questions = ask(queries, self.sample.blocks(), self.sample.count, metric)
        self.centroids: dict[int, tuple[np.ndarray, float]] = {}
        self.indices: dict[str, tuple[faiss.Index, float]] = {}

    def hopeful(self, factories: list[str]) -> list[str]:
        """Return the factory strings of indexes whose codes alone fit into the memory."""
        sizes = {
            factory: code_bytes(faiss.index_factory(self.sample.dim, factory)) * self.count for factory in factories
        }
        return [factory for factory, size in sizes.items() if size <= self.requirements.bytes]

    def try_out(self, factory: str) -> CandidateTrial:
        """Build and tune a candidate on the sample."""
        lists = lists_of(factory)
        sampled = max(1, min(round(lists * math.sqrt(self.share)), self.sample.count // TRAINING_LEAST))
        built = self._build(with_lists(factory, sampled), sampled if lists else 0)
        operation = tune(built.index, self.questions, self.floor)
        growth = self._growth(built.index, sampled, lists, operation.setting.nprobe)
        trained, added = self._building_growth(built.index, sampled, lists)
        latency_ms = 1000 * latency(built.index, self.questions) * growth
        size = self._bytes(built.index, lists - sampled)
        failure = self.requirements.failure(operation.recall, size, latency_ms)
        if failure is None and operation.recall < self.floor:
            failure = f"recall below {self.floor:.3g} on the sample"
        trial = CandidateTrial(
            factory,
            operation.setting,
            operation.recall,
            size,
            operation.seconds * growth,
            latency_ms,
            built.train_seconds * trained + built.add_seconds * added,
            failure,
        )
        if trial.failure is None:
            self.indices[factory] = built.index, growth
        logging.getLogger(__name__).info(
            "%s: recall@10 %.3f, %d MiB, %.0f queries/s on a core, built in %.1f s%s",
            factory, trial.recall, trial.bytes // MEBI, 1 / trial.seconds, trial.build_seconds,
            f" ({trial.failure})" if trial.failure else "",
        )  # fmt: skip
        return trial

    def settle(self, trials: list[CandidateTrial]) -> list[CandidateTrial]:
        """The `trials` in order, those near the best by the median of rounds in which they are timed again in turn."""
        least = min((trial.cost for trial in trials), default=0)
        near = [trial for trial in trials if trial.cost <= OUT_OF_REACH * least]
        if len(near) <= 1:
            return in_order(trials)
        rounds = [[self._seconds(trial.factory) for trial in near] for _ in range(ROUNDS)]
        seconds = np.median(rounds, axis=0).tolist()
        timed = [replace(trial, seconds=value) for trial, value in zip(near, seconds, strict=True)]
        return in_order(timed + [trial for trial in trials if trial not in near])

    def _seconds(self, factory: str) -> float:
        """The processor time of one query, with all vectors."""
        index, growth = self.indices[factory]
        return timed_search(index, self.questions)[1] * growth

    def _build(self, factory: str, lists: int) -> Built:
        """The same lists serve all candidates that have as many of them and see the vectors as they are."""
        shared = bool(lists) and factory.startswith("IVF")
        centroids, seconds = self.centroids.get(lists, (None, 0.0)) if shared else (None, 0.0)
        built = build(factory, self.sample, self.metric, centroids, clock=time.process_time, gpu=self.gpu)
        if shared and centroids is None:
            inverted = stages_of(built.index).inverted
            assert inverted is not None  # the factory string begins with IVF
            self.centroids[lists] = inverted.quantizer.reconstruct_n(0, lists), built.train_seconds
        return Built(built.index, built.train_seconds + seconds, built.add_seconds)

    def _growth(self, index: faiss.Index, sampled: int, lists: int, visited: int | None) -> float:
        """Return how many times longer a query takes with all vectors than with the sample.

        A query of an inverted file compares the vectors in the `visited` lists.
        """
        stages = stages_of(index)
        if stages.graph is not None:
            return math.log(self.count) / math.log(self.sample.count)
        if stages.inverted is None:
            return 1 / self.share
        assert visited is not None
        all_lists, sampled_lists = (_compared(stages.inverted, number) for number in (lists, sampled))
        return (all_lists + visited * self.count / lists) / (sampled_lists + visited * self.sample.count / sampled)

    def _building_growth(self, index: faiss.Index, sampled: int, lists: int) -> tuple[float, float]:
        """Return how many times longer training and adding take with all vectors than with the sample."""
        stages = stages_of(index)
        if stages.graph is not None:
            return 1, math.log(self.count) / math.log(self.sample.count) / self.share
        if stages.inverted is None:
            return 1, 1 / self.share
        assigning = _compared(stages.inverted, lists) / _compared(stages.inverted, sampled)
        return (lists / sampled) ** 2, max(1, assigning) / self.share

    def _bytes(self, index: faiss.Index, more_lists: int) -> int:
        """Bytes of the whole index, extrapolated from those of a vector in the sample, and of the lists' centroids."""
        data = to_bytes(index)
        empty = faiss.deserialize_index(np.frombuffer(data, np.uint8))
        empty.reset()
        fixed = to_bytes(empty).nbytes
        each = max(0, data.nbytes - fixed) / self.sample.count
        return round(fixed + max(0, more_lists) * 4 * index.d + each * self.count)


def _compared(inverted: faiss.IndexIVF, lists: int) -> float:
    """About how many centroids a vector is compared with to find its list."""
    if not isinstance(faiss.downcast_index(inverted.quantizer), faiss.IndexHNSW):
        return lists
    return min(lists, 2 * GRAPH_LINKS * math.log2(max(2, lists)))


def choose(
    vectors: Vectors,
    queries: np.ndarray,
    metric: str,
    requirements: Requirements,
    progress: Progress,
    gpu: "torch.device | None" = None,
) -> Iterator[Round]:
    """Yields the candidates of one tier after the other, measured when they are asked for; lists are found on `gpu`.

    The exact index is among the finalists of its tier wherever it meets the requirements. After the tiers come the
    candidates that reach the recall floor on the sample without a margin, with an estimated latency that is at most
    OUT_OF_REACH times too long. The last round has no finalists, and its trials include the candidates that are too
    large, for the message that nothing meets the requirements.
    """
    if isinstance(requirements.candidates, str):
        tiers = candidate_factories(vectors.count, vectors.dim)
    else:
        tiers = [require_known(requirements.candidates, vectors.dim)]
    bench = Bench(vectors, queries, metric, requirements, gpu)
    trials: list[CandidateTrial] = []
    for tier in tiers:
        tried = [bench.try_out(factory) for factory in progress(bench.hopeful(tier), "measuring")]
        good = bench.settle([trial for trial in tried if trial.failure is None])
        bench.indices.clear()
        trials = [*good, *trials, *(trial for trial in tried if trial.failure)]
        exact = [trial for trial in good[FINALISTS:] if trial.factory == "Flat"]
        yield Round(good[:FINALISTS] + exact, trials)
    near = [requirements.failure(t.recall, t.bytes, t.latency_ms / OUT_OF_REACH) is None for t in trials]
    doubtful = [trial for trial, is_near in zip(trials, near, strict=True) if trial.failure and is_near]
    yield Round(sorted(doubtful, key=lambda trial: -trial.recall)[:FINALISTS], trials)
    rest = [factory for tier in tiers for factory in tier if factory not in {trial.factory for trial in trials}]
    yield Round([], trials + [bench.try_out(factory) for factory in progress(rest, "measuring")])


def refusal(trials: list[CandidateTrial], count: int, dim: int, requirements: Requirements) -> str:
    """Says why no candidate meets the requirements, which come nearest, and what to change."""
    floor = requirements.recall_floor
    values = (("memory", "MiB", requirements.memory), ("latency_ms", "ms", requirements.latency_ms))
    limits = {name: f"index.{name} {value:g} {unit}" for name, unit, value in values if value is not None}
    within = f" within {' and '.join(limits.values())}" if limits else ""
    parts = [f"no index of {count:,} vectors of {dim} dimensions reaches index recall@{NEIGHBOURS} {floor:g}{within}"]
    if reaching := [trial for trial in trials if trial.recall >= floor]:
        by_size = min(reaching, key=lambda t: t.bytes)
        by_speed = min(reaching, key=lambda t: t.latency_ms)
        parts.append(
            f"the smallest that reaches it needs {math.ceil(by_size.bytes / MEBI)} MiB and {by_size.latency_ms:.2g} ms"
            f" ({by_size.factory})"
        )
        if by_speed is not by_size:
            parts.append(
                f"the fastest needs {math.ceil(by_speed.bytes / MEBI)} MiB and {by_speed.latency_ms:.2g} ms"
                f" ({by_speed.factory})"
            )
    if fitting := [t for t in trials if t.bytes <= requirements.bytes]:
        best = max(fitting, key=lambda t: t.recall)
        where = "of the candidates" if requirements.memory is None else "within the memory"
        parts.append(f"the highest recall {where} is {best.recall:.3f} ({best.factory})")
    actions = [f"raise index.{name}" for name in limits]
    if not reaching and requirements.candidates != "auto" and "Flat" not in requirements.candidates:
        actions.append("add Flat to index.candidates or set it to auto")
    actions += ["raise index.bundles", "or lower index.recall_floor"]
    return "; ".join(parts) + ": " + ", ".join(actions)
