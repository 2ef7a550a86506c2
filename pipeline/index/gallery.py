"""Galleries: the images or captions that a search ranks for a query.

If each item has one vector, FAISS finds the best items. With a multi-vector model, an image is a set of region vectors
v_i, a caption is a set of word vectors s_t, and a shortlist of items is ranked by exact scores. The score depends on
`rule.sum`:

    words        sum over words t of max over regions i of v_i . s_t         (Karpathy and Fei-Fei 2015, eq. 8)
    positive     sum over t and i of max(0, v_i . s_t)                       (Karpathy and Fei-Fei 2015, eq. 7)

With `mean-words` and `mean-positive`, the sum is divided by the number of words.

If the model has global vectors, the inner product of the global vectors of image and caption, times a weight, is added.

The shortlist is found with estimated scores. For the estimate, each vector of the gallery is replaced by the mean of
its inverted list. There are hundreds or thousands of means. Their products with the query are computed once, and are
summed for each item like the exact products. This is the centroid interaction of PLAID (Santhanam et al., 2022), with
means in place of centroids, because FAISS's centroids for inner products have unit length, and the lengths of the
vectors matter for the score. The errors of the means largely cancel in the sum over the words of a caption. The best
region for a word, however, differs much from the mean of its list. If images are searched by the rules `words` and
`mean-words`, the regions that are nearest to each word therefore keep their exact products.
"""

import hashlib
import itertools
import math
import mmap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import faiss
import numpy as np

from pipeline.compute import runtime
from pipeline.compute.multivectors import Items, MultiVectors, ScoreRule, one_vector_each
from pipeline.compute.precision import require_finite
from pipeline.compute.ragged import offsets_of
from pipeline.compute.worker_process import processor_limit
from pipeline.errors import MALFORMED, InputError, IntegrityError, UsageError, brief
from pipeline.foreign.files import is_remembered, open_plain, remember, try_first
from pipeline.index.exact import Neighbours
from pipeline.index.faiss_types import ListMeans, flat_vectors, ids_of_lists
from pipeline.index.filtering import reconstruct, search_among
from pipeline.index.format import ExpectedIndex, from_bytes, metric_of, parts_of, view_bytes
from pipeline.index.tuning import NEIGHBOURS
from pipeline.storage.files import REBUILD

if TYPE_CHECKING:  # The process that tries an index must start fast, so it does not import these modules.
    from pipeline.storage.card import IndexCard, Modality, ShortlistCard
    from pipeline.storage.index_shard import IndexShard
    from pipeline.storage.stored_index import StoredIndex

BLOCK_ITEMS = 1 << 12
"""Number of items whose estimated products are in memory at the same time."""
TRIAL = "index-2"
"""Version of the trial by `_try_index`. With a new version, every FAISS index is tried again before it is searched."""
TRIAL_SECONDS = 60
"""Number of CPU seconds that the trial of an index may take, in addition to one second for every TRIAL_BYTES of its
file. An index whose trial takes longer is refused."""
TRIAL_BYTES = 1 << 26


class RegionHits(NamedTuple):
    """The k regions that a search found, the best first: the `rows` (k,) of their images in the table, their `scores`
    (k,) and their `boxes` (k, 4), which are x1, y1, x2, y2 in pixels of the original image."""

    rows: np.ndarray
    scores: np.ndarray
    boxes: np.ndarray


@dataclass(frozen=True)
class Shortlist:
    """The size of the shortlist of a search with a multi-vector model.

    If images are searched and the best region for each word counts, the exact products of the `nearest` regions for
    each word are used in the estimated scores. The `shortlist` items with the best estimated scores are then scored
    exactly.
    """

    nearest: int
    shortlist: int

    @classmethod
    def from_card(cls, card: "ShortlistCard") -> "Shortlist | None":
        """Return the shortlist that the card of an index sets, or None if all items are scored exactly."""
        return None if card.shortlist is None or card.nearest is None else cls(card.nearest, card.shortlist)


