"""Choosing an index by measuring candidates on a sample of the vectors with real queries.

Each candidate is built on a sample. Its number of lists on the sample is its number of lists for all vectors, times the
square root of the sampled share of the vectors. The candidate is tuned to a recall above the required recall floor
(`Bench.floor`), because the recall on a sample is too high: the vectors of a sample are further apart than all vectors.
The measurements are then extrapolated to all vectors:

- The size grows by the bytes that each vector of the sample adds.
- The time of a query grows with the number of comparisons. An inverted file compares a query with the centroids and
  with the vectors in the visited lists. In a graph, the number of comparisons grows with the logarithm of the number of
  vectors. Any other index compares a query with all vectors.
- The time of building grows with the work of training and of adding vectors.

Times are CPU seconds, except the latency of a single query, which is wall time. The candidates that are close to the
best one are timed alternately (`Bench.settle`), so that the load of other programs does not decide the choice. Among
the candidates that meet the requirements, the size and the time of a query have the same weight, and the time of
building decides between candidates that are otherwise equal (`best_of`).

An index of all vectors can still miss a requirement. The generator `choose` therefore yields further candidates, tier
by tier, until its caller stops.
"""

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import faiss
import numpy as np

from pipeline.compute import runtime
from pipeline.index.candidates import (
    GRAPH_LINKS,
    MIN_TRAINING_PER_LIST,
    Built,
    Progress,
    build,
    candidate_factories,
    lists_of,
    require_known,
    with_lists,
)
from pipeline.index.exact import Vectors, evenly_spaced
from pipeline.index.format import code_bytes, to_bytes
from pipeline.index.tuning import NEIGHBOURS, SearchSetting, ask, latency, stages_of, timed_search, tune
from pipeline.storage.json_files import Json

if TYPE_CHECKING:
    import torch

    from pipeline.config.results import IndexSettings

MEBI = 1 << 20
SAMPLE_QUERIES = 300
"""Largest number of queries with which a candidate is measured on the sample."""
TOLERANCE_FACTOR = 1.1
"""Largest ratio of two costs, or of two sizes, that count as equal when candidates are compared (see `best_of`)."""
TIMING_ROUNDS = 15
"""Number of times that each candidate close to the best candidate is timed. The median of the times counts."""
RULE = (
    "The index with the smallest product of bytes and seconds per query is chosen. Among those within 10% of it, the"
    " smallest index is chosen, and among those within 10% of its size, the index that is built fastest"
)
"""The rule by which `best_of` chooses a candidate, as the table of candidates in the report states it."""
MAX_COST_FACTOR = 3
"""A factor with two uses. `Bench.settle` measures the search time again for candidates that cost at most this factor
times the lowest cost. A candidate that missed a requirement on the sample may be built with all vectors only if its
estimated latency is at most this factor times `Requirements.latency_ms`."""
MAX_FINALISTS = 3
"""Largest number of candidates of one tier that are built with all vectors. The exact index (Flat) may be built in
addition."""
SAMPLE_RECALL_EXPONENT = 1 / 3
"""Exponent that determines how many neighbours a candidate may miss when it is tried on a sample of the vectors. An
index of all vectors may miss the share m of the neighbours, where m is 1 - `recall_floor`. If the sample has the share
s of all vectors, a candidate may miss only the share m * s ** SAMPLE_RECALL_EXPONENT of the neighbours in the sample.
The limit for the sample is lower, because an index of more vectors misses a larger share of the neighbours. In a
measurement with 96 dimensions in 8 bits, four times as many vectors had 1.6 to 2.5 times as many misses."""


@dataclass(frozen=True)
class Requirements:
    """The requirements of an index, from the section `index` of a configuration.

    The index must find at least the share `recall_floor` of the exact neighbours, need at most `memory` MiB, and answer
    a single query within `latency_ms` milliseconds (95th percentile). None means no limit. Up to `exact_limit` vectors
    are searched exactly if an exact index meets the other requirements. `candidates` are the factory strings to
    measure, or "auto" for the strings of `candidate_factories`. They are measured on at most `sample` vectors.
    """

    recall_floor: float
    memory: int | None
    latency_ms: float | None
    exact_limit: int
    candidates: Literal["auto"] | tuple[str, ...]
    sample: int = 50_000

    @classmethod
    def from_settings(cls, settings: "IndexSettings") -> "Requirements":
        """Return the requirements in the section `index` of a configuration."""
        return cls(**settings.model_dump(include={field.name for field in fields(cls)}))

    @property
    def bytes(self) -> float:
        """The limit on the size of the index in bytes, or infinity if `memory` is None."""
        return math.inf if self.memory is None else self.memory * MEBI

    def failure(self, recall: float, size: int, latency_ms: float) -> str | None:
        """Return the first requirement that an index misses, as a phrase such as `more than 100 MiB`, or None if the
        index meets all requirements. The index has a `recall`, a `size` in bytes, and a latency in milliseconds."""
        if recall < self.recall_floor:
            return f"recall below {self.recall_floor:g}"
        if size > self.bytes:
            return f"more than {self.memory} MiB"
        if self.latency_ms is not None and latency_ms > self.latency_ms:
            return f"slower than {self.latency_ms:g} ms"
        return None


