"""Measuring the recall of an index under conditions, which allow only some of its items.

The conditions of users are not known when an index is built. Two kinds of conditions are therefore sampled:

- An uncorrelated condition allows random items, whatever the query is.
- A correlated condition allows items that are similar to each other, like the photos of an album or a category. These
  are the items that are nearest to a sampled item. Half of the queries that are searched under this condition are near
  the sampled item. The other queries are arbitrary, and few of the items that are near such a query are allowed. For a
  multi-vector model, a correlated condition allows the items with the best scores for another query instead.

The conditions are drawn with a fixed seed, so equal items and queries always get equal conditions.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import faiss
import numpy as np

from pipeline.compute.multivectors import MultiVectors
from pipeline.errors import UsageError
from pipeline.index.exact import Neighbours, Vectors, evenly_spaced, search_exact
from pipeline.index.faiss_types import NO_DIRECT_MAP
from pipeline.index.filtering import search_among
from pipeline.index.gallery import MultiVectorGallery
from pipeline.index.tuning import MAX_TIED_NEIGHBOURS, NEIGHBOURS, questions_of, recall_of, stages_of
from pipeline.storage.card import ConditionCard

SHARES = (0.5, 0.1, 0.01, 0.001)
"""Shares of the items that the sampled conditions allow, in descending order."""
RANDOM_QUERIES = 40
"""Largest number of queries of the uncorrelated conditions, and of all conditions of a multi-vector model."""
ANCHORS = 4
"""Largest number of items around which correlated conditions are sampled, for a model with one vector per item."""
ANCHOR_QUERIES = 10
"""Largest number of queries of one correlated condition. Half of them are near the item around which the condition is
sampled, and half are arbitrary."""
SCORE_TOLERANCE = 1e-5
"""Largest difference of two scores that counts as rounding, as a multiple of the absolute value of the best score, or
of 1 if this value is smaller."""


@dataclass(frozen=True)
class SampledCondition:
    """Nested conditions on n items, one for each of the SHARES, and the `queries` (q, c) that are searched under each
    of these conditions.

    The condition with a smaller share allows some of the items that the condition with a larger share allows. `levels`
    (n,) uint8 has, for each item, the number of conditions that allow it. The condition with the share SHARES[i] allows
    the items whose level is above i.
    """

    queries: np.ndarray
    levels: np.ndarray


def measure_conditions(index: faiss.Index, vectors: Vectors, queries: np.ndarray, metric: str) -> list[ConditionCard]:
    """Measure the recall of an index of `vectors` under sampled conditions, compared with exact search.

    `queries` (q, c) are the queries with which the index was tuned, and `metric` is inner_product or euclidean. The
    result has one card with the mean recalls for each of the SHARES, except shares that would allow no vector. The
    result is empty if this type of index cannot be searched with a condition.
    """
    conditions = _sample_conditions(vectors, queries, metric)
    exact = _search_exactly(conditions, vectors, metric)
    cards = []
    with suppress(UsageError):
        for number in range(int(conditions[0].levels.max())):
            recalls = []
            for condition, nearest in zip(conditions, exact, strict=True):
                questions = questions_of(condition.queries, nearest[number])
                found = search_among(index, condition.queries, questions.k, condition.levels > number)
                recalls.append(recall_of(found.rows, questions))
            cards.append(_card(number, recalls[0], float(np.mean(recalls[1:]))))
    if (inverted := stages_of(index).inverted) is not None:
        inverted.set_direct_map_type(NO_DIRECT_MAP)  # The file must not contain the search's direct map.
    return cards


def measure_gallery_conditions(gallery: MultiVectorGallery, queries: MultiVectors) -> list[ConditionCard]:
    """Measure the recall of the gallery of a multi-vector model under sampled conditions, compared with exact scores.

    The first RANDOM_QUERIES of the `queries` are used. The correlated condition of a query allows the items with the
    best scores for the previous query. For the first query, it allows the items with the best scores for the last
    query. The result has one card for each of the SHARES that allows an item.
    """
    vectors = gallery.vectors()
    rng = np.random.default_rng(0)
    asked = list(islice(queries.blocks(1), RANDOM_QUERIES))

    def score(query: MultiVectors) -> np.ndarray:
        return gallery.score_all(query, vectors)[gallery.there]

    def recall(query: MultiVectors, scores: np.ndarray, is_allowed: np.ndarray) -> float:
        allowed = np.zeros(len(gallery.outline.lengths), bool)
        allowed[gallery.there[is_allowed]] = True
        best = np.sort(scores[is_allowed])[-NEIGHBOURS:]
        found = gallery.search(query, len(best), allowed).scores[0]
        return float(np.mean(found >= best.min() - SCORE_TOLERANCE * max(abs(float(best.max())), 1)))

    recalls = []
    other = score(asked[-1])
    for query in asked:
        scores = score(query)
        levels = [_count_shares(values) for values in (rng.random(len(scores)), other)]
        numbers = range(int(levels[0].max()))
        recalls.append([[recall(query, scores, kind > number) for kind in levels] for number in numbers])
        other = scores
    return [_card(number, *means) for number, means in enumerate(np.mean(recalls, axis=0).tolist())]


def _card(number: int, uncorrelated: float, correlated: float) -> ConditionCard:
    """Return the card with the mean recalls under the conditions that allow the share SHARES[`number`] of the items."""
    return ConditionCard(share=SHARES[number], uncorrelated=uncorrelated, correlated=correlated)


def _sample_conditions(vectors: Vectors, queries: np.ndarray, metric: str) -> list[SampledCondition]:
    """Sample conditions on the `vectors`, and choose some of the `queries` for each. Return the uncorrelated condition,
    followed by the correlated conditions."""
    rng = np.random.default_rng(0)
    some = queries[evenly_spaced(len(queries), RANDOM_QUERIES)]
    conditions = [SampledCondition(some, _count_shares(rng.random(vectors.count)))]
    anchors = vectors.take(np.sort(rng.choice(vectors.count, min(ANCHORS, vectors.count), replace=False)))
    nearness = np.concatenate([_nearness(block, anchors, metric) for block in vectors.blocks()])
    order = np.argsort(-_nearness(queries, anchors, metric), axis=0, kind="stable")
    others = queries[evenly_spaced(len(queries), ANCHOR_QUERIES // 2)]
    for anchor in range(len(anchors)):
        asked = np.concatenate([queries[order[: ANCHOR_QUERIES // 2, anchor]], others])
        conditions.append(SampledCondition(asked, _count_shares(nearness[:, anchor])))
    return conditions


def _nearness(vectors: np.ndarray, anchors: np.ndarray, metric: str) -> np.ndarray:
    """Return how near the `vectors` (n, c) are to each of the `anchors` (a, c), as (n, a). A greater value means a
    nearer vector. Only values for the same anchor can be compared, because the values leave out the length of the
    anchor."""
    products = vectors @ anchors.T
    return 2 * products - np.square(vectors).sum(axis=1, keepdims=True) if metric == "euclidean" else products


def _count_shares(values: np.ndarray) -> np.ndarray:
    """Return how many of the SHARES allow each of n items, as (n,) uint8.

    Each share allows the items with the greatest `values` (n,), and more items if values are equal. A share that would
    allow no item is left out.
    """
    firsts = [len(values) - count for share in SHARES if (count := round(share * len(values)))]
    thresholds = np.partition(values, firsts)[firsts] if firsts else []
    return sum(((values >= threshold) for threshold in thresholds), np.zeros(len(values), np.uint8))


def _search_exactly(conditions: Sequence[SampledCondition], vectors: Vectors, metric: str) -> list[list[Neighbours]]:
    """Find the nearest allowed vectors of the queries of each of the `conditions` by exact search.

    The result has a list for each of the `conditions`. This list has an item for each of the SHARES: the neighbours of
    the queries of the condition among the vectors that the condition with this share allows. A query has at most
    MAX_TIED_NEIGHBOURS neighbours.
    """
    numbers = range(len(SHARES))
    exact = [
        [Neighbours.none(len(one.queries), min(MAX_TIED_NEIGHBOURS, (one.levels > number).sum())) for number in numbers]
        for one in conditions
    ]
    first = 0
    for block in vectors.blocks():
        for condition, nearest in zip(conditions, exact, strict=True):
            levels = condition.levels[first : first + len(block)]
            rows = np.arange(len(block))
            for number in range(int(levels.max(initial=0))):
                rows = rows[levels[rows] > number]
                best = search_exact(condition.queries, [block[rows]], nearest[number].rows.shape[1], metric)
                nearest[number] = nearest[number].merge(best.renumber(rows + first))
        first += len(block)
    return exact
