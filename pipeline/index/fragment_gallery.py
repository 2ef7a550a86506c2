"""Sets of fragments that are found by exact scores: of all of them, or of those on a shortlist.

An image is a set of region vectors v_i, a sentence a set of word vectors s_t. By rule.sum, their score is

    words        sum over words t of max over regions i of v_i . s_t         (seed 000, equation 8)
    mean-words   the same divided by the number of words
    positive     sum over t and i of max(0, v_i . s_t)                       (seed 000, equation 7)

plus a weight times the product of one more vector of each, where the model has these globals.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import faiss
import numpy as np

from pipeline.errors import IntegrityError
from pipeline.index.shortlist import ListMeans, Shortlist, look_up
from pipeline.precision import require_finite

if TYPE_CHECKING:
    from pipeline.metrics.fragment_scores import FragmentSets, ScoreRule

BLOCK = 1 << 12
"""Items whose estimated products are held at once."""


@dataclass(frozen=True)
class Found:
    """The best items, best first: `rows` (k,) and exact `scores` (k,). `scored` is how many were scored exactly."""

    rows: np.ndarray
    scores: np.ndarray
    scored: int


@dataclass(frozen=True)
class FoundRegions:
    """Regions, best first: `rows` (k,) among all vectors of the index, `items` (k,) the image of each, `scores`."""

    rows: np.ndarray
    items: np.ndarray
    scores: np.ndarray


class FragmentGallery:
    """Items to be found by fragments of the other modality.

    `index` holds the gallery's fragments in the order of `offsets` (n + 1,), by inner product: Flat, all items of which
    are scored, or IVF,Flat, searched by a shortlist. `gallery` is `images`, of whose regions each word takes the best,
    or `sentences`, each word of which takes the best of the query's regions. `globals` (n, g) go with the rule's
    `global_weight`. An item without fragments was removed, and is never found. Raises IntegrityError for another index.
    """

    def __init__(
        self, gallery: str, index: faiss.Index, offsets: np.ndarray, rule: "ScoreRule", globals_: np.ndarray | None
    ) -> None:
        if not isinstance(faiss.downcast_index(index), faiss.IndexFlat | faiss.IndexIVFFlat):
            raise IntegrityError(f"the index of {gallery} does not give its vectors back; run build-index again")
        self.means = None
        if isinstance(index, faiss.IndexIVF):
            index.make_direct_map()  # it does not know where its vectors are until it is told to
            self.means = ListMeans(index)
        self.of_images = gallery == "images"
        self.index, self.offsets, self.rule, self.globals = index, np.asarray(offsets, np.int64), rule, globals_
        self.owners = np.repeat(np.arange(len(offsets) - 1), np.diff(self.offsets))
        self.there = np.flatnonzero(np.diff(self.offsets))

    def __len__(self) -> int:
        """How many items there are to be found."""
        return len(self.there)

    def search(self, query: "FragmentSets", top: int, shortlist: Shortlist | None) -> Found:
        """The `top` items for the one set of `query`, in arrays: the best of the `shortlist`, or of all where that is
        None. Raises IntegrityError where the query is not finite.
        """
        require_finite("query", "fragments", query.vectors)
        kept = len(self) if shortlist is None else min(max(shortlist.shortlist, top), len(self))
        if kept == len(self):
            return self._rank(self.there, self.score_all(query, self.vectors())[self.there], top)
        estimates = self._estimate(query, shortlist.nearest)[self.there]
        chosen = self.there[np.sort(np.argpartition(-estimates, kept - 1)[:kept])]
        return self._rank(chosen, self.score(query, chosen), top)

    def vectors(self) -> np.ndarray:
        """(total, c) all fragments; where the index is Flat they are not copied."""
        if self.means is not None:
            return self.index.reconstruct_n(0, self.index.ntotal)
        flat = faiss.downcast_index(self.index)
        return faiss.rev_swig_ptr(flat.get_xb(), flat.ntotal * flat.d).reshape(flat.ntotal, flat.d)

    def score(self, query: "FragmentSets", items: np.ndarray) -> np.ndarray:
        """(k,) exact scores of the items `items` (k,) for the one set of `query`, in arrays."""
        starts, lengths = self.offsets[items], self.offsets[items + 1] - self.offsets[items]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        rows = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        fragments = self.index.reconstruct_batch(rows) if len(rows) else np.empty((0, self.index.d), np.float32)
        return self._add_up(fragments @ query.vectors.T, offsets) + self._global_scores(query, items)

    def score_all(self, query: "FragmentSets", vectors: np.ndarray) -> np.ndarray:
        """(n,) exact scores of all items, whose `vectors` (total, c) are at hand; of removed ones, nothing."""
        return self._add_up(vectors @ query.vectors.T, self.offsets) + self._global_scores(query, slice(None))

    def regions(self, words: np.ndarray, top: int) -> FoundRegions:
        """The `top` regions for a snippet's `words` (q, c), at most one an image: those with the greatest sum of
        products with all words, which is one product with the words' sum."""
        query = np.ascontiguousarray(words.sum(axis=0, keepdims=True, dtype=np.float32))
        top, among = min(top, len(self)), 4 * top
        while True:
            scores, rows = self.index.search(query, min(among, self.index.ntotal))
            scores, rows = scores[0][rows[0] >= 0], rows[0][rows[0] >= 0]
            first = np.sort(np.unique(self.owners[rows], return_index=True)[1])[:top]
            if len(first) == top or among >= self.index.ntotal:
                return FoundRegions(rows[first], self.owners[rows[first]], scores[first])
            among *= 4

    def _estimate(self, query: "FragmentSets", nearest: int) -> np.ndarray:
        """(n,) about the scores; see pipeline.index.shortlist."""
        products, hits = self.means.means @ query.vectors.T, None  # (lists, q)
        if self.rule.sum == "positive":
            products = np.maximum(products, 0).sum(axis=1, keepdims=True)
        elif self.of_images:
            hits = look_up(self.index, query.vectors, nearest)
        else:
            products = products.max(axis=1, keepdims=True)
        scores = np.empty(len(self.offsets) - 1, np.float32)
        for start in range(0, len(scores), BLOCK):
            offsets = self.offsets[start : start + BLOCK + 1]
            own = products[self.means.lists[offsets[0] : offsets[-1]]]
            if hits:
                hits.write(own, int(offsets[0]))
            scores[start : start + BLOCK] = self._add_up(own, offsets - offsets[0])
        return scores + self._global_scores(query, slice(None))

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

    def _global_scores(self, query: "FragmentSets", items: np.ndarray | slice) -> np.ndarray | float:
        if self.globals is None or not self.rule.global_weight:
            return 0.0
        return self.rule.global_weight * (self.globals[items] @ query.globals[0])

    @staticmethod
    def _rank(items: np.ndarray, scores: np.ndarray, top: int) -> Found:
        order = np.argsort(-scores, kind="stable")[:top]
        return Found(items[order], scores[order], len(items))