@dataclass(frozen=True)
class CandidateTrial:
    """The measurements of the candidate with the string `factory`, with the `setting` of its search parameters that
    `tune` has chosen.

    `recall` is the share of exact neighbours that the candidate finds. `bytes` is its size, `seconds` are the CPU
    seconds per query in a batch on one thread, `latency_ms` is the 95th percentile of the milliseconds of a single
    query, and `build_seconds` are the seconds of training and of adding the vectors. A trial on the sample has its
    recall on the sample, and other values extrapolated to all vectors. `failure` is the phrase for the requirement that
    the candidate misses, and is None if the candidate meets all requirements.
    """

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
        """The cost by which candidates are compared: the product of the size in bytes and the CPU seconds per query."""
        return self.bytes * self.seconds

    def to_dict(self) -> dict[str, Json]:
        """Return the values for the table of candidates (`*.tradeoff.json`)."""
        values = {**vars(self), **vars(self.setting), f"recall@{NEIGHBOURS}": self.recall}
        values |= {"queries_per_second": 1 / self.seconds, "bytes_times_seconds": self.cost}
        return {name: value for name, value in values.items() if name not in ("setting", "seconds", "recall")}


def best_of(trials: list[CandidateTrial]) -> CandidateTrial:
    """Return the best of the candidates by RULE. There must be at least one.

    The cost of a candidate is its size in bytes times its seconds per query. Costs of at most TOLERANCE_FACTOR times
    the smallest cost count as equal, and so do sizes of at most this multiple of the smallest size. Small differences
    between measurements therefore do not decide.
    """
    least = min(trial.cost for trial in trials)
    near = [trial for trial in trials if trial.cost <= TOLERANCE_FACTOR * least]
    smallest = min(trial.bytes for trial in near)
    small = (trial for trial in near if trial.bytes <= TOLERANCE_FACTOR * smallest)
    return min(small, key=lambda trial: trial.build_seconds)


def in_order(trials: list[CandidateTrial]) -> list[CandidateTrial]:
    """Return the candidates sorted: the best candidate by `best_of`, then the best of the remaining ones, and so on."""
    left = list(trials)
    ordered = []
    while left:
        ordered.append(best_of(left))
        left.remove(ordered[-1])
    return ordered


@dataclass(frozen=True)
class Round:
    """The result of one tier of candidates, or of a later round of `choose`.

    `finalists` are the candidates that the caller should build with all vectors, the best first. `trials` are all
    candidates that were measured so far: the candidates of this tier that meet the requirements, the best first, then
    the candidates of earlier tiers, and then the candidates of this tier that miss a requirement.
    """

    finalists: list[CandidateTrial]
    trials: list[CandidateTrial]


