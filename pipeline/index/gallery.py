"""Galleries: the images or sentences that a search ranks for vectors of the other modality.

Items of one vector each are what FAISS finds. Of a multi-vector model, an image is a set of region vectors v_i, a
sentence a set of word vectors s_t, and FAISS finds a shortlist, which is ranked by exact scores. By rule.sum, these are

    words        sum over words t of max over regions i of v_i . s_t         (Karpathy and Fei-Fei 2015, eq. 8)
    mean-words   the same divided by the number of words
    positive     sum over t and i of max(0, v_i . s_t)                       (Karpathy and Fei-Fei 2015, eq. 7)

plus a weight times the product of one more vector of each, where the model has these globals.

The shortlist: every vector first stands for the mean of its inverted list. The products of a query with these means,
some hundreds or thousands, are looked up for each vector and added up as the exact score would be. This is the centroid
interaction of PLAID (Santhanam et al., 2022), with means in place of centroids: FAISS makes those of inner products of
unit length, and how long a vector is counts as much as where it points. In the sum over the words of a sentence the
errors of means even out. A word's best region stands out from its list, so where images are found, the regions nearest
to each word have their own products.
"""

import hashlib
import math
import mmap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import faiss
import numpy as np

from pipeline.compute.multivectors import Items, MultiVectors, ScoreRule, one_vector_each
from pipeline.compute.precision import require_finite
from pipeline.compute.ragged import offsets_of
from pipeline.compute.worker_process import processor_limit
from pipeline.errors import MALFORMED, InputError, IntegrityError, UsageError, brief
from pipeline.foreign.files import is_remembered, open_plain, remember, try_first
from pipeline.index.exact import Neighbours
from pipeline.index.faiss_types import ListMeans, flat_vectors, ids_of_lists
from pipeline.index.filtering import reconstruct, search_among
from pipeline.index.format import REBUILD, ExpectedIndex, from_bytes, metric_of, parts_of, view_bytes
from pipeline.index.tuning import NEIGHBOURS

if TYPE_CHECKING:  # the process that tries an index does without these modules, which take as long as the trial
    from pipeline.storage.card import IndexCard, Modality, ShortlistCard
    from pipeline.storage.index_shard import IndexShard
    from pipeline.storage.stored_index import StoredIndex

BLOCK = 1 << 12
"""Items whose estimated products are held at once."""
TRIAL = "index-2"
"""Version of the trial of an index; another version has every index tried again."""
TRIAL_SECONDS = 60
"""CPU seconds that the trial of an index may take, beside a second for each TRIAL_BYTES."""
TRIAL_BYTES = 1 << 26


class RegionHits(NamedTuple):
    """Regions, the best first: the `rows` (k,) of their images, their `scores` (k,) and `boxes` (k, 4)."""

    rows: np.ndarray
    scores: np.ndarray
    boxes: np.ndarray


@dataclass(frozen=True)
class Shortlist:
    """For each word of a query `nearest` regions are looked up, where images are found; the `shortlist` items, images
    or sentences, that then seem best are scored exactly."""

    nearest: int
    shortlist: int

    @classmethod
    def from_card(cls, card: "ShortlistCard") -> "Shortlist | None":
        """Return the shortlist on an index's card, or None if all items are scored."""
        return None if card.shortlist is None or card.nearest is None else cls(card.nearest, card.shortlist)


class Gallery:
    """Items of one vector each, under their ids in `index`."""

    multi_vector = False

    def __init__(self, index: faiss.Index, name: str = "the index") -> None:
        self.index = index
        self.name = name
        self.dim = index.d

    def __len__(self) -> int:
        """The number of items that can be found."""
        return self.index.ntotal

    def search(self, queries: Items, top: int, allowed: np.ndarray | None = None) -> Neighbours:
        """The `top` items for each query; row -1 with score -inf where fewer are found.

        `allowed` (n,), bool, says which of n items to look among; those that were removed are not. Raises
        IntegrityError with the name of the index where FAISS cannot search it.
        """
        vectors = np.ascontiguousarray(one_vector_each(queries), np.float32)
        try:
            if allowed is not None:
                return search_among(self.index, vectors, top, allowed)
            values, rows = self.index.search(vectors, min(top, len(self)))
        except (RuntimeError, MemoryError, IndexError) as error:
            raise IntegrityError(f"{self.name} cannot be searched ({brief(error)}); {REBUILD}") from error
        return Neighbours.of_faiss(values, rows, metric_of(self.index))

    def reconstruct(self, rows: np.ndarray) -> np.ndarray:
        """(k, c) the vectors of some items. RuntimeError where the index has none to give."""
        return reconstruct(self.index, rows)


