"""The search parameters of an index, its recall and speed by them, and the fastest setting above a recall floor."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np

from pipeline.index.exact import Neighbours, search_exact
from pipeline.index.mapped import search_index

if TYPE_CHECKING:
    import torch

NEIGHBOURS = 10
"""Index recall is measured at this many neighbours."""
EQUALS = 100
"""Neighbours among which those that score as well as the true last one are looked for."""
REFINED = (2, 4, 8, 16, 32, 64)
"""Multiples of k that a refined index takes from its first stage."""
STALLED = 0.004
"""Recall that twice the effort must gain for still more effort to be tried."""
MOST_SEARCHED = 4096
"""Vertices of a graph that a search keeps at most."""
ALONE = 40
"""Queries that measure the latency of one query alone."""


@dataclass(frozen=True)
class SearchSetting:
    """Search parameters of an index: `lists` visited (nprobe), `vertices` kept (efSearch), and `k_factor` times as many
    candidates as neighbours for a refinement. None where the index has no such parameter."""

    lists: int | None = None
    vertices: int | None = None
    k_factor: int | None = None

    def to_dict(self) -> dict[str, int]:
        """What FAISS calls them."""
        values = {"nprobe": self.lists, "efSearch": self.vertices, "k_factor": self.k_factor}
        return {name: value for name, value in values.items() if value is not None}


NOWHERE = SearchSetting()


@dataclass(frozen=True)
class Operation:
    """Recall and speed of an index at a setting: `recall` is the share of a query's true `NEIGHBOURS` nearest that it
    finds, `seconds` one query's share of a batch of them all."""

    setting: SearchSetting
    recall: float
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return {**self.setting.to_dict(), f"recall@{NEIGHBOURS}": self.recall, "queries_per_second": 1 / self.seconds}


@dataclass(frozen=True)
class Questions:
    """Real queries (q, c), how many neighbours `k` they ask for, and the rows (q, t) that are right answers: those that
    score as well as the true k-th, so that equal vectors may stand for each other; -1 fills up."""

    queries: np.ndarray
    k: int
    right: np.ndarray


def ask(
    queries: np.ndarray, blocks: Iterable[np.ndarray], count: int, metric: str, gpu: "torch.device | None" = None
) -> Questions:
    """The questions, their right answers found by exact search among all `blocks`, `count` vectors in all."""
    return questions_of(queries, search_exact(queries, blocks, min(EQUALS, count), metric, gpu), count)


def questions_of(queries: np.ndarray, nearest: Neighbours, count: int) -> Questions:
    """The questions, by the `EQUALS` `nearest` of each among `count` vectors."""
    k = min(NEIGHBOURS, count)
    last = nearest.scores[:, k - 1, None]
    right = nearest.scores >= last - 1e-6 * np.maximum(np.abs(last), 1)
    return Questions(queries, k, np.where(right, nearest.rows, -1)[:, : int(right.sum(axis=1).max())])


def index_recall(index: faiss.Index, questions: Questions) -> float:
    """The share of the k nearest that `index` finds."""
    rows = search_index(index, questions.queries, questions.k)[1]
    found = (rows[:, :, None] == questions.right[:, None, :]) & (rows[:, :, None] >= 0)
    return float(found.any(axis=2).mean())


@dataclass(frozen=True)
class Stages:
    """The parts of an index that have search parameters; None for each that is missing."""

    refine: faiss.IndexRefine | None
    inverted: faiss.IndexIVF | None
    graph: faiss.IndexHNSW | None


def stages_of(index: faiss.Index) -> Stages:
    """The parts of `index`, whatever it is wrapped in."""
    refine, index = None, faiss.downcast_index(index)
    while isinstance(index, faiss.IndexRefine | faiss.IndexPreTransform | faiss.IndexIDMap):
        if isinstance(index, faiss.IndexRefine):
            refine, index = index, faiss.downcast_index(index.base_index)
        else:
            index = faiss.downcast_index(index.index)
    inverted = index if isinstance(index, faiss.IndexIVF) else None
    return Stages(refine, inverted, index if isinstance(index, faiss.IndexHNSW) else None)


