"""Exact search over shards: the nearest in each shard, merged. The truth that an index is measured against."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from pipeline.device import find_gpu
from pipeline.index.exact import Neighbours, search_exact
from pipeline.mapreduce import LOCAL, map_reduce


class Part(Protocol):
    """Some vectors, the first of which is row `first` of all."""

    first: int

    def blocks(self) -> Iterable[np.ndarray]:
        """All of them in order, as (n_i, c) float32."""


class ShardVectors(NamedTuple):
    """The part that `read` gives, (n, c) float32."""

    first: int
    read: Callable[[], np.ndarray]

    def blocks(self) -> Iterable[np.ndarray]:
        return [self.read()]


def search_parts(
    queries: np.ndarray, parts: Sequence[Part], k: int, metric: str, scheduler: str = LOCAL, device: str = "cpu"
) -> Neighbours:
    """The `k` nearest of each of the `queries` (q, c) among the rows of all `parts`, where `scheduler` says.

    A worker holds the queries, the vectors of one part, and two lists of neighbours; its memory does not grow with
    the number of parts. It computes on what `device` (auto, cpu, cuda, cuda:N) is there. Raises as `search_exact`,
    `find_gpu` and `map_reduce` do.
    """
    return map_reduce(_search_part, parts, _merge, scheduler, (queries, k, metric, device))


def _search_part(part: Part, queries: np.ndarray, k: int, metric: str, device: str) -> Neighbours:
    found = search_exact(queries, part.blocks(), k, metric, find_gpu(device))
    return Neighbours(np.where(found.rows >= 0, found.rows + part.first, -1), found.scores)


def _merge(one: Neighbours, other: Neighbours) -> Neighbours:
    """The best of both; of equal scores the lower row, and what is not there last."""
    k = one.rows.shape[1]
    rows, scores = np.hstack([one.rows, other.rows]), np.hstack([one.scores, other.scores])
    best = np.lexsort((rows, -scores))[:, :k]
    return Neighbours(np.take_along_axis(rows, best, axis=1), np.take_along_axis(scores, best, axis=1))