class Bench:
    """The sample of the vectors, the queries, and the centroids that all trials of candidates share.

    A candidate must reach the recall `floor` on the sample. `floor` is higher than the required recall unless all
    vectors are in the sample, because a smaller index misses fewer neighbours (see SAMPLE_RECALL_EXPONENT). If the
    sample has a thousandth of the vectors, a candidate may miss a tenth of the share that an index of all vectors may
    miss.
    """

    def __init__(
        self, vectors: Vectors, queries: np.ndarray, metric: str, requirements: Requirements,
        gpu: "torch.device | None",
    ) -> None:  # fmt: skip
        self.vectors = vectors
        self.count = vectors.count
        self.gpu = gpu
        self.metric = metric
        self.requirements = requirements
        self.share = self.sample.count / self.count
        self.floor = 1 - (1 - requirements.recall_floor) * self.share**SAMPLE_RECALL_EXPONENT
        queries = queries[evenly_spaced(len(queries), SAMPLE_QUERIES)]
        self.questions = ask(queries, self.sample.blocks(), self.sample.count, metric)
        self.centroids: dict[int, tuple[np.ndarray, float]] = {}
        self.indices: dict[str, tuple[faiss.Index, float]] = {}

    @cached_property
    def sample(self) -> Vectors:
        """The sample of the vectors, which is kept in memory. It is read when it is first used, and again after
        `free`."""
        return Vectors(self.vectors.take(evenly_spaced(self.vectors.count, self.requirements.sample)))

    def free(self) -> None:
        """Free the memory of the sample and of the indexes of the last tier, because an index of all vectors is built
        next."""
        self.indices.clear()
        del self.sample
        runtime.return_freed_memory()

    def hopeful(self, factories: list[str]) -> list[str]:
        """Return the factory strings of the indexes that are small enough to try: their codes of all vectors would fit
        into the allowed memory (`Requirements.memory`)."""
        sizes = {
            factory: code_bytes(faiss.index_factory(self.sample.dim, factory)) * self.count for factory in factories
        }
        return [factory for factory, size in sizes.items() if size <= self.requirements.bytes]

    def try_out(self, factory: str) -> CandidateTrial:
        """Build a candidate on the sample, tune it to the recall `floor`, and extrapolate its measurements to all
        vectors. Log and return these measurements.

        A candidate that meets the requirements stays in memory for `settle`, until `free` is called.
        """
        lists = lists_of(factory)
        sampled = max(1, min(round(lists * math.sqrt(self.share)), self.sample.count // MIN_TRAINING_PER_LIST))
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
            "The candidate index %s has recall@10 %.3f on a sample. With all vectors, it would need %d MiB, answer %.0f"
            " queries/s on a core, and be built in %.1f s. %s",
            factory, trial.recall, trial.bytes // MEBI, 1 / trial.seconds, trial.build_seconds,
            f"It misses a requirement: {trial.failure}." if trial.failure else "It meets the requirements.",
        )  # fmt: skip
        return trial

    def settle(self, trials: list[CandidateTrial]) -> list[CandidateTrial]:
        """Return the `trials`, which all meet the requirements, sorted by RULE.

        If the costs of several candidates are close to the lowest cost (see MAX_COST_FACTOR), these candidates are
        first timed again, alternately and in TIMING_ROUNDS rounds. The `seconds` of each of these candidates are then
        the median of its rounds.
        """
        least = min((trial.cost for trial in trials), default=0)
        near = [trial for trial in trials if trial.cost <= MAX_COST_FACTOR * least]
        if len(near) <= 1:
            return in_order(trials)
        rounds = [[self._seconds(trial.factory) for trial in near] for _ in range(TIMING_ROUNDS)]
        seconds = np.median(rounds, axis=0).tolist()
        timed = [replace(trial, seconds=value) for trial, value in zip(near, seconds, strict=True)]
        return in_order(timed + [trial for trial in trials if trial not in near])

    def _seconds(self, factory: str) -> float:
        """Measure the CPU seconds per query of a candidate that `try_out` has built, extrapolated to all vectors."""
        index, growth = self.indices[factory]
        return timed_search(index, self.questions)[1] * growth

    def _build(self, factory: str, lists: int) -> Built:
        """Build an index of the sample. `lists` is its number of lists, or 0 if it has none.

        The centroids of the lists are trained once for each number of lists. All candidates that do not transform the
        vectors share them. The training time of shared centroids counts for each of these candidates.
        """
        shared = bool(lists) and factory.startswith("IVF")
        centroids, seconds = self.centroids.get(lists, (None, 0.0)) if shared else (None, 0.0)
        built = build(factory, self.sample, self.metric, centroids, clock=time.process_time, gpu=self.gpu)
        if shared and centroids is None:
            inverted = stages_of(built.index).inverted
            assert inverted is not None  # The factory string begins with IVF.
            self.centroids[lists] = inverted.quantizer.reconstruct_n(0, lists), built.train_seconds
        return Built(built.index, built.train_seconds + seconds, built.add_seconds)

    def _growth(self, index: faiss.Index, sampled: int, lists: int, visited: int | None) -> float:
        """Return the factor by which a query takes longer with all vectors than with the sample.

        `sampled` and `lists` are the numbers of lists with the sample and with all vectors. `visited` is the number of
        lists that a query visits in an inverted file. All three are ignored for other types of index.
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
        """Return the factors by which training and adding take longer with all vectors than with the sample. `sampled`
        and `lists` are the numbers of lists with the sample and with all vectors."""
        stages = stages_of(index)
        if stages.graph is not None:
            return 1, math.log(self.count) / math.log(self.sample.count) / self.share
        if stages.inverted is None:
            return 1, 1 / self.share
        assigning = _compared(stages.inverted, lists) / _compared(stages.inverted, sampled)
        return (lists / sampled) ** 2, max(1, assigning) / self.share

    def _bytes(self, index: faiss.Index, more_lists: int) -> int:
        """Extrapolate the size in bytes of `index`, which has the vectors of the sample, to all vectors and to
        `more_lists` additional centroids."""
        data = to_bytes(index)
        empty = faiss.deserialize_index(np.frombuffer(data, np.uint8))
        empty.reset()
        fixed = to_bytes(empty).nbytes
        each = max(0, data.nbytes - fixed) / self.sample.count
        return round(fixed + max(0, more_lists) * 4 * index.d + each * self.count)


def _compared(inverted: faiss.IndexIVF, lists: int) -> float:
    """Estimate the number of centroids with which a vector is compared to find its list in an inverted file with this
    number of `lists`. With a graph of the centroids, the number grows with the logarithm of `lists`."""
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
    all_vectors: int | None = None,
) -> Iterator[Round]:
    """Yield one tier of candidates after the other. A tier is measured when the caller asks for the next round.

    The candidates are measured with `queries` (q, c) on a sample of the `vectors`, which are compared by `metric`, and
    `progress` shows the progress. The exact index is among the finalists of its tier if it meets the requirements.
    After the tiers come candidates that failed but may meet the requirements with all vectors: their recall on the
    sample reaches the recall floor without the margin of `Bench.floor`, their size is within the limit, and their
    estimated latency is at most MAX_COST_FACTOR times the limit. The last round has no finalists. Its trials include
    the candidates that are too large, so that the error message that no index meets the requirements can name them. The
    lists are trained on `gpu`, or by FAISS on the CPU if `gpu` is None. The numbers of lists of the candidates are
    chosen for `all_vectors` vectors, which is the number of vectors of all index shards together. None means that
    `vectors` are all vectors.

    Raises UsageError if `requirements.candidates` has a factory string for which `is_known` is false.
    """
    if isinstance(requirements.candidates, str):
        tiers = candidate_factories(all_vectors or vectors.count, vectors.dim)
    else:
        tiers = [require_known(requirements.candidates, vectors.dim)]
    bench = Bench(vectors, queries, metric, requirements, gpu)
    trials: list[CandidateTrial] = []
    for tier in tiers:
        tried = [bench.try_out(factory) for factory in progress(bench.hopeful(tier), "measuring")]
        good = bench.settle([trial for trial in tried if trial.failure is None])
        bench.free()
        trials = [*good, *trials, *(trial for trial in tried if trial.failure)]
        exact = [trial for trial in good[MAX_FINALISTS:] if trial.factory == "Flat"]
        yield Round(good[:MAX_FINALISTS] + exact, trials)
    near = [requirements.failure(t.recall, t.bytes, t.latency_ms / MAX_COST_FACTOR) is None for t in trials]
    doubtful = [trial for trial, is_near in zip(trials, near, strict=True) if trial.failure and is_near]
    yield Round(sorted(doubtful, key=lambda trial: -trial.recall)[:MAX_FINALISTS], trials)
    rest = [factory for tier in tiers for factory in tier if factory not in {trial.factory for trial in trials}]
    yield Round([], trials + [bench.try_out(factory) for factory in progress(rest, "measuring")])


def refusal(trials: list[CandidateTrial], count: int, dim: int, requirements: Requirements) -> str:
    """Return the error message for the case that all candidates, `trials`, miss a requirement.

    The message names the candidates that come closest, and the settings to change. `count` and `dim` are the number of
    vectors and their dimensions.
    """
    floor = requirements.recall_floor
    values = (("memory", "MiB", requirements.memory), ("latency_ms", "ms", requirements.latency_ms))
    limits = {name: f"index.{name} {value:g} {unit}" for name, unit, value in values if value is not None}
    within = f" within {' and '.join(limits.values())}" if limits else ""
    parts = [f"No index of {count:,} vectors of {dim} dimensions reaches index recall@{NEIGHBOURS} {floor:g}{within}"]
    if reaching := [trial for trial in trials if trial.recall >= floor]:
        by_size = min(reaching, key=lambda t: t.bytes)
        by_speed = min(reaching, key=lambda t: t.latency_ms)
        parts.append(
            f"The smallest index that reaches it needs {math.ceil(by_size.bytes / MEBI)} MiB and"
            f" {by_size.latency_ms:.2g} ms ({by_size.factory})"
        )
        if by_speed is not by_size:
            parts.append(
                f"The fastest needs {math.ceil(by_speed.bytes / MEBI)} MiB and {by_speed.latency_ms:.2g} ms"
                f" ({by_speed.factory})"
            )
    if fitting := [t for t in trials if t.bytes <= requirements.bytes]:
        best = max(fitting, key=lambda t: t.recall)
        where = "of the candidates" if requirements.memory is None else "within the memory"
        parts.append(f"The highest recall {where} is {best.recall:.3f} ({best.factory})")
    actions = [f"raise index.{name}" for name in limits]
    if not reaching and requirements.candidates != "auto" and "Flat" not in requirements.candidates:
        actions.append("add Flat to index.candidates or set it to auto")
    actions += ["raise index.bundles", "or lower index.recall_floor"]
    remedy = ", ".join(actions)
    return f"{'. '.join(parts)}. {remedy[:1].upper()}{remedy[1:]}."
