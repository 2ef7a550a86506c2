"""Searching a bundle of sets of fragments: images by a sentence, regions by a snippet, sentences by an image."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from pipeline.errors import MALFORMED, InputError, IntegrityError, UsageError, brief
from pipeline.index.format import REBUILD, from_bytes
from pipeline.index.fragment_gallery import FragmentGallery
from pipeline.index.fragment_index import FRAGMENTS
from pipeline.index.search import Hit, Searcher
from pipeline.index.shortlist import shortlist_of
from pipeline.metrics.fragment_scores import FragmentSets, ScoreRule
from pipeline.precision import require_boxes, require_sets

FILE = "fragments.safetensors"


class FragmentSearcher(Searcher):
    """As Searcher, for models of regions and words: FAISS finds a shortlist, which is ranked by exact scores.

    A photograph is compared by its regions, which only the bundle has: it must be one of the bundle's images.
    """

    def images(self, sentence: str, top: int) -> list[Hit]:
        return self._search("images", self._embed_words(sentence), top)

    def batch(self, sentences: Sequence[str], top: int) -> list[list[Hit] | InputError]:
        answers: list[list[Hit] | InputError] = []
        for sentence in sentences:
            try:
                answers.append(self.images(sentence, top))
            except InputError as error:
                answers.append(error)
        return answers

    def regions(self, snippet: str, top: int) -> list[Hit]:
        """The `top` regions for some words, at most one an image: those with the greatest sum of products with all
        words. A hit's row is the image's, with its `box` x1, y1, x2, y2 in original pixels.

        Raises InputError when no word is known.
        """
        gallery = self._open("images")
        require_boxes(self.parts.folder / FILE, gallery.index.ntotal, self._arrays.get("boxes"))
        found = gallery.regions(self._embed_words(snippet).vectors, top)
        hits = self._list_hits("images", found.items, found.scores)
        boxes = self._arrays["boxes"][found.rows].tolist()
        return [Hit(hit.rank, hit.score, {**hit.row, "box": box}) for hit, box in zip(hits, boxes, strict=True)]

    def sentences_like(self, photograph: bytes, top: int) -> list[Hit]:
        """The `top` sentences for a photograph, given as the bytes of its file.

        Raises InputError where the bundle has no such image.
        """
        rows = np.flatnonzero(self.table("images")["sha256"].to_numpy() == hashlib.sha256(photograph).hexdigest())
        if not len(rows):
            raise InputError(
                f"{self.parts.card['model']} compares photographs by their regions, and this one is not among those of"
                " the index; ingest it and build the index again, or search a row of one vector an image"
            )
        return self._search("sentences", self._item("images", int(rows[0])), top)

    def sentences(self, features: Mapping[str, np.ndarray], top: int) -> list[Hit]:
        """Not for these models. Raises UsageError."""
        raise UsageError(f"{self.parts.card['model']} compares regions, which features of whole images do not tell")

    def analogy(
        self, features: Mapping[str, np.ndarray], minus: Sequence[str], plus: Sequence[str], top: int, among: int
    ) -> list[Hit]:
        """Not for these models. Raises UsageError."""
        raise UsageError(
            f"words are added to one vector of an image, and {self.parts.card['model']} has one a region; use another"
            " row with --minus and --plus"
        )

    def _embed_words(self, sentence: str) -> FragmentSets:
        """One set: a vector for each word."""
        self.require_known(sentence)
        form, found = self._encode(sentence), []
        self._computed(lambda: found.append(self._model.embed_sentence_sets(form)) or np.asarray(found[0].vectors))
        dims = found[0].vectors.shape[1], self.parts.card["dim"]
        if dims[0] != dims[1]:
            raise IntegrityError(
                f"the model in {self.parts.folder} makes {dims[0]} dimensions, its indices have {dims[1]}; {REBUILD}"
            )
        return found[0]

    def _search(self, modality: str, query: FragmentSets, top: int) -> list[Hit]:
        told = self.parts.card[FRAGMENTS[modality]]["shortlist"]
        found = self._open(modality).search(query, top, shortlist_of(told))
        return self._list_hits(modality, found.rows, found.scores)

    def _item(self, modality: str, row: int) -> FragmentSets:
        """The set of one item of the bundle."""
        gallery = self._open(modality)
        rows = np.arange(*gallery.offsets[row : row + 2])
        whole = None if gallery.globals is None else gallery.globals[row, None]
        return FragmentSets(gallery.index.reconstruct_batch(rows), np.array([0, len(rows)]), whole)

    def _open(self, modality: str) -> FragmentGallery:
        if modality not in self._opened:
            fragments, one, table = FRAGMENTS[modality], modality.removesuffix("s"), self._packed_table(modality)
            card, place = self.parts.card, f"{self.parts.folder}/{fragments}.faiss"
            index = from_bytes(self.parts.index(fragments), place, card[fragments])
            offsets, globals_ = self._arrays.get(f"{one}_offsets"), self._arrays.get(f"{one}_globals")
            require_sets(self.parts.folder / FILE, table.num_rows, index.ntotal, offsets, globals_)
            try:
                rule = ScoreRule.from_dict(card["score"])
                self._opened[modality] = FragmentGallery(modality, index, offsets, rule, globals_)
            except (*MALFORMED, IntegrityError) as error:
                raise IntegrityError(f"{place} is not an index of fragments ({brief(error)}); {REBUILD}") from error
        return self._opened[modality]

    @cached_property
    def _arrays(self) -> dict[str, np.ndarray]:
        return self.parts.arrays(FILE)