class MultiVectorGallery(Gallery):
    """Items of several vectors each.

    `index` holds the gallery's vectors in the order of the `outline`, by inner product: Flat, all items of which are
    scored, or IVF,Flat, searched by the `shortlist` (None: all are scored, too). The gallery is `images`, of
    whose regions each word takes the best, or `sentences`, each word of which takes the best of the query's regions.
    An item without vectors was removed, and is never found. Raises IntegrityError for another index.
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
        typed = faiss.downcast_index(index)  # which lasts as long as `index`
        if not isinstance(typed, faiss.IndexFlat | faiss.IndexIVFFlat):
            raise IntegrityError(f"the index of {modality} cannot reconstruct its vectors; run build-index again")
        super().__init__(index)
        self.means: ListMeans | None = None
        if isinstance(typed, faiss.IndexIVFFlat):
            typed.make_direct_map()  # without it FAISS cannot reconstruct vectors
            self.means = ListMeans(typed)
        elif shortlist is not None:
            raise IntegrityError(f"the index of {modality} has no lists for a shortlist; {REBUILD}")
        self.of_images = modality == "images"
        self.outline = outline
        self.rule = rule
        self.shortlist = shortlist
        self.owners = outline.owners
        self.there = np.flatnonzero(outline.lengths)

    def __len__(self) -> int:
        return len(self.there)

    def search(self, queries: Items, top: int, allowed: np.ndarray | None = None) -> Neighbours:
        """Search as Gallery does. Raises IntegrityError if a query is not finite."""
        assert isinstance(queries, MultiVectors)
        require_finite("query", "vectors", queries.array)
        items = self.there if allowed is None else self.there[allowed[self.there]]
        answers = [self._best(query, top, items) for query in queries.blocks(1)]
        return Neighbours(*map(np.array, zip(*answers, strict=True)))

    def scored(self, top: int) -> int:
        """Return the number of items that a search for `top` scores exactly."""
        return len(self) if self.shortlist is None else min(max(self.shortlist.shortlist, top), len(self))

    def item(self, row: int) -> MultiVectors:
        """One item, with its vectors."""
        vectors = self._reconstruct(self.outline.places(np.array([row])))
        return replace(self.outline.between(row, row + 1), vectors=vectors)

    def vectors(self) -> np.ndarray:
        """Return all vectors (total, c). The vectors of a Flat index are not copied."""
        return flat_vectors(self.index) if self.means is None else self.index.reconstruct_n(0, self.index.ntotal)

    def score(self, query: MultiVectors, items: np.ndarray) -> np.ndarray:
        """(k,) exact scores of the items `items` (k,) for the one of `query`, in arrays."""
        vectors = self._reconstruct(self.outline.places(items))
        offsets = offsets_of(self.outline.lengths[items])
        return self._add_up(vectors @ query.array.T, offsets) + self._global_scores(query, items)

    def score_all(self, query: MultiVectors, vectors: np.ndarray) -> np.ndarray:
        """(n,) exact scores of all items, whose `vectors` (total, c) are at hand; of removed ones, nothing."""
        return self._add_up(vectors @ query.array.T, self.outline.offsets) + self._global_scores(query, slice(None))

    def regions(self, words: np.ndarray, top: int, allowed: np.ndarray | None = None) -> RegionHits:
        """The `top` regions for a snippet's `words` (q, c), at most one an image: those with the greatest sum of
        products with all words, which is one product with the words' sum. Only images that are `allowed` count."""
        query = np.ascontiguousarray(words.sum(axis=0, keepdims=True, dtype=np.float32))
        allowed_regions = None if allowed is None else allowed[self.owners]
        top, among = min(top, len(self) if allowed is None else int(allowed[self.there].sum())), 4 * top
        while True:
            rows, scores = Gallery(self.index).search(query, among, allowed_regions).of(0)
            first = np.sort(np.unique(self.owners[rows], return_index=True)[1])[:top]
            if len(first) == top or among >= self.index.ntotal:
                return RegionHits(self.owners[rows[first]], scores[first], self.outline.box_array[rows[first]])
            among *= 4

    def _estimate(self, query: MultiVectors, nearest: int) -> np.ndarray:
        """Estimate the scores (n,) by the means of the lists."""
        assert self.means is not None  # as the constructor has checked
        products = self.means.means @ query.array.T  # (lists, q)
        hits = None
        if self.rule.sum == "positive":
            products = np.maximum(products, 0).sum(axis=1, keepdims=True)
        elif self.of_images:
            hits = look_up(self.index, query.array, nearest)
        else:
            products = products.max(axis=1, keepdims=True)
        scores = np.empty(len(self.outline.offsets) - 1, np.float32)
        for start in range(0, len(scores), BLOCK):
            offsets = self.outline.offsets[start : start + BLOCK + 1]
            estimates = products[self.means.lists[offsets[0] : offsets[-1]]]
            if hits:
                hits.write(estimates, int(offsets[0]))
            scores[start : start + BLOCK] = self._add_up(estimates, offsets - offsets[0])
        return scores + self._global_scores(query, slice(None))

    def _add_up(self, products: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """(k,) scores of k items, without globals, from the products (total, q) of their vectors with the query's."""
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

    def _global_scores(self, query: MultiVectors, items: np.ndarray | slice) -> np.ndarray | float:
        stored = self.outline.globals
        if stored is None or not self.rule.global_weight:
            return 0.0
        assert isinstance(stored, np.ndarray)
        if not isinstance(query.globals, np.ndarray) or query.globals.shape[1] != stored.shape[1]:
            raise IntegrityError(f"the globals in {self.name} do not fit its model; {REBUILD}")
        return self.rule.global_weight * (stored[items] @ query.globals[0])

    def _best(self, query: MultiVectors, top: int, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows and scores of the `top` among `items` (k,)."""
        kept = min(self.scored(top), len(items))
        if kept == len(self):
            return self._rank(items, self.score_all(query, self.vectors())[items], top)
        if kept < len(items):
            assert self.shortlist is not None  # otherwise all items are scored
            estimates = self._estimate(query, self.shortlist.nearest)[items]
            items = items[np.sort(np.argpartition(-estimates, kept - 1)[:kept])]
        return self._rank(items, self.score(query, items), top)

    def _reconstruct(self, places: np.ndarray) -> np.ndarray:
        return self.index.reconstruct_batch(places) if len(places) else np.empty((0, self.index.d), np.float32)

    @staticmethod
    def _rank(items: np.ndarray, scores: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(-scores, kind="stable")[:top]
        return items[order], scores[order]


class Hits(NamedTuple):
    """The products of some vectors, `rows` (k,) ascending, with some of the query's, `asked` (k,)."""

    rows: np.ndarray
    asked: np.ndarray
    products: np.ndarray

    def write(self, products: np.ndarray, first: int) -> None:
        """Put them into `products` (n, q), which are of the vectors from `first` on."""
        part = slice(*np.searchsorted(self.rows, [first, first + len(products)]))
        products[self.rows[part] - first, self.asked[part]] = self.products[part]


def look_up(index: faiss.Index, query: np.ndarray, nearest: int) -> Hits:
    """The `nearest` vectors of `index` for each of `query` (q, c)."""
    products, rows = index.search(np.ascontiguousarray(query, np.float32), min(nearest, index.ntotal))
    asked, place = np.nonzero(rows >= 0)
    order = np.argsort(rows[asked, place], kind="stable")
    asked, place = asked[order], place[order]
    return Hits(rows[asked, place], asked, products[asked, place])


class MergedGallery(Gallery):
    """The `galleries` of several index shards. The rows of shard i are `firsts[i]` to `lasts[i]` of all rows.

    Among equal scores, the items of an earlier shard come first.
    """

    def __init__(self, galleries: Sequence[Gallery], firsts: Sequence[int], lasts: Sequence[int]) -> None:
        self.galleries = galleries
        self.firsts = firsts
        self.lasts = lasts
        self.dim = galleries[0].dim
        self.multi_vector = galleries[0].multi_vector

    def __len__(self) -> int:
        return sum(map(len, self.galleries))

    def search(self, queries: Items, top: int, allowed: np.ndarray | None = None) -> Neighbours:
        """Return the best items that the shards find."""
        answers = [gallery.search(queries, top, part) for gallery, part in self._each(allowed)]
        shifted = zip(answers, self.firsts, strict=True)
        rows = np.hstack([np.where(answer.rows >= 0, answer.rows + first, -1) for answer, first in shifted])
        scores = np.hstack([answer.scores for answer in answers])
        best = np.argsort(-scores, axis=1, kind="stable")[:, :top]
        return Neighbours(np.take_along_axis(rows, best, axis=1), np.take_along_axis(scores, best, axis=1))

    def regions(self, words: np.ndarray, top: int, allowed: np.ndarray | None = None) -> RegionHits:
        """Return the best regions that the shards find."""
        hits = [with_regions(gallery).regions(words, top, part) for gallery, part in self._each(allowed)]
        scores = np.concatenate([hit.scores for hit in hits])
        rows = np.concatenate([hit.rows + first for hit, first in zip(hits, self.firsts, strict=True)])
        order = np.argsort(-scores, kind="stable")[:top]
        return RegionHits(rows[order], scores[order], np.concatenate([hit.boxes for hit in hits])[order])

    def item(self, row: int) -> MultiVectors:
        number = int(np.searchsorted(self.firsts, row, "right")) - 1
        return with_regions(self.galleries[number]).item(row - self.firsts[number])

    def reconstruct(self, rows: np.ndarray) -> np.ndarray:
        vectors = np.empty((len(rows), self.dim), np.float32)
        for gallery, first, last in zip(self.galleries, self.firsts, self.lasts, strict=True):
            here = np.flatnonzero((first <= rows) & (rows < last))
            if len(here):
                vectors[here] = gallery.reconstruct(rows[here] - first)
        return vectors

    def _each(self, allowed: np.ndarray | None) -> list[tuple[Gallery, np.ndarray | None]]:
        """Each gallery, and which of its rows are allowed."""
        spans = zip(self.galleries, self.firsts, self.lasts, strict=True)
        return [(gallery, None if allowed is None else allowed[first:last]) for gallery, first, last in spans]


def with_regions(gallery: Gallery) -> MultiVectorGallery | MergedGallery:
    """Return the gallery of a multi-vector model as what it is."""
    assert isinstance(gallery, MultiVectorGallery | MergedGallery)
    return gallery


def open_faiss(shard: "IndexShard", modality: "Modality", to_change: bool = False) -> faiss.Index:
    """Open the FAISS index of the `images` or `sentences` of an index shard: for searching only, with its large parts
    left in their file, or, `to_change`, as a copy in memory.

    FAISS trusts the bytes that it reads. So bytes that this user's program has neither written nor tried before are
    read and searched in another process first. Raises IntegrityError.
    """
    name = shard.card.index_name(modality)
    card = index_card(shard, modality)
    path = shard.folder / f"{name}.faiss"
    expected = ExpectedIndex(card.count, card.dim, card.metric)
    digest = _trial_digest(shard, modality)
    data = shard.index(name)
    if not is_remembered(digest):
        rows = shard.packed_table(modality).num_rows if name == modality else card.count
        try:
            try_first(path, _try_index, path, shard.about(path.name)["sha256"], expected, rows)
        except InputError as error:
            raise IntegrityError(str(error)) from error
        remember(digest)
    if to_change:
        return from_bytes(data, str(path), expected)
    return view_bytes(data, str(path), expected, is_searched_for_files=True)  # by the trial, or by its writer


def index_card(shard: "IndexShard", modality: "Modality") -> "IndexCard":
    """Return the card of a FAISS index. Raises IntegrityError if the shard has no such index."""
    card = shard.card.index_of(modality)
    if card is None:
        raise IntegrityError(f"{shard.folder} has no index of {modality}; {REBUILD}")
    return card


def remember_indexes(shard: "IndexShard") -> None:
    """Remember that the FAISS indexes of a shard, which this process has written, need no trial."""
    for modality in ("images", "sentences"):
        if shard.card.index_of(modality):
            remember(_trial_digest(shard, modality))


def _trial_digest(shard: "IndexShard", modality: "Modality") -> str:
    """Return the digest of all that `_try_index` depends on."""
    files = (f"{shard.card.index_name(modality)}.faiss", f"{modality}.parquet")
    about = [TRIAL, faiss.__version__, *(shard.about(file)["sha256"] for file in files)]
    return hashlib.sha256(" ".join(about).encode()).hexdigest()


def _try_index(path: Path, sha256: str, expected: ExpectedIndex, rows: int) -> None:
    """Read and search the index at `path`, whose ids are distinct `rows` of a table. Raises IntegrityError."""
    with open(open_plain(str(path.parent), path.name, math.inf, False), "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise IntegrityError(f"{path} has changed while it was opened; {REBUILD}")
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    with processor_limit(TRIAL_SECONDS + len(data) / TRIAL_BYTES, f"{path} takes too long to search; {REBUILD}"):
        index, limit = view_bytes(data, str(path), expected), rows
        if index.ntotal > rows:
            raise IntegrityError(f"{path} has {index.ntotal} vectors, but its table only {rows} rows; {REBUILD}")
        for part in parts_of(index):
            found = [faiss.vector_to_array(part.id_map)] if isinstance(part, faiss.IndexIDMap) else []
            found += [ids for _, ids in ids_of_lists(part)] if isinstance(part, faiss.IndexIVF) else []
            seen = np.zeros(limit, bool)
            for ids in found:
                if not 0 <= ids.min(initial=0) <= ids.max(initial=0) < limit:
                    raise IntegrityError(f"{path} has ids beyond the {limit} rows of its table; {REBUILD}")
                seen[ids] = True
            if found and seen.sum() < part.ntotal:
                raise IntegrityError(f"{path} has an id twice; {REBUILD}")
            if isinstance(part, faiss.IndexIDMap | faiss.IndexRefine):
                limit = index.ntotal  # FAISS looks up by position what their inner index finds
        queries = np.random.default_rng(0).standard_normal((2, index.d)).astype(np.float32)
        gallery = Gallery(index, str(path))
        gallery.search(queries, NEIGHBOURS)
        with suppress(UsageError):  # of an index that takes no conditions
            gallery.search(queries, NEIGHBOURS, np.arange(rows) % 2 == 0)


def open_gallery(index: "StoredIndex", modality: "Modality") -> Gallery:
    """Open the `images` or `sentences` of an index for searching only.

    Raises IntegrityError for a FAISS index that is not its card's, or whose vectors are not those of its items.
    """
    if len(index.shards) == 1:
        return _open_one(index.shards[0], modality)
    bounds = index.bounds(modality)
    galleries, firsts, lasts = [], [], []
    for shard, first, last in zip(index.shards, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        card = shard.card.index_of(modality)
        if card is not None and card.count:  # all may have been removed
            galleries.append(_open_one(shard, modality))
            firsts.append(first)
            lasts.append(last)
    return MergedGallery(galleries, firsts, lasts)


def _open_one(shard: "IndexShard", modality: "Modality") -> Gallery:
    name = shard.card.index_name(modality)
    path = f"{shard.folder}/{name}.faiss"
    outline = shard.outline(modality)
    if outline is None:
        return Gallery(open_faiss(shard, modality), path)
    index = open_faiss(shard, modality, to_change=True)
    stored = index_card(shard, modality).shortlist
    score = shard.card.score
    assert stored is not None and score is not None  # as the form of the card demands
    try:
        rule = ScoreRule.from_dict({"sum": score.sum, "global_weight": score.global_weight})
        return MultiVectorGallery(modality, index, outline, rule, Shortlist.from_card(stored))
    except (*MALFORMED, IntegrityError) as error:
        raise IntegrityError(f"{path} is not an index of {name} ({brief(error)}); {REBUILD}") from error
