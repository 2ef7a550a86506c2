"""What a shortlist costs against scoring everything: the best items that it misses, and the time that it saves."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.index.candidates import Progress, unwatched
from pipeline.index.fragment_gallery import FragmentGallery
from pipeline.index.shortlist import Shortlist
from pipeline.index.tuning import NEIGHBOURS

if TYPE_CHECKING:
    from pipeline.metrics.fragment_scores import FragmentSets

SLACK = 1e-5
"""Relative difference of scores that are the same but for rounding."""


@dataclass(frozen=True)
class ShortlistCost:
    """What the `shortlist` (None: everything is scored) costs, over `queries` sets.

    `recall` is the share of each query's true best `NEIGHBOURS` that were found, `first` the share of queries whose
    true best was; `scored` the mean number of items scored exactly; `seconds` and `exact_seconds` of one query with the
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
        """As the card of an index tells it."""
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
    gallery: FragmentGallery,
    queries: "FragmentSets",
    shortlist: Shortlist | None,
    progress: Progress = unwatched,
) -> ShortlistCost:
    """Search for every item of `queries` with and without the shortlist.

    Found is what scores as well as the true last one, so that equal items may stand for each other.
    """
    vectors, top, n = gallery.vectors(), min(NEIGHBOURS, len(gallery)), len(queries)
    scored, shares, firsts, seconds, exact_seconds = [], [], [], 0.0, 0.0
    for row in progress(range(n), "shortlist" if shortlist else "all items"):
        query = queries.between(row, row + 1)
        start = time.perf_counter()
        found = gallery.search(query, top, shortlist)
        middle = time.perf_counter()
        seconds += middle - start
        scored.append(found.scored)
        if shortlist is None:
            continue
        scores = gallery.score_all(query, vectors)[gallery.there]
        best = -np.partition(-scores, top - 1)[:top]
        exact_seconds += time.perf_counter() - middle
        slack = SLACK * max(abs(float(best.max())), 1)
        shares.append(np.mean(found.scores >= best.min() - slack))
        firsts.append(found.scores[0] >= best.max() - slack)
    measured = (np.mean(shares), np.mean(firsts)) if shortlist else (1, 1)
    times = (seconds / n, (exact_seconds if shortlist else seconds) / n)
    return ShortlistCost(shortlist, n, *map(float, measured), float(np.mean(scored)), *times)
