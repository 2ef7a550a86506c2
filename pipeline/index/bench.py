"""Candidate indices measured on a sample, and what they would be with all vectors; see pipeline.index.chooser."""

import logging
import math
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np

from pipeline.index.candidates import GRAPH_LINKS, TRAINING_LEAST, Built, Hopeless, build, lists_of, with_lists
from pipeline.index.format import code_bytes, to_bytes
from pipeline.index.requirements import MEBI, Requirements
from pipeline.index.tuning import NEIGHBOURS, SearchSetting, ask, latency, stages_of, tune
from pipeline.index.vectors import ArrayVectors, Vectors, evenly_spaced

SAMPLE_QUERIES = 300
"""Queries that measure a candidate on the sample."""
DOMINATED = 1.5
"""A candidate that takes this many times as long as the best one is given up; the margin allows for a busy machine."""
SAMPLE_BLOCKS = 10
"""Parts of the sample after each of which a candidate can be given up."""


@dataclass(frozen=True)
class CandidateTrial:
    """A candidate at the `setting` that reaches the recall floor: `seconds` is one query's share of a batch,
    `latency_ms` the 95th percentile of one alone, `failure` which requirement it misses (None: it meets all)."""

    factory: str
    setting: SearchSetting
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


class Bench:
    """The sample, its questions, and what the trials of candidates share."""

    def __init__(self, vectors: Vectors, queries: np.ndarray, metric: str, requirements: Requirements) -> None:
        self.count, self.metric, self.requirements = vectors.count, metric, requirements
        sample = vectors.take(evenly_spaced(vectors.count, requirements.sample))
        self.sample = ArrayVectors(sample, -(-len(sample) // SAMPLE_BLOCKS))
        self.share = self.sample.count / self.count
        queries = queries[evenly_spaced(len(queries), SAMPLE_QUERIES)]
        self.questions = ask(queries, self.sample.blocks(), self.sample.count, metric)
        self.best, self.good = math.inf, set()
        self.centroids: dict[int, tuple[np.ndarray, float]] = {}

    def hopeful(self, factories: list[str]) -> list[str]:
        """Those whose codes alone fit into the memory."""
        sizes = {
            factory: code_bytes(faiss.index_factory(self.sample.dim, factory)) * self.count for factory in factories
        }
        return [factory for factory, size in sizes.items() if size <= self.requirements.bytes]

    def try_out(self, factory: str) -> list[CandidateTrial]:
        """Build and tune a candidate on the sample; nothing where it is given up, or needs 16 bits for what 8 do."""
        if "SQfp16" in factory and factory.replace("SQfp16", "SQ8") in self.good:
            return []
        lists, dominated = lists_of(factory), DOMINATED * self.best
        sampled = max(1, min(round(lists * math.sqrt(self.share)), self.sample.count // TRAINING_LEAST))

        def hopeless(index: faiss.Index, train_seconds: float, add_seconds: float) -> bool:
            trained, added = self._building_growth(index, sampled, lists)
            parts = self.sample.count / index.ntotal if index.ntotal else 0
            return train_seconds * trained + add_seconds * added * parts > dominated

        built = self._build(with_lists(factory, sampled), sampled if lists else 0, hopeless)
        if built.index.ntotal < self.sample.count:
            logging.getLogger(__name__).info("%s: given up: building it takes longer than all of the best one", factory)
            return []
        limit = dominated / self.requirements.workload / self._growth(built.index, sampled, lists)
        operation = tune(built.index, self.questions, self.requirements.recall_floor, limit)[-1]
        alone = 1000 * latency(built.index, self.questions)
        growth = self._growth(built.index, sampled, lists, operation.setting.lists)
        trained, added = self._building_growth(built.index, sampled, lists)
        size = self._bytes(built, lists - sampled)
        seconds = built.train_seconds * trained + built.add_seconds * added
        recall, failure = operation.recall, self.requirements.failure(operation.recall, size, alone * growth)
        trial = CandidateTrial(
            factory, operation.setting, recall, size, operation.seconds * growth, alone * growth, seconds, failure
        )
        if failure is None:
            self.best = min(self.best, trial.cost(self.requirements.workload))
            self.good.add(factory)
        logging.getLogger(__name__).info(
            "%s: recall@10 %.3f, %d MiB, %.0f queries/s, built in %.1f s%s",
            factory, trial.recall, trial.bytes // MEBI, 1 / trial.seconds, seconds, f" ({failure})" if failure else "",
        )  # fmt: skip
        return [trial]

    def _build(self, factory: str, lists: int, hopeless: Hopeless) -> Built:
        """The same lists serve all candidates that have as many of them and see the vectors as they are."""
        shared = bool(lists) and factory.startswith("IVF")
        centroids, seconds = self.centroids.get(lists, (None, 0.0)) if shared else (None, 0.0)
        built = build(factory, self.sample, self.metric, centroids, hopeless=hopeless)
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
        all_lists, sampled_lists = (_compared(stages.inverted, number) for number in (lists, sampled))
        return (all_lists + visited * self.count / lists) / (sampled_lists + visited * self.sample.count / sampled)

    def _building_growth(self, index: faiss.Index, sampled: int, lists: int) -> tuple[float, float]:
        """How many times longer training and adding take with all vectors."""
        stages = stages_of(index)
        if stages.graph is not None:
            return 1, math.log(self.count) / math.log(self.sample.count) / self.share
        if stages.inverted is None:
            return 1, 1 / self.share
        assigning = _compared(stages.inverted, lists) / _compared(stages.inverted, sampled)
        return (lists / sampled) ** 2, max(1, assigning) / self.share

    def _bytes(self, built: Built, more_lists: int) -> int:
        """Bytes of the whole index, extrapolated from those of a vector in the sample, and of the lists' centroids."""
        size = to_bytes(built.index).nbytes
        built.index.reset()
        fixed = to_bytes(built.index).nbytes
        each = max(0, size - fixed) / self.sample.count
        return round(fixed + max(0, more_lists) * 4 * built.index.d + each * self.count)


def _compared(inverted: faiss.IndexIVF, lists: int) -> float:
    """About how many centroids a vector is compared with to find its list."""
    if not isinstance(faiss.downcast_index(inverted.quantizer), faiss.IndexHNSW):
        return lists
    return min(lists, 2 * GRAPH_LINKS * math.log2(max(2, lists)))