def apply(index: faiss.Index, setting: SearchSetting) -> None:
    """Set the search parameters; they are saved with the index."""
    stages = stages_of(index)
    if stages.inverted is not None:
        stages.inverted.nprobe = setting.lists
    if stages.graph is not None:
        stages.graph.hnsw.efSearch = setting.vertices
    if stages.refine is not None:
        stages.refine.k_factor = setting.k_factor


def tune(
    index: faiss.Index, questions: Questions, floor: float, limit: float = np.inf, near: SearchSetting = NOWHERE
) -> list[Operation]:
    """All operations tried; last, and applied, the fastest that reaches `floor`, or the best recall where none does.

    No more effort is tried where a query already takes more than `limit` seconds. The search begins `near` a setting
    that is likely, from a quarter of its refinement and half of its lists or vertices on.
    """
    stages, tried = stages_of(index), []
    factors = [factor for factor in REFINED if 4 * factor >= (near.k_factor or 0)]

    def operate(setting: SearchSetting) -> Operation:
        apply(index, setting)
        start = time.perf_counter()
        recall = index_recall(index, questions)
        tried.append(Operation(setting, recall, (time.perf_counter() - start) / len(questions.queries)))
        return tried[-1]

    def reached() -> list[Operation]:
        return [operation for operation in tried if operation.recall >= floor]

    for k_factor in factors if stages.refine is not None else (None,):
        worth = min([limit, *(2 * operation.seconds for operation in reached())])
        if stages.inverted is not None:
            efforts = Efforts(lambda n, k=k_factor: operate(SearchSetting(n, None, k)), 1, stages.inverted.nlist)
            efforts.find_least(floor, worth, (near.lists or 0) // 2)
        elif stages.graph is not None:
            efforts = Efforts(lambda n, k=k_factor: operate(SearchSetting(None, n, k)), questions.k, MOST_SEARCHED)
            efforts.find_least(floor, worth, (near.vertices or 0) // 2)
        else:
            operate(SearchSetting(None, None, k_factor))
        if reached() and tried[-1].seconds > 2 * min(operation.seconds for operation in reached()):
            break
    best = min(reached(), key=lambda o: o.seconds) if reached() else max(tried, key=lambda o: o.recall)
    tried.remove(best)
    apply(index, best.setting)
    return [*tried, best]


@dataclass(frozen=True)
class Efforts:
    """Whole numbers from `least` to `most` of which more give more recall and take longer."""

    operate: Callable[[int], Operation]
    least: int
    most: int

    def find_least(self, floor: float, limit: float, start: int = 0) -> None:
        """Try them from `start` on, halved until the recall is below `floor`, then doubled until it reaches it, stalls,
        or takes longer than `limit`; then bisected to the smallest that reaches it, to within an eighth."""
        operate = cache(self.operate)
        effort = min(max(start, self.least), self.most)
        while effort > self.least and operate(effort).recall >= floor:
            effort = max(effort // 2, self.least)
        last = operate(effort)
        while last.recall < floor and effort < self.most and last.seconds < limit:
            effort = min(2 * effort, self.most)
            before, last = last, operate(effort)
            if last.recall < floor and effort > 8 * self.least and last.recall - before.recall < STALLED:
                return
        low, high = effort // 2 + 1, effort
        while last.recall >= floor and effort > self.least and low < high and high - low >= high // 8:
            middle = (low + high) // 2
            low, high = (low, middle) if operate(middle).recall >= floor else (middle + 1, high)


def latency(index: faiss.Index, questions: Questions) -> float:
    """The 95th percentile of the seconds that one query alone takes."""
    queries, k, seconds = questions.queries, questions.k, []
    for row in range(0, len(queries), max(1, len(queries) // ALONE)):
        start = time.perf_counter()
        search_index(index, queries[row, None], k)
        seconds.append(time.perf_counter() - start)
    return float(np.percentile(seconds, 95))