class Gallery:
    """The images or captions of an index, with one vector each. The ids in the FAISS `index` are the rows of the items
    in their table.

    Messages call the index `name`.
    """

    multi_vector = False

    def __init__(self, index: faiss.Index, name: str = "the index") -> None:
        self.index = index
        self.name = name
        self.dim = index.d

    def __len__(self) -> int:
        """Return the number of items that the index contains."""
        return self.index.ntotal

    def search(self, queries: Items, top: int, allowed: np.ndarray | None = None) -> Neighbours:
        """Find the `top` best items for each query. The rows of the result are the rows of the items in their table.

        `allowed` (n,) bool says which of the n rows of the table may be found. It must be false for removed rows. The
        result has a column for each rank from 0 to `top` - 1, or fewer if fewer items may be found. If FAISS finds
        fewer items for a query, its remaining rows are -1 with the score -inf. Raises IntegrityError that names the
        index if FAISS cannot search it, and UsageError if `allowed` is given and this type of index cannot be searched
        with a condition.
        """
        vectors = np.ascontiguousarray(one_vector_each(queries), np.float32)
        try:
            if allowed is not None:
                return search_among(self.index, vectors, top, allowed)
            values, rows = self.index.search(vectors, min(top, len(self)))
        except (RuntimeError, MemoryError, IndexError) as error:
            raise IntegrityError(f"{self.name} cannot be searched ({brief(error)}). {REBUILD}") from error
        return Neighbours.of_faiss(values, rows, metric_of(self.index))

    def reconstruct(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors (k, c) of the items in the table rows `rows` (k,), which are approximate if the index
        compresses its vectors. Raises RuntimeError if the index cannot return its vectors."""
        return reconstruct(self.index, rows)


class MultiVectorGallery(Gallery):
    """A gallery of items with several vectors each.

    `outline` has the items as MultiVectors without vectors. The vectors are in `index`, in the order of the items, with
    the inner product as metric. A Flat index has no `shortlist`, and all items are scored exactly. An IVF,Flat index is
    searched with the `shortlist`, or all items are scored exactly if `shortlist` is None. `modality` says whether the
    items are `images` or `sentences`. Images are searched with the words of a caption, and sentences with the regions
    of an image. `rule` is the scoring rule (see the module). The attribute `there` has the rows of the items that can
    be found, in ascending order, and `owners` has, for each vector, the row of its item.

    Items without vectors were removed and are never found. The constructor gives an IVF,Flat index a direct map, in
    place. It raises IntegrityError if the index has another type, or if a Flat index has a shortlist.
    """

    multi_vector = True

    def __init__(
        self,
        modality: "Modality",
        index: faiss.Index,
        outline: MultiVectors,
        rule: ScoreRule,
        shortlist: Shortlist | None,
    ) -> None:
        typed = faiss.downcast_index(index)  # `typed` is only valid as long as `index` exists.
        if not isinstance(typed, faiss.IndexFlat | faiss.IndexIVFFlat):
            raise IntegrityError(
                f"The index of {modality} is a {type(typed).__name__}, but a model with several vectors per item needs"
                f" an index that stores the vectors exactly (IndexFlat or IndexIVFFlat). {REBUILD}"
            )
        super().__init__(index)
        self.means: ListMeans | None = None
        if isinstance(typed, faiss.IndexIVFFlat):
            typed.make_direct_map()  # FAISS needs this map to reconstruct vectors.
            self.means = ListMeans(typed)
        elif shortlist is not None:
            raise IntegrityError(
                f"The index of {modality} has no inverted lists, but its card sets a shortlist, which needs these"
                f" lists. {REBUILD}"
            )
        self.of_images = modality == "images"
        self.outline = outline
        self.rule = rule
        self.shortlist = shortlist
        self.owners = outline.owners
        self.there = np.flatnonzero(outline.lengths)

    def __len__(self) -> int:
        return len(self.there)

    def search(self, queries: Items, top: int, allowed: np.ndarray | None = None) -> Neighbours:
        """Find the `top` best items for each query, or all items that may be found if there are fewer.

        `allowed` (n,) bool says which of the n rows may be found. Raises IntegrityError if a query has NaN or infinity,
        or if the global vectors of the queries do not fit the index.
        """
        assert isinstance(queries, MultiVectors)
        require_finite("query", "vectors", queries.array)
        items = self.there if allowed is None else self.there[allowed[self.there]]
        answers = [self._best(query, top, items) for query in queries.blocks(1)]
        return Neighbours(*map(np.array, zip(*answers, strict=True)))

    def scored(self, top: int) -> int:
        """Return the number of items that a search for `top` items without a condition scores exactly for each
        query."""
        return len(self) if self.shortlist is None else min(max(self.shortlist.shortlist, top), len(self))

    def item(self, row: int) -> MultiVectors:
        """Return the item in the row `row` of the table as MultiVectors of one item, with its vectors."""
        vectors = self._reconstruct(self.outline.positions(np.array([row])))
        return replace(self.outline.between(row, row + 1), vectors=vectors)

    def vectors(self) -> np.ndarray:
        """Return all vectors (total, c). The vectors of a Flat index are not copied."""
        return flat_vectors(self.index) if self.means is None else self.index.reconstruct_n(0, self.index.ntotal)

    def score(self, query: MultiVectors, items: np.ndarray) -> np.ndarray:
        """Return the exact scores (k,) of the items in the rows `items` (k,) for a single `query`."""
        vectors = self._reconstruct(self.outline.positions(items))
        offsets = offsets_of(self.outline.lengths[items])
        return self._sum_products(vectors @ query.array.T, offsets, len(query.array)) + self._global_scores(
            query, items
        )

    def score_all(self, query: MultiVectors, vectors: np.ndarray) -> np.ndarray:
        """Return the exact scores (n,) of the items in all n rows of the table for a single `query`.

        `vectors` (total, c) are all vectors of the gallery, as `vectors()` returns them. The scores of removed items
        have no meaning.
        """
        scores = self._sum_products(vectors @ query.array.T, self.outline.offsets, len(query.array))
        return scores + self._global_scores(query, slice(None))

    def regions(self, words: np.ndarray, top: int, allowed: np.ndarray | None = None) -> RegionHits:
        """Find the `top` best regions for the `words` (q, c) of a snippet, at most one region per image.

        The score of a region is the sum of its products with all words, which equals its product with the sum of the
        words. `allowed` (n,) bool says which of the n images may be found.
        """
        query = np.ascontiguousarray(words.sum(axis=0, keepdims=True, dtype=np.float32))
        allowed_regions = None if allowed is None else allowed[self.owners]
        top, among = min(top, len(self) if allowed is None else int(allowed[self.there].sum())), 4 * top
        while True:
            rows, scores = Gallery(self.index).search(query, among, allowed_regions).of_query(0)
            first = np.sort(np.unique(self.owners[rows], return_index=True)[1])[:top]
            if len(first) == top or among >= self.index.ntotal:
                return RegionHits(self.owners[rows[first]], scores[first], self.outline.box_array[rows[first]])
            among *= 4

    def _estimate(self, query: MultiVectors, nearest: int) -> np.ndarray:
        """Estimate the scores (n,) of all n items of the table for a single query. Each vector of an item is replaced
        by the mean of the inverted list that contains the vector.

        If images are searched and the best region for each word counts, the `nearest` regions for each word keep their
        exact products.
        """
        # Only a search with a shortlist needs estimates, and the constructor allows one only for an index with lists.
        assert self.means is not None
        if not len(query.array):
            return np.zeros(len(self.outline), np.float32) + self._global_scores(query, slice(None))
        products = self.means.means @ query.array.T  # (lists, q)
        hits = None
        if self.rule.sum.endswith("positive"):
            products = np.maximum(products, 0).sum(axis=1, keepdims=True)
        elif self.of_images:
            hits = look_up(self.index, query.array, nearest)
        else:
            products = products.max(axis=1, keepdims=True)
        scores = np.empty(len(self.outline.offsets) - 1, np.float32)
        for start in range(0, len(scores), BLOCK_ITEMS):
            offsets = self.outline.offsets[start : start + BLOCK_ITEMS + 1]
            estimates = products[self.means.lists[offsets[0] : offsets[-1]]]
            if hits:
                hits.write(estimates, int(offsets[0]))
            scores[start : start + BLOCK_ITEMS] = self._sum_products(estimates, offsets - offsets[0], len(query.array))
        return scores + self._global_scores(query, slice(None))

    def _sum_products(self, products: np.ndarray, offsets: np.ndarray, count: int) -> np.ndarray:
        """Compute the scores (k,) of k items by the rule, without global vectors.

        `products` (total, q) are the products of the items' vectors with the q vectors of the query. They may also be
        (total, 1), if the products of each vector with all vectors of the query were already combined by the rule. Item
        i has the rows [offsets[i], offsets[i + 1]), and the query has `count` vectors. The score of an item without
        vectors is 0.
        """
        lengths = np.diff(offsets)
        full = lengths > 0
        scores = np.zeros(len(lengths), np.float32)
        if not products.size:
            return scores
        starts = offsets[:-1][full]
        words = count if self.of_images else lengths[full]
        if self.rule.sum.endswith("positive"):
            scores[full] = np.add.reduceat(np.maximum(products, 0).sum(axis=1), starts)
        elif self.of_images:
            scores[full] = np.maximum.reduceat(products, starts, axis=0).sum(axis=1)
        else:
            scores[full] = np.add.reduceat(products.max(axis=1), starts)
        if self.rule.sum.startswith("mean"):
            scores[full] /= words
        return scores

    def _global_scores(self, query: MultiVectors, items: np.ndarray | slice) -> np.ndarray | float:
        """Return the inner products (k,) of the query's global vector with the global vectors of k `items`, times the
        weight in the rule.

        `items` are row numbers or a slice. The result is 0 if the index has no global vectors or the weight is 0.
        Raises IntegrityError if the query has no global vector, or one of other dimensions.
        """
        stored = self.outline.globals
        if stored is None or not self.rule.global_weight:
            return 0.0
        assert isinstance(stored, np.ndarray)
        own = query.globals
        if not isinstance(own, np.ndarray) or own.shape[1] != stored.shape[1]:
            raise IntegrityError(
                f"{self.name} stores one vector of {stored.shape[1]} dimensions for each whole photo or caption, but"
                f" its model computes {'none' if own is None else f'one of {own.shape[1]} dimensions'} for a query."
                f" The index and the model do not belong together. {REBUILD}"
            )
        return self.rule.global_weight * (stored[items] @ own[0])

    def _best(self, query: MultiVectors, top: int, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows and the exact scores of the `top` best items for a single query, among the rows `items` (k,).

        If there are fewer items than `top`, all of them are returned. With a shortlist, an item whose estimated score
        is too low may be missed.
        """
        kept = min(self.scored(top), len(items))
        if kept == len(self):
            return self._rank(items, self.score_all(query, self.vectors())[items], top)
        if kept < len(items):
            assert self.shortlist is not None  # Without a shortlist, all items are scored.
            estimates = self._estimate(query, self.shortlist.nearest)[items]
            items = items[np.sort(np.argpartition(-estimates, kept - 1)[:kept])]
        return self._rank(items, self.score(query, items), top)

    def _reconstruct(self, ids: np.ndarray) -> np.ndarray:
        return self.index.reconstruct_batch(ids) if len(ids) else np.empty((0, self.index.d), np.float32)

    @staticmethod
    def _rank(items: np.ndarray, scores: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(-scores, kind="stable")[:top]
        return items[order], scores[order]


class Hits(NamedTuple):
    """k inner products of vectors of a gallery with vectors of a query.

    `products[i]` is the product of the gallery's vector `rows[i]` with the query's vector `asked[i]`. `rows` and
    `asked` are numbers from 0, and the `rows` are in ascending order.
    """

    rows: np.ndarray
    asked: np.ndarray
    products: np.ndarray

    def write(self, products: np.ndarray, first: int) -> None:
        """Replace estimated products in the argument `products` (n, q) by the exact products, in place.

        Row i of the argument belongs to the gallery's vector `first` + i, and column j to the query's vector j.
        Products of other vectors of the gallery are ignored.
        """
        part = slice(*np.searchsorted(self.rows, [first, first + len(products)]))
        products[self.rows[part] - first, self.asked[part]] = self.products[part]


def look_up(index: faiss.Index, query: np.ndarray, nearest: int) -> Hits:
    """Find the `nearest` vectors of `index` for each of the vectors `query` (q, c), and return their inner products.
    The metric of `index` must be the inner product. A vector that FAISS does not find is missing in the result."""
    products, rows = index.search(np.ascontiguousarray(query, np.float32), min(nearest, index.ntotal))
    asked, rank = np.nonzero(rows >= 0)
    order = np.argsort(rows[asked, rank], kind="stable")
    asked = asked[order]
    rank = rank[order]
    return Hits(rows[asked, rank], asked, products[asked, rank])


class MergedGallery(Gallery):
    """The galleries of several index shards as one gallery.

    The gallery i has the rows [firsts[i], lasts[i]) of the common table. If scores are equal, the items of an earlier
    shard come first. FAISS searches a single query on one thread. Several threads therefore search the shards for a
    single query, unless the model has several vectors for each item.
    """

    def __init__(self, galleries: Sequence[Gallery], firsts: Sequence[int], lasts: Sequence[int]) -> None:
        self.galleries = galleries
        self.firsts = firsts
        self.lasts = lasts
        self.dim = galleries[0].dim
        self.multi_vector = galleries[0].multi_vector
        workers = 1 if self.multi_vector else min(runtime.threads(), len(galleries))
        ends = np.cumsum([len(gallery) for gallery in galleries])
        cuts = np.searchsorted(ends, ends[-1] * np.arange(workers + 1) / workers).tolist()
        self._groups = [slice(first, last) for first, last in itertools.pairwise([*cuts[:-1], len(galleries)])]
        self._pool = ThreadPoolExecutor(workers, "index-shards") if workers > 1 else None

    def __len__(self) -> int:
        return sum(map(len, self.galleries))

    def search(self, queries: Items, top: int, allowed: np.ndarray | None = None) -> Neighbours:
        """Search all shards, and return the `top` best of their results for each query, with rows of the common table.

        `allowed` (n,) bool says which of the n rows of the common table may be found. A query with fewer results has
        rows -1 with the score -inf, or the result has fewer columns.
        """
        each = self._each(allowed)

        def search_some(group: slice) -> list[Neighbours]:
            return [gallery.search(queries, top, part) for gallery, part in each[group]]

        if self._pool is None or len(queries) > 1:
            answers = search_some(slice(None))
        else:
            others = [self._pool.submit(search_some, group) for group in self._groups[1:]]
            own = search_some(self._groups[0])  # This thread searches too, because waking another one takes time.
            answers = [*own, *(answer for other in others for answer in other.result())]
        shifted = zip(answers, self.firsts, strict=True)
        rows = np.hstack([np.where(answer.rows >= 0, answer.rows + first, -1) for answer, first in shifted])
        scores = np.hstack([answer.scores for answer in answers])
        best = np.argsort(-scores, axis=1, kind="stable")[:, :top]
        return Neighbours(np.take_along_axis(rows, best, axis=1), np.take_along_axis(scores, best, axis=1))

    def regions(self, words: np.ndarray, top: int, allowed: np.ndarray | None = None) -> RegionHits:
        """Search all shards, and return the `top` best of their regions for the `words` (q, c) of a snippet, at most
        one region per image.

        `allowed` (n,) bool says which of the n images of the common table may be found.
        """
        hits = [with_regions(gallery).regions(words, top, part) for gallery, part in self._each(allowed)]
        scores = np.concatenate([hit.scores for hit in hits])
        rows = np.concatenate([hit.rows + first for hit, first in zip(hits, self.firsts, strict=True)])
        order = np.argsort(-scores, kind="stable")[:top]
        return RegionHits(rows[order], scores[order], np.concatenate([hit.boxes for hit in hits])[order])

    def item(self, row: int) -> MultiVectors:
        """Return the item in the row `row` of the common table as MultiVectors of one item, with its vectors."""
        number = int(np.searchsorted(self.firsts, row, "right")) - 1
        return with_regions(self.galleries[number]).item(row - self.firsts[number])

    def reconstruct(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors (k, c) of the items in the rows `rows` (k,) of the common table. Raises RuntimeError if a
        shard cannot return its vectors."""
        vectors = np.empty((len(rows), self.dim), np.float32)
        for gallery, first, last in zip(self.galleries, self.firsts, self.lasts, strict=True):
            here = np.flatnonzero((first <= rows) & (rows < last))
            if len(here):
                vectors[here] = gallery.reconstruct(rows[here] - first)
        return vectors

    def _each(self, allowed: np.ndarray | None) -> list[tuple[Gallery, np.ndarray | None]]:
        """Return each gallery with the part of `allowed` that belongs to its rows, or with None if `allowed` is
        None."""
        spans = zip(self.galleries, self.firsts, self.lasts, strict=True)
        return [(gallery, None if allowed is None else allowed[first:last]) for gallery, first, last in spans]


def with_regions(gallery: Gallery) -> MultiVectorGallery | MergedGallery:
    """Return `gallery` unchanged, with a type that has the methods `regions` and `item`. It must belong to a
    multi-vector model."""
    assert isinstance(gallery, MultiVectorGallery | MergedGallery)
    return gallery


def open_faiss(shard: "IndexShard", modality: "Modality", to_change: bool = False) -> faiss.Index:
    """Open the FAISS index of the `images` or `sentences` of an index shard.

    Without `to_change`, the index can only be searched, and its large arrays stay in their file. With `to_change`, the
    index is a copy in memory that can be changed. FAISS trusts the bytes that it reads. A file that this user has
    neither written nor tried before is therefore read and searched in another process first. Raises IntegrityError if
    the shard has no such index, or if the file is damaged or cannot be searched.
    """
    name = shard.card.index_name(modality)
    card = index_card(shard, modality)
    path = shard.folder / f"{name}.faiss"
    expected = ExpectedIndex(card.count, card.dim, card.metric)
    digest = _trial_digest(shard, modality)
    data = shard.map(path.name)
    if not is_remembered(digest):
        rows = shard.packed_table(modality).num_rows if name == modality else card.count
        try:
            try_first(path, _try_index, path, shard.about(path.name)["sha256"], expected, rows)
        except InputError as error:
            raise IntegrityError(str(error)) from error
        remember(digest)
    if to_change:
        return from_bytes(data, str(path), expected)
    # The trial has searched these bytes for names of files, or this user has written the file.
    return view_bytes(data, str(path), expected, is_searched_for_files=True)


def index_card(shard: "IndexShard", modality: "Modality") -> "IndexCard":
    """Return the card of the FAISS index of the `images` or `sentences` of an index shard. Raises IntegrityError if the
    shard has no such index."""
    card = shard.card.index_of(modality)
    if card is None:
        raise IntegrityError(f"{shard.folder} has no index of {modality}. {REBUILD}")
    return card


def remember_indexes(shard: "IndexShard") -> None:
    """Remember for later processes of this user that the FAISS indexes of a shard need no trial, because this process
    has written them."""
    for modality in ("images", "sentences"):
        if shard.card.index_of(modality):
            remember(_trial_digest(shard, modality))


def _trial_digest(shard: "IndexShard", modality: "Modality") -> str:
    """Return a digest of everything on which the result of `_try_index` depends: the version of the trial and of FAISS,
    the file of the index, and its table."""
    files = (f"{shard.card.index_name(modality)}.faiss", f"{modality}.parquet")
    about = [TRIAL, faiss.__version__, *(shard.about(file)["sha256"] for file in files)]
    return hashlib.sha256(" ".join(about).encode()).hexdigest()


def _try_index(path: Path, sha256: str, expected: ExpectedIndex, rows: int) -> None:
    """Read the FAISS index at `path`, check its ids, and search it with random queries, as a trial in another process.

    `expected` has the values of the index's card. Raises IntegrityError if the index contradicts these values, if the
    file has another hash than `sha256`, if the ids are not different numbers from 0 to `rows` - 1, or if the index
    cannot be searched. The process is ended if the trial exceeds its time limit (see TRIAL_SECONDS).
    """
    with open(open_plain(str(path.parent), path.name, math.inf, False), "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise IntegrityError(f"{path} was changed while it was opened. {REBUILD}")
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    with processor_limit(TRIAL_SECONDS + len(data) / TRIAL_BYTES, f"{path} takes too long to search. {REBUILD}"):
        index = view_bytes(data, str(path), expected)
        limit = rows
        if index.ntotal > rows:
            raise IntegrityError(f"{path} has {index.ntotal} vectors, but its table has only {rows} rows. {REBUILD}")
        for part in parts_of(index):
            found = [faiss.vector_to_array(part.id_map)] if isinstance(part, faiss.IndexIDMap) else []
            found += [ids for _, ids in ids_of_lists(part)] if isinstance(part, faiss.IndexIVF) else []
            seen = np.zeros(limit, bool)
            for ids in found:
                if not 0 <= ids.min(initial=0) <= ids.max(initial=0) < limit:
                    raise IntegrityError(
                        f"{path} has ids that are not in 0 to {limit - 1}, the range of its rows. {REBUILD}"
                    )
                seen[ids] = True
            if found and seen.sum() < part.ntotal:
                raise IntegrityError(
                    f"{path} has {part.ntotal} vectors, but only {seen.sum()} different ids, so an id is repeated."
                    f" {REBUILD}"
                )
            if isinstance(part, faiss.IndexIDMap | faiss.IndexRefine):
                limit = index.ntotal  # FAISS uses the ids in the inner index as positions in an array.
        queries = np.random.default_rng(0).standard_normal((2, index.d)).astype(np.float32)
        gallery = Gallery(index, str(path))
        gallery.search(queries, NEIGHBOURS)
        with suppress(UsageError):  # Some types of index cannot be searched with a condition.
            gallery.search(queries, NEIGHBOURS, np.arange(rows) % 2 == 0)


def open_gallery(index: "StoredIndex", modality: "Modality") -> Gallery:
    """Open the `images` or `sentences` of an index, with one or several shards, for searching.

    Raises IntegrityError if there is no FAISS index, if it does not match its card, or if its vectors do not match the
    items of its table.
    """
    if len(index.shards) > 1:
        spans = itertools.pairwise(index.bounds(modality).tolist())
        found = [
            (_open_one(shard, modality), first, last)
            for shard, (first, last) in zip(index.shards, spans, strict=True)
            if (card := shard.card.index_of(modality)) and card.count  # All items of a shard may have been removed.
        ]
        if found:
            return MergedGallery(*zip(*found, strict=True))
    return _open_one(index.first, modality)


def _open_one(shard: "IndexShard", modality: "Modality") -> Gallery:
    name = shard.card.index_name(modality)
    path = f"{shard.folder}/{name}.faiss"
    outline = shard.outline(modality)
    if outline is None:
        return Gallery(open_faiss(shard, modality), path)
    index = open_faiss(shard, modality, to_change=True)
    stored = index_card(shard, modality).shortlist
    score = shard.card.score
    assert stored is not None and score is not None  # `read_card` has checked this.
    try:
        rule = ScoreRule.from_dict({"sum": score.sum, "global_weight": score.global_weight})
        return MultiVectorGallery(modality, index, outline, rule, Shortlist.from_card(stored))
    except (*MALFORMED, IntegrityError) as error:
        raise IntegrityError(f"{path} cannot be used as the index of {name} ({brief(error)}). {REBUILD}") from error
