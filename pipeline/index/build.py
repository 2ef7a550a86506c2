"""Building a FAISS index and measuring it with real queries of the other modality."""

import math
import time
from dataclasses import asdict, dataclass
from typing import Any

import faiss
import numpy as np

from pipeline.errors import InputError
from pipeline.index.format import METRICS, to_bytes
from pipeline.precision import require_finite

NEIGHBOURS = 10
"""Index recall is measured at this many neighbours."""
QUERIES = 1000
"""Vectors of the other modality that measure an index."""
LISTS = 4
"""Times the square root of the number of vectors: the lists of an inverted file."""
TRAINING_LEAST, TRAINING_MOST = 39, 50
"""Training vectors for each list; below the first FAISS warns of poor centroids."""


@dataclass(frozen=True)
class IndexCard:
    """What an index is and does.

    `recall` is the share of a query's true `NEIGHBOURS` nearest that it finds, `queries_per_second` is of one batch
    of `queries`, and `nprobe` how many lists a search visits (None for an exact index).
    """

    factory: str
    metric: str
    dim: int
    count: int
    bytes: int
    nprobe: int | None
    recall: float
    queries: int
    queries_per_second: float
    build_seconds: float

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        values[f"recall@{NEIGHBOURS}"] = values.pop("recall")
        return values


@dataclass(frozen=True)
class BuiltIndex:
    """A FAISS index as bytes, its position i being row i of the vectors, and its card."""

    data: memoryview
    card: IndexCard


def build_index(
    vectors: np.ndarray, queries: np.ndarray, metric: str, exact_limit: int, recall_floor: float
) -> BuiltIndex:
    """Index `vectors` (n, c) float32: exactly up to `exact_limit` of them, by an inverted file above.

    `queries` (q, c) measure it; an inverted file visits as few lists as reach `recall_floor` on them.
    Raises InputError where there is nothing to index or to ask, IntegrityError for a row that is not finite.
    """
    require_finite("embeddings", "vectors", vectors)
    require_finite("embeddings", "queries", queries)
    if not len(vectors) or not len(queries):
        raise InputError("there is nothing to index; put splits that have images and sentences into index.splits")
    n, k, faiss_metric = len(vectors), min(NEIGHBOURS, len(vectors)), METRICS[metric]
    start = time.perf_counter()
    factory = "Flat" if n <= exact_limit else f"IVF{_lists(n)},Flat"
    index = faiss.index_factory(vectors.shape[1], factory, faiss_metric)
    if not index.is_trained:
        _train(index, vectors)
    index.add(vectors)
    build_seconds = time.perf_counter() - start

    exact = faiss.knn(queries, vectors, k, metric=faiss_metric)[0][:, -1]
    nprobe = None if factory == "Flat" else tune_nprobe(index, queries, exact, k, recall_floor)
    start = time.perf_counter()
    recall = index_recall(index, queries, exact, k)
    speed = len(queries) / (time.perf_counter() - start)
    data = to_bytes(index)
    card = IndexCard(factory, metric, index.d, n, len(data), nprobe, recall, len(queries), speed, build_seconds)
    return BuiltIndex(data, card)


def _lists(n: int) -> int:
    return max(1, min(round(LISTS * math.sqrt(n)), n // TRAINING_LEAST))


def _train(index: faiss.IndexIVF, vectors: np.ndarray) -> None:
    index.cp.max_points_per_centroid = TRAINING_MOST
    index.train(vectors[evenly_spaced(len(vectors), TRAINING_MOST * index.nlist)])


def evenly_spaced(n: int, most: int) -> np.ndarray:
    """At most `most` of the rows 0 to n - 1, from the first to the last."""
    return np.linspace(0, n - 1, min(n, most)).astype(np.int64)


def index_recall(index: faiss.Index, queries: np.ndarray, exact: np.ndarray, k: int) -> float:
    """The share of the k nearest that `index` finds; `exact` (q,) is each query's true k-th score.

    Found is what scores as well as the true k-th neighbour, so that equal vectors may stand for each other.
    """
    scores, rows = index.search(queries, k)
    slack = 1e-5 * np.maximum(np.abs(exact), 1)[:, None]
    if index.metric_type == faiss.METRIC_L2:
        found = scores <= exact[:, None] + slack
    else:
        found = scores >= exact[:, None] - slack
    return float((found & (rows >= 0)).mean())


def tune_nprobe(index: faiss.IndexIVF, queries: np.ndarray, exact: np.ndarray, k: int, floor: float) -> int:
    """Set and return the smallest number of visited lists whose recall is at least `floor`."""

    def reaches(nprobe: int) -> bool:
        index.nprobe = nprobe
        return index_recall(index, queries, exact, k) >= floor

    high = 1
    while high < index.nlist and not reaches(high):
        high = min(2 * high, index.nlist)
    low = high // 2 + 1  # half of it did not reach the floor
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle + 1, high)
    index.nprobe = high
    return high
