"""What a shortlist costs against scoring everything: the best items that it misses, and the time that it saves."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.index.candidates import Progress, unwatched
from pipeline.index.gallery import MultiVectorGallery
from pipeline.index.shortlist import Shortlist
from pipeline.index.tuning import NEIGHBOURS
from pipeline.multivectors import MultiVectors

SLACK = 1e-5
"""Relative difference of scores that are the same but for rounding."""


@dataclass(frozen=True)
class ShortlistCost:
    """What the `shortlist` (None: everything is scored) costs, over so many `queries`.

    `recall` is the share of each query's true best `NEIGHBOURS` that were found, `first` the share of queries whose
    true best was; `scored` the number of items scored exactly; `seconds` and `exact_seconds` of one query with the
    shortlist and without.
    """

    shortlist: Shortlist | None
    queries: int
    recall: float
    first: float
    scored: float
    seconds: float
    exact_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """As the card of an index has it."""
        return {
            "nearest": self.shortlist and self.shortlist.nearest,
            "shortlist": self.shortlist and self.shortlist.shortlist,
            f"recall@{NEIGHBOURS}": self.recall,
            "recall@1": self.first,
            "scored": self.scored,
            "queries": self.queries,
            "queries_per_second": 1 / self.seconds,
            "exact_queries_per_second": 1 / self.exact_seconds,
        }


def measure_shortlist(
    gallery: MultiVectorGallery, queries: MultiVectors, progress: Progress = unwatched
) -> ShortlistCost:
    """Search for every one of `queries` with and without the gallery's shortlist.

    Found is what scores as well as the true last one, so that equal items may stand for each other.
    """
    vectors, top, shortlist = gallery.vectors(), min(NEIGHBOURS, len(gallery)), gallery.shortlist
    shares, firsts, seconds, exact_seconds = [], [], [], []
    for query in progress(queries.blocks(1), "shortlist" if shortlist else "all items"):
        start = time.perf_counter()
        found = gallery.search(query, top).scores[0]
        middle = time.perf_counter()
        seconds.append(middle - start)
        if shortlist is None:
            continue
        scores = gallery.score_all(query, vectors)[gallery.there]
        best = -np.partition(-scores, top - 1)[:top]
        exact_seconds.append(time.perf_counter() - middle)
        slack = SLACK * max(abs(float(best.max())), 1)
        shares.append(np.mean(found >= best.min() - slack))
        firsts.append(found[0] >= best.max() - slack)
    measured = (np.mean(shares), np.mean(firsts)) if shortlist else (1, 1)
    times = np.mean(seconds), np.mean(exact_seconds if shortlist else seconds)
    return ShortlistCost(shortlist, len(queries), *map(float, (*measured, gallery.scored(top), *times)))
