"""Searching a bundle: images by a sentence, regions by a snippet, sentences by an image."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
import pyarrow as pa

from pipeline.errors import InputError, IntegrityError, UsageError
from pipeline.index.asking import Asker
from pipeline.index.format import REBUILD
from pipeline.index.gallery import Gallery, open_gallery
from pipeline.multivectors import Items, MultiVectors, concatenate


@dataclass(frozen=True)
class Hit:
    """One result: its rank from 1, its score (the greater the better), and its row in the bundle's table."""

    rank: int
    score: float
    row: Mapping[str, Any]


class Searcher(Asker):
    """Answers queries from a bundle's indices; each part is read when it is first needed.

        searcher = Searcher(Bundle("results/demo/index/ncca"))
        searcher.images("a dog runs on grass", top=10)[0].row["path"]

    A score is the inner product of unit vectors, minus the squared distance where the metric is euclidean, or what the
    rule of a multi-vector model makes of all products. Such a model compares a photograph by its regions, which only
    the bundle has: it must be one of the bundle's images.
    """

    def __init__(self, bundle: Any) -> None:
        super().__init__(bundle)
        self._opened: dict[str, Gallery] = {}
        self._packed: dict[str, Any] = {}
        self._tables: dict[str, pa.Table] = {}

    def images(self, sentence: str, top: int) -> list[Hit]:
        """The `top` images nearest to `sentence`. Raises InputError when none of its words is known."""
        self.require_known(sentence)
        return self._nearest("images", self.embed_sentence(sentence), top)[0]

    def batch(self, sentences: Sequence[str], top: int) -> list[list[Hit] | InputError]:
        """The answers of `images` to many sentences in one search; what it would raise stands in its place."""
        answers: list[list[Hit] | InputError] = []
        embedded = []
        for sentence in sentences:
            try:
                self.require_known(sentence)
            except InputError as error:
                answers.append(error)
            else:
                answers.append([])
                embedded.append(self.embed_sentence(sentence))
        if embedded:
            self.table("images")  # whose parts would be unpacked again for each answer
            found = iter(self._nearest("images", concatenate(embedded), top))
            answers = [answer if isinstance(answer, InputError) else next(found) for answer in answers]
        return answers

    def regions(self, snippet: str, top: int) -> list[Hit]:
        """The `top` regions for some words, at most one an image: those with the greatest sum of products with all
        words. A hit's row is the image's, with its `box` x1, y1, x2, y2 in original pixels.

        Raises InputError when no word is known, and UsageError where the model has one vector an image.
        """
        if not self.multi_vector:
            raise UsageError(f"{self.bundle.card['model']} has one vector an image, and no regions; ask it for images")
        self.require_known(snippet)
        words = self.embed_sentence(snippet)
        gallery = self._require_fit("images", words)
        found = gallery.regions(words.vectors, top)
        hits = self._list_hits("images", gallery.owners[found.rows], found.scores)
        boxes = gallery.outline.boxes[found.rows].tolist()
        return [Hit(hit.rank, hit.score, {**hit.row, "box": box}) for hit, box in zip(hits, boxes, strict=True)]

    def sentences(self, features: Mapping[str, np.ndarray], top: int) -> list[Hit]:
        """The `top` sentences nearest to an image, given as encoder name -> (1, dim) float32.

        pipeline.index.query.image_features makes these of a photograph, and needs torch for it.
        """
        if self.multi_vector:
            raise UsageError(f"{self.bundle.card['model']} compares regions, not features of whole images")
        return self._nearest("sentences", self.embed_image(features), top)[0]

    def sentences_like(self, photograph: bytes, top: int) -> list[Hit]:
        """The same for a multi-vector model, and one of the bundle's photographs, given as the bytes of its file.

        Raises InputError where the bundle has no such image.
        """
        rows = np.flatnonzero(self.table("images")["sha256"].to_numpy() == hashlib.sha256(photograph).hexdigest())
        if not len(rows):
            raise InputError(
                f"{self.bundle.card['model']} compares photographs by their regions, and this one is not among those of"
                " the index; ingest it and build the index again, or search a model with one vector an image"
            )
        return self._nearest("sentences", self._open("images").item(int(rows[0])), top)[0]

    def analogy(
        self, features: Mapping[str, np.ndarray], minus: Sequence[str], plus: Sequence[str], top: int, among: int
    ) -> list[Hit]:
        """The `top` images for an image less the words `minus` plus the words `plus` (Kiros et al. 2014, section 3.2).

        The `among` nearest are re-sorted by their distance to their mean. Raises as `require_words`, and UsageError for
        models whose vectors words are not added to.
        """
        if self.multi_vector:
            raise UsageError(
                f"words are added to one vector an image, and {self.bundle.card['model']} has one a region; use another"
                " model with --minus and --plus"
            )
        if self.bundle.card["metric"] != "inner_product":
            raise UsageError("words are added to images as unit vectors, and this model has none; use another model")
        self.require_words(minus, plus)
        image = self.embed_image(features)
        words = [np.concatenate([image[:0], *map(self.embed_sentence, chosen)]) for chosen in (minus, plus)]
        query = compose(image, *words)
        rows, scores = search_around_mean(self._require_fit("images", query).index, query, top, among)
        return self._list_hits("images", rows, scores)

    def open(self) -> None:
        """Read the model, the indices and their tables now; threads may share the searcher from then on."""
        _ = self._model
        for modality in ("images", "sentences"):
            self._open(modality)
            self.table(modality)

    def table(self, modality: str) -> pa.Table:
        """What the rows of an index are, kept in memory from then on."""
        if modality not in self._tables:  # combined, since a row is taken slowly from pieces
            self._tables[modality] = self.bundle.table(modality).combine_chunks()
        return self._tables[modality]

    def _open(self, modality: str) -> Gallery:
        if modality not in self._opened:
            self._opened[modality] = open_gallery(self.bundle, modality)
        return self._opened[modality]

    def _packed_table(self, modality: str) -> Any:
        if modality not in self._packed:
            self._packed[modality] = self.bundle.packed_table(modality)
        return self._packed[modality]

    def _list_hits(self, modality: str, rows: np.ndarray, scores: np.ndarray) -> list[Hit]:
        """The `rows` (k,) of a modality's table with their `scores` (k,), ranked as they come."""
        kept = self._tables.get(modality)
        count = self._packed_table(modality).num_rows if kept is None else kept.num_rows
        if len(rows) and not 0 <= min(rows) <= max(rows) < count:
            raise IntegrityError(
                f"the index of {modality} in {self.bundle.folder} has ids beyond the {count} rows of"
                f" {modality}.parquet; {REBUILD}"
            )
        records = self._packed_table(modality).records(rows) if kept is None else kept.take(rows).to_pylist()
        ranked = enumerate(zip(scores, records, strict=True), 1)
        return [Hit(rank, float(score), record) for rank, (score, record) in ranked]

    def _require_fit(self, modality: str, queries: Items) -> Gallery:
        """The gallery of a modality; IntegrityError where the model's `queries` are not of its dimensions."""
        gallery = self._open(modality)
        vectors, index = queries.vectors if isinstance(queries, MultiVectors) else queries, gallery.index
        if vectors.shape[1] != index.d or not index.ntotal:
            raise IntegrityError(
                f"the model in {self.bundle.folder} makes {vectors.shape[1]} dimensions, and the index of {modality}"
                f" has {index.ntotal} vectors of {index.d}; {REBUILD}"
            )
        return gallery

    def _nearest(self, modality: str, queries: Items, top: int) -> list[list[Hit]]:
        """The hits of each query."""
        found = self._require_fit(modality, queries).search(queries, top)
        kept = found.rows >= 0  # an inverted file pads with -1 when the lists that it visits hold too few
        return [
            self._list_hits(modality, found.rows[i][kept[i]], found.scores[i][kept[i]]) for i in range(len(queries))
        ]


