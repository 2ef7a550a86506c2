"""Measuring the recall and the speed of an index, and finding the fastest search parameters above a recall floor."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import faiss
import numpy as np
from threadpoolctl import threadpool_limits

from pipeline.index.exact import Neighbours, evenly_spaced, search_exact
from pipeline.index.format import parts_of

if TYPE_CHECKING:
    import torch

NEIGHBOURS = 10
"""Number of neighbours at which the recall of an index is measured."""
MAX_TIED_NEIGHBOURS = 100
"""Largest number of exact neighbours of a query that are computed. It is larger than NEIGHBOURS, because vectors with
the same score as the last of the NEIGHBOURS best vectors also count as right results."""
K_FACTORS = (2, 4, 8, 16, 32, 64)
"""Values of `k_factor` to try. A refined index takes `k_factor` times k candidates from its first stage, and returns
the best k of them."""
MIN_RECALL_GAIN = 0.004
"""Smallest gain of recall that `find_least` expects when it doubles the effort, which is the number of lists or graph
vertices that a search visits. If the gain is smaller, the recall at the greatest effort is measured, and more effort is
tried only if that recall reaches the floor."""
PROSPECT_VECTORS = 1 << 27
"""Approximate largest number of comparisons (of one query with one vector) to measure the recall at the greatest
effort. The number of queries is this number divided by the number of vectors, but at least PROSPECT_QUERIES."""
PROSPECT_QUERIES = 50
"""Smallest number of queries with which the recall at the greatest effort is measured."""
MAX_EF_SEARCH = 4096
"""Largest value of `efSearch` to try."""
MIN_LATENCY_QUERIES = 10
"""Smallest number of queries with which the latency of a single query is measured."""
MAX_LATENCY_QUERIES = 40
"""Approximate largest number of queries with which the latency of a single query is measured."""
LATENCY_SECONDS = 1
"""Approximate number of seconds that measuring the latency may take, unless MIN_LATENCY_QUERIES need longer."""
LATENCY_REPEATS = 3
"""Number of searches of each query to measure its latency. The shortest time counts, because another program may
have used the CPU."""
TIMING_REPEATS = 5
"""Number of times that each setting is timed if `_fastest` compares several settings. The settings are timed
alternately, and the median of the times counts."""


@dataclass(frozen=True)
class SearchSetting:
    """The values of FAISS's search parameters of an index.

    A search visits `nprobe` lists of an inverted file, keeps `efSearch` candidate vertices of a graph, and ranks
    `k_factor` times k candidates again to find k neighbours. A value is None if the index does not have the parameter.
    """

    nprobe: int | None = None
    efSearch: int | None = None
    k_factor: int | None = None

    @property
    def effort(self) -> int:
        """The number of lists or vertices that a search visits, or 0 if the index has no such parameter."""
        return self.nprobe or self.efSearch or 0


NOWHERE = SearchSetting()
"""A setting without values, as the argument `near` of `tune` if there is no setting to start from."""


@dataclass(frozen=True)
class Operation:
    """The recall and the speed of an index at a setting of its search parameters.

    `recall` is the mean share of the NEIGHBOURS exact neighbours of a query that the index finds. `seconds` are the CPU
    seconds per query in a batch on one thread.
    """

    setting: SearchSetting
    recall: float
    seconds: float


@dataclass(frozen=True)
class Questions:
    """Real `queries` (q, c) with the rows that count as right results.

    `k` is the number of neighbours that are sought. `right` (q, t) are the rows of the vectors whose score is at least
    the score of the k-th exact neighbour, with a tolerance for rounding, so that a vector with an equal score also
    counts. A query has at most MAX_TIED_NEIGHBOURS right rows. t is the largest number of right rows of a query. A
    query with fewer right rows has the row -1 in the remaining places.
    """

    queries: np.ndarray
    k: int
    right: np.ndarray


def ask(
    queries: np.ndarray, blocks: Iterable[np.ndarray], count: int, metric: str, gpu: "torch.device | None" = None
) -> Questions:
    """Return `queries` (q, c) with their right results, which an exact search finds in all `blocks`. The blocks have
    `count` vectors together.

    The vectors are compared by `metric`, on `gpu`, or on the CPU if `gpu` is None. The number of neighbours that are
    sought is NEIGHBOURS, or `count` if there are fewer vectors.
    """
    return questions_of(queries, search_exact(queries, blocks, min(MAX_TIED_NEIGHBOURS, count), metric, gpu))


def questions_of(queries: np.ndarray, nearest: Neighbours) -> Questions:
    """Return `queries` (q, c) with their right results. `nearest` are their MAX_TIED_NEIGHBOURS exact neighbours, or
    all vectors if there are fewer."""
    k = min(NEIGHBOURS, nearest.rows.shape[1])
    last = nearest.scores[:, k - 1, None]
    right = nearest.scores >= last - 1e-6 * np.maximum(np.abs(last), 1)
    return Questions(queries, k, np.where(right, nearest.rows, -1)[:, : int(right.sum(axis=1).max())])


def recall_of(rows: np.ndarray, questions: Questions) -> float:
    """Return the recall, from 0 to 1: the share of right results among the results `rows` (q, k). The row of a missing
    result is -1, and counts as wrong."""
    hits = (rows[:, :, None] == questions.right[:, None, :]) & (rows[:, :, None] >= 0)
    return float(hits.any(axis=2).mean())


def timed_search(index: faiss.Index, questions: Questions) -> tuple[np.ndarray, float]:
    """Search an index with all queries in a batch on one thread. Return the rows (q, k) that it finds, and the CPU
    seconds per query.

    CPU time is measured, because it changes less than wall time if other programs run.
    """
    with threadpool_limits(1):
        start = time.process_time()
        rows = index.search(questions.queries, questions.k)[1]
        seconds = time.process_time() - start
    return rows, max(seconds, 1e-9) / len(questions.queries)


@dataclass(frozen=True)
class Stages:
    """The parts of an index that have search parameters: `refine`, which ranks the candidates of another index again,
    `inverted`, an inverted file, and `graph`, an HNSW graph. A part is None if the index does not have it."""

    refine: faiss.IndexRefine | None
    inverted: faiss.IndexIVF | None
    graph: faiss.IndexHNSW | None


def stages_of(index: faiss.Index) -> Stages:
    """Return the parts of `index` that have search parameters: `index` itself, or indexes that it wraps. A part that
    the index does not have is None."""
    parts = list(parts_of(index))
    return Stages(
        refine=next((part for part in parts if isinstance(part, faiss.IndexRefine)), None),
        inverted=next((part for part in parts if isinstance(part, faiss.IndexIVF)), None),
        graph=next((part for part in parts if isinstance(part, faiss.IndexHNSW)), None),
    )


def apply(index: faiss.Index, setting: SearchSetting) -> None:
    """Set the search parameters of an index in place. They are stored in the file of the index.

    A value that is None, or that the index has no part for, is ignored. `nprobe` is at most the number of lists.
    """
    stages = stages_of(index)
    if stages.inverted is not None and setting.nprobe is not None:
        stages.inverted.nprobe = min(setting.nprobe, stages.inverted.nlist)
    if stages.graph is not None and setting.efSearch is not None:
        stages.graph.hnsw.efSearch = setting.efSearch
    if stages.refine is not None and setting.k_factor is not None:
        stages.refine.k_factor = setting.k_factor


def tune(index: faiss.Index, questions: Questions, floor: float, near: SearchSetting = NOWHERE) -> Operation:
    """Find the fastest setting of `index` whose recall with the `questions` reaches `floor`, set it in the index, and
    return its measurements.

    If no tried setting reaches the floor, the tried setting with the highest recall is chosen. The values of `k_factor`
    are tried in ascending order, and for each value, the smallest number of lists or vertices that reaches the floor is
    found. The trials end when a query takes more than twice as long as at the fastest setting that reaches the floor.
    The best settings are then timed alternately (see `_fastest`). The settings to try start close to the setting
    `near`: with a quarter of its `k_factor`, and half of its lists or vertices.
    """
    stages = stages_of(index)
    if stages.inverted is not None:
        name = "nprobe"
        least = 1
        most = stages.inverted.nlist
    else:
        name = "efSearch"
        least = questions.k
        most = MAX_EF_SEARCH
    tried: list[Operation] = []
    factors = [factor for factor in K_FACTORS if 4 * factor >= (near.k_factor or 0)]

    def operate(setting: SearchSetting) -> Operation:
        apply(index, setting)
        rows, seconds = timed_search(index, questions)
        tried.append(Operation(setting, recall_of(rows, questions), seconds))
        return tried[-1]

    def reached() -> list[Operation]:
        return [operation for operation in tried if operation.recall >= floor]

    def hopeless(refined: SearchSetting) -> bool:
        """Return whether the recall of a sample of the queries is below `floor` even at the greatest effort, with the
        `k_factor` of `refined`."""
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
    """Return the fastest of the `operations`, which reach the recall floor.

    If several settings have the same `k_factor`, only the setting with the least effort is considered. If several
    settings remain, they are timed alternately TIMING_REPEATS times, and the result has the median as its `seconds`.
    """
    least: dict[int | None, Operation] = {}
    for operation in sorted(operations, key=lambda o: o.setting.effort):
        least.setdefault(operation.setting.k_factor, operation)

    def ask_again(operation: Operation) -> float:
        apply(index, operation.setting)
        return timed_search(index, questions)[1]

    finalists = list(least.values())
    if len(finalists) == 1:
        return finalists[0]
    # The settings are timed alternately, so that a load by other programs affects all of them alike.
    rounds = [[ask_again(operation) for operation in finalists] for _ in range(TIMING_REPEATS)]
    seconds = np.median(rounds, axis=0).tolist()
    measured = [replace(operation, seconds=value) for operation, value in zip(finalists, seconds, strict=True)]
    return min(measured, key=lambda o: o.seconds)


def find_least(
    operate: Callable[[int], Operation], hopeless: Callable[[], bool],
    least: int, most: int, floor: float, limit: float, start: int = 0,
) -> None:  # fmt: skip
    """Try efforts from `least` to `most` to find the smallest effort whose recall reaches `floor`.

    An effort is an integer, such as a number of lists. More effort gives more recall and takes longer.
    `operate(effort)` measures an effort and returns the result, which it must also keep for the caller, because this
    function returns nothing. Starting from `start`, the effort is halved until the recall is below the floor. Then it
    is doubled until the recall reaches the floor, until a query takes longer than `limit` seconds, or until the recall
    almost stops growing (see MIN_RECALL_GAIN) and `hopeless()` says that no effort reaches the floor. Finally, the
    smallest effort that reaches the floor is found by bisection, to within an eighth.
    """
    operate = cache(operate)
    hopeless = cache(hopeless)
    effort = min(max(start, least), most)
    while effort > least and operate(effort).recall >= floor:
        effort = max(effort // 2, least)
    last = operate(effort)
    while last.recall < floor and effort < most and last.seconds < limit:
        effort = min(2 * effort, most)
        before = last
        last = operate(effort)
        stalled = last.recall < floor and effort > 8 * least and last.recall - before.recall < MIN_RECALL_GAIN
        if stalled and hopeless():
            return
    low = effort // 2 + 1
    high = effort
    while last.recall >= floor and effort > least and low < high and high - low >= high // 8:
        middle = (low + high) // 2
        low, high = (low, middle) if operate(middle).recall >= floor else (middle + 1, high)


def latency(index: faiss.Index, questions: Questions) -> float:
    """Measure the latency of an index: the 95th percentile of the wall time, in seconds, of queries that are searched
    individually. Only some of the queries are searched."""
    queries = questions.queries[:: max(1, len(questions.queries) // MAX_LATENCY_QUERIES), None]

    def answer(query: np.ndarray) -> float:
        start = time.perf_counter()
        index.search(query, questions.k)
        return time.perf_counter() - start

    affordable = int(LATENCY_SECONDS / (LATENCY_REPEATS * max(answer(queries[0]), 1e-9)))
    chosen = queries[: max(MIN_LATENCY_QUERIES, affordable)]
    return float(np.percentile([min(answer(query) for _ in range(LATENCY_REPEATS)) for query in chosen], 95))
