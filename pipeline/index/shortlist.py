"""Searching sets of fragments: a shortlist by FAISS over all their vectors, then the exact score of what is on it.

An image is a set of region vectors v_i, a sentence a set of word vectors s_t. By rule.sum, their score is

    words        sum over words t of max over regions i of v_i . s_t         (seed 000, equation 8)
    mean-words   the same divided by the number of words
    positive     sum over t and i of max(0, v_i . s_t)                       (seed 000, equation 7)

plus a weight times the product of one more vector of each, where the model has these globals. A word's k nearest
regions tell which images may score high. An image that is not among them can have no region whose product with that
word exceeds the k-th, which bounds its score from above; the images (or sentences) with the highest bounds are scored
exactly.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import faiss
import numpy as np

from pipeline.index.candidates import Progress, unwatched
from pipeline.precision import require_finite

if TYPE_CHECKING:
    from pipeline.neural.fragment_scores import FragmentSets, ScoreRule

SLACK = 1e-5
"""Relative difference of scores that are the same but for rounding."""


@dataclass(frozen=True)
class Found:
    """The best items, best first: `rows` (k,) and exact `scores` (k,). `scored` is how many were scored exactly, and
    `proven` whether no other item can score higher than the last one found."""

    rows: np.ndarray
    scores: np.ndarray
    scored: int
    proven: bool


@dataclass(frozen=True)
class FoundRegions:
    """Regions, best first: `rows` (k,) among all vectors of the index, `items` (k,) the image of each, `scores`."""

    rows: np.ndarray
    items: np.ndarray
    scores: np.ndarray


class FragmentGallery:
    """Items to be found by fragments of the other modality.

    `index` holds the gallery's fragments in the order of `offsets` (n + 1,), by inner product, and gives them back
    (Flat and IVF,Flat do). `gallery` is `images`, of whose regions each word takes the best, or `sentences`, each
    word of which takes the best of the query's regions. `globals` (n, g) go with the rule's `global_weight`. A set
    without fragments scores zero, but for the globals.
    """

    def __init__(
        self, gallery: str, index: faiss.Index, offsets: np.ndarray, rule: "ScoreRule", globals_: np.ndarray | None
    ) -> None:
        if hasattr(index, "make_direct_map"):
            index.make_direct_map()  # an inverted file does not know where its vectors are until it is told to
        self.of_images = gallery == "images"
        self.index, self.offsets, self.rule, self.globals = index, np.asarray(offsets, np.int64), rule, globals_
        self.owners = np.repeat(np.arange(len(offsets) - 1), np.diff(self.offsets))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def search(self, query: "FragmentSets", top: int, nearest: int, shortlist: int) -> Found:
        """The `top` items for the one set of `query`, in arrays.

        `nearest` fragments of the gallery are looked up for each of the query's, and the `shortlist` items with the
        highest bounds are scored. Raises IntegrityError where the query is not finite.
        """
        require_finite("query", "fragments", query.vectors)
        bounds = self._bounds(query, nearest)
        kept = min(max(shortlist, top), len(self))
        chosen = np.sort(np.argpartition(-bounds, kept - 1)[:kept])
        scores = self.score(query, chosen)
        order = np.argsort(-scores, kind="stable")[:top]
        rest = np.delete(bounds, chosen).max(initial=-np.inf)
        proven = kept == len(self) or bool(scores[order[-1]] >= rest)
        return Found(chosen[order], scores[order], kept, proven)

    def search_all(self, query: "FragmentSets", top: int) -> Found:
        """The `top` items for the one set of `query`, all items scored; only where the index is Flat."""
        require_finite("query", "fragments", query.vectors)
        flat = faiss.downcast_index(self.index)
        vectors = faiss.rev_swig_ptr(flat.get_xb(), flat.ntotal * flat.d).reshape(flat.ntotal, flat.d)  # not a copy
        scores = self.score_all(query, vectors)
        order = np.argsort(-scores, kind="stable")[:top]
        return Found(order, scores[order], len(self), True)

    def score(self, query: "FragmentSets", items: np.ndarray) -> np.ndarray:
        """(k,) exact scores of the items `items` (k,) for the one set of `query`, in arrays."""
        starts, lengths = self.offsets[items], self.offsets[items + 1] - self.offsets[items]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        rows = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        fragments = self.index.reconstruct_batch(rows) if len(rows) else np.empty((0, self.index.d), np.float32)
        return self._add_up(fragments @ query.vectors.T, offsets) + self._global_scores(query, items)

    def score_all(self, query: "FragmentSets", vectors: np.ndarray) -> np.ndarray:
        """(n,) exact scores of all items, whose `vectors` (total, c) are at hand."""
        return self._add_up(vectors @ query.vectors.T, self.offsets) + self._global_scores(query, slice(None))

    def regions(self, words: np.ndarray, top: int) -> FoundRegions:
        """The `top` regions for a snippet's `words` (q, c), at most one an image: those with the greatest sum of
        products with all words, which is one product with the words' sum."""
        query = np.ascontiguousarray(words.sum(axis=0, keepdims=True, dtype=np.float32))
        top, among = min(top, len(np.unique(self.owners))), 4 * top
        while True:
            scores, rows = self.index.search(query, min(among, self.index.ntotal))
            scores, rows = scores[0][rows[0] >= 0], rows[0][rows[0] >= 0]
            first = np.sort(np.unique(self.owners[rows], return_index=True)[1])[:top]
            if len(first) == top or among >= self.index.ntotal:
                return FoundRegions(rows[first], self.owners[rows[first]], scores[first])
            among *= 4

    def _add_up(self, products: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """(k,) scores of k items, without globals, from the products (total, q) of their fragments with the query's."""
        lengths = np.diff(offsets)
        full, scores = lengths > 0, np.zeros(len(lengths), np.float32)
        if not products.size:
            return scores
        starts, words = offsets[:-1][full], products.shape[1]
        if self.rule.sum == "positive":
            scores[full] = np.add.reduceat(np.maximum(products, 0).sum(axis=1), starts)
        elif self.of_images:
            scores[full] = np.maximum.reduceat(products, starts, axis=0).sum(axis=1)
        else:
            scores[full], words = np.add.reduceat(products.max(axis=1), starts), lengths[full]
        if self.rule.sum == "mean-words":
            scores[full] /= words
        return scores

    def _bounds(self, query: "FragmentSets", nearest: int) -> np.ndarray:
        """(n,) no item scores higher, as long as the index finds the true nearest fragments."""
        k = min(nearest, self.index.ntotal)
        products, rows = self.index.search(np.ascontiguousarray(query.vectors, np.float32), k)
        there = rows >= 0
        last = np.where(there, products, np.inf).min(axis=1)  # of each of the query's fragments
        asked, found, products = np.nonzero(there)[0], rows[there], products[there]
        if self.rule.sum == "positive":
            rest = np.maximum(last, 0)
            gains = np.bincount(self.owners[found], np.maximum(products, 0) - rest[asked], len(self))
            bounds = np.diff(self.offsets) * rest.sum() + gains
        elif self.of_images:
            best = np.repeat(last[:, None], len(self), axis=1)
            np.maximum.at(best, (asked, self.owners[found]), products)
            bounds = best.mean(axis=0) if self.rule.sum == "mean-words" else best.sum(axis=0)
            bounds[np.diff(self.offsets) == 0] = 0
        else:
            best = np.full((self.index.ntotal, 1), last.max(), np.float32)
            np.maximum.at(best[:, 0], found, products)
            bounds = self._add_up(best, self.offsets)
        return bounds + self._global_scores(query, slice(None))

    def _global_scores(self, query: "FragmentSets", items: np.ndarray | slice) -> np.ndarray | float:
        if self.globals is None or not self.rule.global_weight:
            return 0.0
        return self.rule.global_weight * (self.globals[items] @ query.globals[0])


@dataclass(frozen=True)
class ShortlistCost:
    """What the shortlist costs against scoring everything, over some queries.

    `recall` is the share of each query's true best `top` that were found, `first` the share of queries whose true best
    was; `scored` the mean number of items scored exactly, `proven` the share of answers known to be exact; `seconds`
    and `exact_seconds` of one query with the shortlist and without.
    """

    top: int
    recall: float
    first: float
    scored: float
    proven: float
    seconds: float
    exact_seconds: float


def measure_shortlist(
    gallery: FragmentGallery,
    queries: "FragmentSets",
    top: int,
    nearest: int,
    shortlist: int,
    progress: Progress = unwatched,
) -> ShortlistCost:
    """Search for every item of `queries` with and without the shortlist.

    Found is what scores as well as the true `top`-th, so that equal items may stand for each other.
    """
    vectors, top = gallery.index.reconstruct_n(0, gallery.index.ntotal), min(top, len(gallery))
    found, shares, firsts, seconds, exact_seconds = [], [], [], 0.0, 0.0
    for row in progress(range(len(queries)), "shortlist"):
        query = queries.between(row, row + 1)
        start = time.perf_counter()
        found.append(gallery.search(query, top, nearest, shortlist))
        middle = time.perf_counter()
        scores = gallery.score_all(query, vectors)
        best = -np.partition(-scores, top - 1)[:top]
        exact_seconds += time.perf_counter() - middle
        seconds += middle - start
        slack = SLACK * max(abs(float(best.max())), 1)
        shares.append(np.mean(found[-1].scores >= best.min() - slack))
        firsts.append(found[-1].scores[0] >= best.max() - slack)
    n = len(queries)
    return ShortlistCost(
        top,
        float(np.mean(shares)),
        float(np.mean(firsts)),
        float(np.mean([one.scored for one in found])),
        float(np.mean([one.proven for one in found])),
        seconds / n,
        exact_seconds / n,
    )


def measure_everything(
    gallery: FragmentGallery, queries: "FragmentSets", top: int, progress: Progress = unwatched
) -> ShortlistCost:
    """The cost of `search_all`, which misses nothing."""
    start = time.perf_counter()
    for row in progress(range(len(queries)), "all items"):
        gallery.search_all(queries.between(row, row + 1), top)
    seconds = (time.perf_counter() - start) / len(queries)
    return ShortlistCost(min(top, len(gallery)), 1.0, 1.0, len(gallery), 1.0, seconds, seconds)