def compose(image: np.ndarray, minus: np.ndarray, plus: np.ndarray) -> np.ndarray:
    """(1, c) of unit length: (q - w_n + w_p) / |q - w_n + w_p| (Kiros et al. 2014, eq. 15).

    Paper to code: q `image` (1, c); w_n the rows of `minus` (a, c) and w_p those of `plus` (b, c), one for each word;
    all of unit length. Raises InputError where nothing is left.
    """
    query = image[0].astype(np.float64) - minus.sum(axis=0, dtype=float) + plus.sum(axis=0, dtype=float)
    length = np.linalg.norm(query)
    if length < np.sqrt(np.finfo(np.float32).eps):
        raise InputError("the image and the words cancel each other out; use other words")
    return (query / length).astype(np.float32)[None]


def search_around_mean(index: faiss.Index, query: np.ndarray, top: int, among: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows (k,) of the `top` nearest to `query` (1, c), and their scores (k,).

    The `among` nearest are put in the order of their distance to their own mean, so that the one poor result among
    good ones comes last of them; 0 leaves all in the order of their scores.
    """
    scores, rows = index.search(query, min(max(top, among), index.ntotal))
    scores, rows = scores[0][rows[0] >= 0], rows[0][rows[0] >= 0]
    if among > 1 and len(rows):
        if hasattr(index, "make_direct_map"):
            index.make_direct_map()  # without it FAISS cannot reconstruct vectors
        vectors = index.reconstruct_batch(rows[:among])
        order = np.argsort(np.linalg.norm(vectors - vectors.mean(axis=0), axis=1), kind="stable")
        rows[:among], scores[:among] = rows[order], scores[order]
    return rows[:top], scores[:top]
