"""Opening the indices of a bundle, or of several bundles of one model, whose answers are merged by score."""

from collections.abc import Sequence
from typing import Any

import faiss
import numpy as np

from pipeline.errors import MALFORMED, IntegrityError, brief
from pipeline.index.exact import Neighbours
from pipeline.index.format import REBUILD, from_bytes, view_bytes
from pipeline.index.gallery import Gallery, MultiVectorGallery, RegionHits, Shortlist
from pipeline.multivectors import Items, MultiVectors, ScoreRule


def open_index(bundle: Any, name: str) -> faiss.Index:
    """The index `name` of a pipeline.storage.bundle.Bundle, for searching only; its large parts stay in their file.

    Raises IntegrityError.
    """
    return view_bytes(bundle.index(name), f"{bundle.folder}/{name}.faiss", bundle.card[name])


def open_gallery(bundle: Any, modality: str) -> Gallery:
    """The `images` or `sentences` of a bundle, or of a pipeline.storage.bundles.Bundles, for searching only.

    Raises IntegrityError for an index that is not its card's, or whose vectors are not those of its items.
    """
    if len(bundle.parts) == 1:
        return _open_one(bundle, modality)
    name, bounds = bundle.index_name(modality), bundle.bounds(modality)
    spans = zip(bundle.parts, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    opened = [(_open_one(part, modality), first, last) for part, first, last in spans if _count(part, name)]
    galleries, firsts, lasts = zip(*opened, strict=True)
    return MergedGallery(galleries, firsts, lasts)


def _count(bundle: Any, name: str) -> int:
    """The vectors of an index; all may have been removed."""
    return (bundle.card.get(name) or {}).get("count", 0)


def _open_one(bundle: Any, modality: str) -> Gallery:
    name = bundle.index_name(modality)
    path, card = f"{bundle.folder}/{name}.faiss", bundle.card[name]
    if (outline := bundle.outline(modality)) is None:
        return Gallery(open_index(bundle, name))
    index = from_bytes(bundle.index(name), path, card)
    try:
        shortlist = Shortlist.from_card(card["shortlist"])
        return MultiVectorGallery(modality, index, outline, ScoreRule.from_dict(bundle.card["score"]), shortlist)
    except (*MALFORMED, IntegrityError) as error:
        raise IntegrityError(f"{path} is not an index of {name} ({brief(error)}); {REBUILD}") from error


class MergedGallery(Gallery):
    """The `galleries` of several bundles, whose rows are `firsts[i]` to `lasts[i]` of all. Of equal scores, those of an
    earlier bundle come first."""

    def __init__(self, galleries: Sequence[Gallery], firsts: Sequence[int], lasts: Sequence[int]) -> None:
        self.galleries, self.firsts, self.lasts = galleries, firsts, lasts
        self.metric, self.dim = galleries[0].metric, galleries[0].dim
        self.multi_vector = galleries[0].multi_vector

    def __len__(self) -> int:
        return sum(map(len, self.galleries))

    def search(self, queries: Items, top: int, allowed: np.ndarray | None = None) -> Neighbours:
        """The best of what each bundle finds."""
        return self._merge([gallery.search(queries, top, part) for gallery, part in self._each(allowed)], top)

    def regions(self, words: np.ndarray, top: int, allowed: np.ndarray | None = None) -> RegionHits:
        """The best of the regions that each bundle finds."""
        hits = [gallery.regions(words, top, part) for gallery, part in self._each(allowed)]
        scores = np.concatenate([hit.scores for hit in hits])
        rows = np.concatenate([hit.rows + first for hit, first in zip(hits, self.firsts, strict=True)])
        order = np.argsort(-scores, kind="stable")[:top]
        return RegionHits(rows[order], scores[order], np.concatenate([hit.boxes for hit in hits])[order])

    def item(self, row: int) -> MultiVectors:
        number = int(np.searchsorted(self.firsts, row, "right")) - 1
        return self.galleries[number].item(row - self.firsts[number])

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

    def _merge(self, answers: Sequence[Neighbours], top: int) -> Neighbours:
        shifted = zip(answers, self.firsts, strict=True)
        rows = np.hstack([np.where(answer.rows >= 0, answer.rows + first, -1) for answer, first in shifted])
        scores = np.hstack([answer.scores for answer in answers])
        best = np.argsort(-scores, axis=1, kind="stable")[:, :top]
        return Neighbours(np.take_along_axis(rows, best, axis=1), np.take_along_axis(scores, best, axis=1))
