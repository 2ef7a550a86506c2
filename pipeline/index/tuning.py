"""The search parameters of an index, its recall and speed by them, and the fastest setting above a recall floor."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import faiss
import numpy as np
from threadpoolctl import threadpool_limits

from pipeline.index.exact import evenly_spaced, search_exact
from pipeline.index.format import parts_of

if TYPE_CHECKING:
    import torch

NEIGHBOURS = 10
"""Index recall is measured at this many neighbours."""
EQUALS = 100
"""Neighbours among which those that score as well as the true last one are looked for."""
REFINED = (2, 4, 8, 16, 32, 64)
"""Multiples of k that a refined index takes from its first stage."""
STALLED = 0.004
"""Recall that twice the effort must gain; otherwise the recall at the greatest effort decides whether to go on."""
PROSPECT_VECTORS, PROSPECT_QUERIES = 1 << 27, 50
"""Vectors that may be compared to measure the recall at the greatest effort, and its minimum number of queries."""
MOST_SEARCHED = 4096
"""Vertices of a graph that a search keeps at most."""
LEAST_ALONE, ALONE, ALONE_SECONDS = 10, 40, 1
"""Queries that measure the latency of one query alone: at least and at most so many, and what they may take between."""
ASKED_AGAIN = 3
"""Times that each of them is asked; the soonest answer counts, for another program may have had the processor."""
REPEATS = 5
"""Times that settings which all reach the recall floor are compared."""


@dataclass(frozen=True)
class SearchSetting:
    """FAISS's search parameters of an index: `nprobe` lists are visited, `efSearch` vertices of a graph kept, and
    `k_factor` times as many candidates as neighbours refined. None where the index has no such parameter."""

    nprobe: int | None = None
    efSearch: int | None = None
    k_factor: int | None = None

    @property
    def effort(self) -> int:
        """The number of lists or vertices that a search visits, or 0 if the index has no such parameter."""
        return self.nprobe or self.efSearch or 0


NOWHERE = SearchSetting()


@dataclass(frozen=True)
class Operation:
    """Recall and speed of an index at a setting: `recall` is the share of a query's true `NEIGHBOURS` nearest that it
    finds, `seconds` the processor time of one query of a batch, on one thread."""

    setting: SearchSetting
    recall: float
    seconds: float


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
    nearest = search_exact(queries, blocks, min(EQUALS, count), metric, gpu)
    k = min(NEIGHBOURS, count)
    last = nearest.scores[:, k - 1, None]
    right = nearest.scores >= last - 1e-6 * np.maximum(np.abs(last), 1)
    return Questions(queries, k, np.where(right, nearest.rows, -1)[:, : int(right.sum(axis=1).max())])


def recall_of(rows: np.ndarray, questions: Questions) -> float:
    """The share of right answers among `rows` (q, k), -1 where there are fewer."""
    hits = (rows[:, :, None] == questions.right[:, None, :]) & (rows[:, :, None] >= 0)
    return float(hits.any(axis=2).mean())


def timed_search(index: faiss.Index, questions: Questions) -> tuple[np.ndarray, float]:
    """The rows (q, k) that `index` finds, and the processor seconds of one query on one thread.

    Processor time, unlike that of the wall clock, is hardly longer where other programs run.
    """
    with threadpool_limits(1):
        start = time.process_time()
        rows = index.search(questions.queries, questions.k)[1]
        seconds = time.process_time() - start
    return rows, max(seconds, 1e-9) / len(questions.queries)


@dataclass(frozen=True)
class Stages:
    """The parts of an index that have search parameters; None for each that is missing."""

    refine: faiss.IndexRefine | None
    inverted: faiss.IndexIVF | None
    graph: faiss.IndexHNSW | None


def stages_of(index: faiss.Index) -> Stages:
    """The parts of `index`, whatever it is wrapped in."""
    parts = list(parts_of(index))
    return Stages(
        refine=next((part for part in parts if isinstance(part, faiss.IndexRefine)), None),
        inverted=next((part for part in parts if isinstance(part, faiss.IndexIVF)), None),
        graph=next((part for part in parts if isinstance(part, faiss.IndexHNSW)), None),
    )


def apply(index: faiss.Index, setting: SearchSetting) -> None:
    """Set the search parameters; they are saved with the index."""
    stages = stages_of(index)
    if stages.inverted is not None and setting.nprobe is not None:
        stages.inverted.nprobe = min(setting.nprobe, stages.inverted.nlist)
    if stages.graph is not None and setting.efSearch is not None:
        stages.graph.hnsw.efSearch = setting.efSearch
    if stages.refine is not None and setting.k_factor is not None:
        stages.refine.k_factor = setting.k_factor


def tune(index: faiss.Index, questions: Questions, floor: float, near: SearchSetting = NOWHERE) -> Operation:
    """The fastest operation that reaches `floor`, or the one of the best recall where none does; it is applied.

    The least effort that reaches it is sought for each refinement, and these are then compared in turn. The search
    begins `near` a setting that is likely, from a quarter of its refinement and half of its lists or vertices on.
    """
    stages = stages_of(index)
    if stages.inverted is not None:
        name, least, most = "nprobe", 1, stages.inverted.nlist
    else:
        name, least, most = "efSearch", questions.k, MOST_SEARCHED
    tried: list[Operation] = []
    factors = [factor for factor in REFINED if 4 * factor >= (near.k_factor or 0)]

    def operate(setting: SearchSetting) -> Operation:
        apply(index, setting)
        rows, seconds = timed_search(index, questions)
        tried.append(Operation(setting, recall_of(rows, questions), seconds))
        return tried[-1]

    def reached() -> list[Operation]:
        return [operation for operation in tried if operation.recall >= floor]

    def hopeless(refined: SearchSetting) -> bool:
        """Whether some of the queries miss the floor even at the greatest effort."""
        rows = evenly_spaced(len(questions.queries), max(PROSPECT_QUERIES, PROSPECT_VECTORS // max(1, index.ntotal)))
        some = Questions(questions.queries[rows], questions.k, questions.right[rows])
        apply(index, replace(refined, **{name: most}))
        return recall_of(index.search(some.queries, some.k)[1], some) < floor

    for k_factor in factors if stages.refine is not None else (None,):
        worth = min((2 * operation.seconds for operation in reached()), default=np.inf)
        refined = SearchSetting(k_factor=k_factor)
        if stages.inverted is None and stages.graph is None:
            operate(refined)
        else:
            find_least(
                lambda effort, refined=refined: operate(replace(refined, **{name: effort})),
                lambda refined=refined: hopeless(refined),
                least, most, floor, worth, near.effort // 2,
            )  # fmt: skip
        if reached() and tried[-1].seconds > 2 * min(operation.seconds for operation in reached()):
            break
    best = _fastest(index, questions, reached()) if reached() else max(tried, key=lambda o: o.recall)
    apply(index, best.setting)
    return best


def _fastest(index: faiss.Index, questions: Questions, operations: list[Operation]) -> Operation:
    """The fastest of the `operations`, of those that differ in effort alone the one of least, compared in turn."""
    least: dict[int | None, Operation] = {}
    for operation in sorted(operations, key=lambda o: o.setting.effort):
        least.setdefault(operation.setting.k_factor, operation)

    def ask_again(operation: Operation) -> float:
        apply(index, operation.setting)
        return timed_search(index, questions)[1]

    finalists = list(least.values())
    if len(finalists) == 1:
        return finalists[0]
    rounds = [[ask_again(operation) for operation in finalists] for _ in range(REPEATS)]  # a busy minute meets all
    seconds = np.median(rounds, axis=0).tolist()
    measured = [replace(operation, seconds=value) for operation, value in zip(finalists, seconds, strict=True)]
    return min(measured, key=lambda o: o.seconds)


def find_least(
    operate: Callable[[int], Operation], hopeless: Callable[[], bool],
    least: int, most: int, floor: float, limit: float, start: int = 0,
) -> None:  # fmt: skip
    """Tries efforts, which are whole numbers from `least` to `most`. More effort gives more recall and takes longer.

    The effort is halved from `start` on until the recall is below `floor`. Then it is doubled until the recall reaches
    the floor, until a search takes longer than `limit`, or until the recall stalls and is `hopeless`. Then the
    smallest effort that reaches the floor is found by bisection, to within an eighth.
    """
    operate, hopeless = cache(operate), cache(hopeless)
    effort = min(max(start, least), most)
    while effort > least and operate(effort).recall >= floor:
        effort = max(effort // 2, least)
    last = operate(effort)
    while last.recall < floor and effort < most and last.seconds < limit:
        effort = min(2 * effort, most)
        before, last = last, operate(effort)
        stalled = last.recall < floor and effort > 8 * least and last.recall - before.recall < STALLED
        if stalled and hopeless():
            return
    low, high = effort // 2 + 1, effort
    while last.recall >= floor and effort > least and low < high and high - low >= high // 8:
        middle = (low + high) // 2
        low, high = (low, middle) if operate(middle).recall >= floor else (middle + 1, high)


def latency(index: faiss.Index, questions: Questions) -> float:
    """The 95th percentile of the seconds, of the wall clock, that one query alone takes."""
    queries = questions.queries[:: max(1, len(questions.queries) // ALONE), None]

    def answer(query: np.ndarray) -> float:
        start = time.perf_counter()
        index.search(query, questions.k)
        return time.perf_counter() - start

    affordable = int(ALONE_SECONDS / (ASKED_AGAIN * max(answer(queries[0]), 1e-9)))
    chosen = queries[: max(LEAST_ALONE, affordable)]
    return float(np.percentile([min(answer(query) for _ in range(ASKED_AGAIN)) for query in chosen], 95))
