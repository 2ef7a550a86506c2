"""Searching an index: images by a sentence, an image or both, regions by a snippet, sentences by an image."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.compute.multivectors import Items, MultiVectors, one_vector_each, several_vectors_each
from pipeline.compute.runtime import without_collection
from pipeline.errors import InputError, IntegrityError, UsageError
from pipeline.index.calibration import Calibration, Judgement
from pipeline.index.format import REBUILD
from pipeline.index.gallery import Gallery, open_gallery, with_regions
from pipeline.index.queries import QueryEncoder
from pipeline.storage.card import Modality
from pipeline.storage.index_shard import MODALITIES
from pipeline.storage.stored_index import StoredIndex
from pipeline.storage.tables import RowTable

Encoded = Mapping[str, np.ndarray] | bytes | Items
Photograph = Encoded | Callable[[], Encoded]
"""An image in a query: encoder name -> (1, dim) float32, as pipeline.index.queries.encode_image makes it; for a
multi-vector model the bytes of the file of one of the index's images; or what the model has made of it. Or a function
that makes one of these, which takes long: it is called when there is nothing wrong with the rest of the query."""
NO_DIRECTION = "the vector of this query is zero, so that nothing is nearer to it than all else; ask for more"
MOST_KEPT = 1 << 21
"""Rows of a table that is kept in memory."""


@dataclass(frozen=True)
class Hit:
    """One result: its rank from 1, its score (the greater the better), and its row in the index's table."""

    rank: int
    score: float
    row: Mapping[str, Any]


class Answer(list[Hit]):
    """The hits of a query, the best first. `error` says why one of several queries has none. `judgement` says of a
    sentence how many are `likely` and whether it is `off_topic`, by the index's calibration; None where there is none.
    It is worked out when it is first asked for: a plain search does not pay for it."""

    _judge: Callable[[Sequence[float]], Judgement] | None = None

    def __init__(self, hits: Iterable[Hit] = (), error: str | None = None) -> None:
        super().__init__(hits)
        self.error = error

    @cached_property
    def judgement(self) -> Judgement | None:
        return self._judge([hit.score for hit in self]) if self._judge else None

    def __getstate__(self) -> dict[str, Any]:
        return {"error": self.error, "judgement": self.judgement}


class Searcher(QueryEncoder):
    """A searcher answers queries from an index. Each part is read when it is first needed.

        Searcher(open_index(Path("results/demo/index/ncca"))).images("a dog runs on grass", top=10)[0].row["path"]

    A score is the inner product of unit vectors, minus the squared distance where the metric is euclidean, or what the
    rule of a multi-vector model makes of all products. Such a model compares a photograph by its regions, which only
    the index has: it must be one of the images of the index.

    `where` restricts an answer to the images of whose columns it is true, or to their sentences: `price < 20`; see
    pipeline.index.conditions. Answers and conditions do without the `hidden_columns`.
    """

    def __init__(self, index: StoredIndex, hidden_columns: Iterable[str] = ()) -> None:
        super().__init__(index)
        self._hidden = frozenset(hidden_columns)
        self._opened: dict[str, Gallery] = {}
        self._packed: dict[str, RowTable] = {}
        self._tables: dict[str, pa.Table] = {}

    def images(self, sentence: str, top: int, where: str | None = None) -> Answer:
        """The `top` images nearest to `sentence`. Raises InputError when none of its words is known."""
        self.require_known(sentence)
        return self._answer([sentence], self.embed_sentence(sentence), top, where)[0]

    def images_by_text_vector(self, query: np.ndarray, top: int, where: str | None = None) -> Answer:
        """Return the `top` images nearest to the vector (1, c) of a text whose words are not known here."""
        return self._answer([""], query, top, where)[0]

    def _answer(self, sentences: Sequence[str], queries: Items, top: int, where: str | None) -> list[Answer]:
        """Return the images nearest to sentences, whose vectors are `queries`, with a judgement for each sentence.

        An empty sentence stands for a text of which only the vector is known.
        """
        answers = self.nearest("images", queries, top, where)
        if self.index.card.calibration and isinstance(queries, np.ndarray):
            for place, (sentence, answer) in enumerate(zip(sentences, answers, strict=True)):
                answer._judge = partial(self._judge, sentence, queries[place : place + 1], where)
        return answers

    def _judge(self, sentence: str, query: np.ndarray, where: str | None, scores: Sequence[float]) -> Judgement:
        count = None if where and where.strip() else len(self.gallery("images"))
        words = self.count_words(sentence) if sentence else (0, 0)
        assert self.calibration is not None  # the card has one
        return self.calibration.judge(query, scores, count, words)

    @cached_property
    def calibration(self) -> Calibration | None:
        """The calibration of the index, which says which answers are likely, or None if there is none."""
        return Calibration.of_index(self.index)

    def batch(self, sentences: Sequence[str], top: int, where: str | None = None) -> list[Answer]:
        """The answers of `images` to many sentences, which are encoded together, in one pass over the index; what it
        would raise is the `error` of an empty one."""
        answers = [self._refusal(sentence) for sentence in sentences]
        places = [place for place, refusal in enumerate(answers) if refusal is None]
        queries = self.embed_sentences([sentences[place] for place in places]) if places else np.empty((0, 0))
        if isinstance(queries, np.ndarray):
            directed = queries.any(axis=1)
            for row in np.flatnonzero(~directed).tolist():
                answers[places[row]] = Answer(error=NO_DIRECTION)
            places = np.array(places, np.int64)[directed].tolist()
            queries = queries[directed]
        if places:
            self._keep("images")  # whose parts would be unpacked again by the next batch
            found = self._answer([sentences[place] for place in places], queries, top, where)
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer
        return [answer for answer in answers if answer is not None]

    def _refusal(self, sentence: str) -> Answer | None:
        """The answer to a sentence that `require_known` refuses."""
        try:
            self.require_known(sentence)
        except InputError as error:
            return Answer(error=str(error))
        return None

    def regions(self, snippet: str, top: int, where: str | None = None) -> Answer:
        """The `top` regions for some words, at most one an image: those with the greatest sum of products with all
        words. A hit's row is the image's, with its `box` x1, y1, x2, y2 in original pixels.

        Raises InputError when no word is known, and UsageError where the index has no regions.
        """
        if not self.multi_vector:
            raise UsageError(f"{self.index.card.model} has no regions; ask a multi-vector model, such as dvsa")
        self.require_known(snippet)
        words = several_vectors_each(self.embed_sentence(snippet))
        gallery = with_regions(self._require_fit("images", words))
        rows, scores, boxes = gallery.regions(words.array, top, self.allowed("images", where))
        (hits,) = self._list_hits("images", [(rows, scores)])
        return Answer(
            Hit(hit.rank, hit.score, {**hit.row, "box": box}) for hit, box in zip(hits, boxes.tolist(), strict=True)
        )

    def sentences(self, photograph: Photograph, top: int, where: str | None = None) -> Answer:
        """The `top` sentences nearest to an image. Raises UsageError where the index has none."""
        if not self.has("sentences"):
            raise UsageError(f"{self.index.card.model} has no sentences; search its images: `--similar`")
        allowed = self.allowed("sentences", where)
        return self._rank("sentences", self.embed_photograph(photograph), top, allowed)[0]

    def similar(
        self, photograph: Photograph, top: int, sentence: str | None = None, weight: float = 0.5,
        where: str | None = None,
    ) -> Answer:  # fmt: skip
        """The `top` images nearest to an image, or to it and a `sentence`: to the sum of their unit vectors, the
        sentence's times `weight` and the image's times 1 - `weight`.

        Of a multi-vector model, an image's regions take the place of a sentence's words. Raises InputError when no word
        of the sentence is known, and UsageError where its vector cannot be added to the image's.
        """
        if sentence is not None:
            if not 0 <= weight <= 1:
                raise UsageError(f"the weight of the words is {weight:g}; give one from 0 to 1")
            self.require_known(sentence)
            self._require_sums()
        allowed = self.allowed("images", where)
        query = self.embed_photograph(photograph)
        if sentence is not None:
            query = blend(one_vector_each(query), one_vector_each(self.embed_sentence(sentence)), weight)
        return self._rank("images", query, top, allowed)[0]

    def has(self, modality: Modality) -> bool:
        """Whether there is any of the `images` or `sentences` to be found."""
        card = self.index.card.index_of(modality)
        return bool(card and card.count)

    def embed_photograph(self, photograph: Photograph) -> Items:
        """Embed an image. Raises InputError if a multi-vector model's index has no such image, and as `embed_image`."""
        if callable(photograph):
            photograph = photograph()
        if isinstance(photograph, Items):
            return photograph
        if isinstance(photograph, Mapping):
            return self.embed_image(photograph)
        rows = np.flatnonzero(self.table("images")["sha256"].to_numpy() == hashlib.sha256(photograph).hexdigest())
        if not len(rows):
            raise InputError(
                f"{self.index.card.model} compares photos by their regions, and this one is not among those of"
                " the index; ingest it and build the index again, or search a model with one vector per image"
            )
        return with_regions(self.gallery("images")).item(int(rows[0]))

    def _require_sums(self) -> None:
        """Raises UsageError where the vectors of images and of words cannot be added."""
        model = self.index.card.model
        if self.multi_vector:
            raise UsageError(
                f"words cannot be added to a photo by {model}, which has one vector per region; use another model"
            )
        if self.index.card.metric != "inner_product":
            raise UsageError(f"words are added to images as unit vectors, and {model} has none; use another model")

    def analogy(
        self, photograph: Photograph, minus: Sequence[str], plus: Sequence[str], top: int, among: int,
        where: str | None = None,
    ) -> Answer:  # fmt: skip
        """The `top` images for an image less the words `minus` plus the words `plus` (Kiros et al. 2014, section 3.2).

        The `among` nearest are put in the order of their distance to their own mean, so that the one poor result among
        good ones comes last of them; 0 leaves all in the order of their scores, and so does an index that cannot give
        its vectors back. Raises InputError where no words are given or one is unknown, and UsageError for models whose
        vectors words are not added to.
        """
        if not (*minus, *plus):
            raise InputError("no words change the image; give a word to take away or to add")
        for word in (*minus, *plus):
            self.require_known(word)
        self._require_sums()
        allowed = self.allowed("images", where)
        image = one_vector_each(self.embed_photograph(photograph))
        taken, added = (
            np.concatenate([image[:0], *(one_vector_each(self.embed_sentence(word)) for word in words)])
            for words in (minus, plus)
        )
        query = compose(image, taken, added)
        gallery = self._require_fit("images", query)
        rows, scores = gallery.search(query, max(top, among), allowed).of(0)
        if among > 1 and len(rows):
            with suppress(RuntimeError):  # of an index that has no vectors to give
                vectors = gallery.reconstruct(rows[:among])
                order = np.argsort(np.linalg.norm(vectors - vectors.mean(axis=0), axis=1), kind="stable")
                rows[:among], scores[:among] = rows[order], scores[order]
        return self._list_hits("images", [(rows[:top], scores[:top])])[0]

    def open(self) -> None:
        """Read the model, the indices and their tables now; threads may share the searcher from then on."""
        _ = self.model, self.calibration
        for modality in MODALITIES:
            if self.has(modality):
                self.gallery(modality)
                self._keep(modality)

    def check(self) -> None:
        """Open all that any query needs. Raises IntegrityError for whatever a search would refuse, and UsageError where
        something is missing on this machine."""
        self.index.check_rows()
        self.open()
        _ = self._forms
        if not self.multi_vector:
            for encoder in self.stored_encoders().values():
                encoder.open()

    def gallery(self, modality: Modality) -> Gallery:
        """The index of the `images` or `sentences`, kept open from then on."""
        if modality not in self._opened:
            self._opened[modality] = open_gallery(self.index, modality)
        return self._opened[modality]

    def table(self, modality: Modality) -> pa.Table:
        """Return the table of the `images` or `sentences`, and keep it in memory."""
        if modality not in self._tables:  # combined, since rows are taken slowly from many chunks
            self._tables[modality] = self._visible(self.index.table(modality)).combine_chunks()
        return self._tables[modality]

    def is_kept(self, modality: Modality) -> bool:
        """Whether a table stays in memory, because it is small or has rows to hide; else each answer reads its rows."""
        return self.rows(modality).num_rows <= MOST_KEPT or bool(self.index.hidden)

    def _keep(self, modality: Modality) -> None:
        """Keep the table in memory, unless it is large."""
        if self.is_kept(modality):
            self.table(modality)

    def rows(self, modality: Modality) -> RowTable:
        """Open the same table, whose rows are read on request."""
        if modality not in self._packed:
            self._packed[modality] = self.index.packed_table(modality)
        return self._packed[modality]

    def records(self, modality: Modality, rows: np.ndarray) -> list[dict[str, Any]]:
        """The `rows` (k,) of a table."""
        kept = self._tables.get(modality)
        if kept is not None:
            return kept.take(rows).to_pylist()
        records = self.rows(modality).records(rows)
        return [{name: record[name] for name in record if name not in self._hidden} for record in records]

    def groups(self, modality: Modality) -> Iterator[pa.Table]:
        """All rows of a table, in order: at once where it is kept in memory."""
        self._keep(modality)
        kept = self._tables.get(modality)
        return map(self._visible, self.rows(modality).groups()) if kept is None else iter([kept])

    def _visible(self, table: pa.Table) -> pa.Table:
        """Return a table without the hidden columns."""
        return table.drop_columns([name for name in table.column_names if name in self._hidden])

    @property
    def columns(self) -> dict[str, str]:
        """The columns that a condition may use, as name -> kind."""
        from pipeline.index.conditions import asked_columns  # and pyarrow.compute, which other queries do without

        return asked_columns(self._visible(self.rows("images").schema.empty_table()))

    def allowed(self, modality: Modality, where: str | None) -> np.ndarray | None:
        """(n,) bool: which rows of a table are, or belong to, images of which `where` is true; None if all are."""
        asked = where if where and where.strip() else None
        if asked is None and not self.index.hidden:
            return None
        from pipeline.index.conditions import Predicate  # and pyarrow.compute, which other queries do without

        condition, allowed, ids = Predicate(asked or "image_id >= 0"), [], []
        for images in self.groups("images"):
            allowed.append(condition.rows(images) & images["path"].is_valid().to_numpy())  # the others were removed
            ids.append(images["image_id"].to_numpy()[allowed[-1]])
        if modality == "images":
            return np.concatenate(allowed)
        ids = np.concatenate(ids)
        return np.concatenate(
            [
                np.isin(sentences["image_id"].to_numpy(), ids) & sentences["text"].is_valid().to_numpy()
                for sentences in self.groups(modality)
            ]
        )

    def _list_hits(self, modality: Modality, answers: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Answer]:
        """For each answer, the rows (k,) of a modality's table and their scores (k,), its hits, ranked as they come."""
        count, rows = self.rows(modality).num_rows, np.concatenate([rows for rows, _ in answers])
        if len(rows) and not 0 <= rows.min() <= rows.max() < count:
            raise IntegrityError(
                f"the index of {modality} in {self.index.folder} has ids beyond the {count} rows of"
                f" {modality}.parquet; {REBUILD}"
            )
        with without_collection():  # which many small objects call for, and none is garbage
            records = iter(self.records(modality, rows))  # of all answers at once: a table is read once
            return [
                Answer(Hit(rank, score, next(records)) for rank, score in enumerate(scores.tolist(), 1))
                for _, scores in answers
            ]

    def _require_fit(self, modality: Modality, queries: Items) -> Gallery:
        """The gallery of a modality. Raises IntegrityError where the model's `queries` are not of its dimensions, and
        InputError where the one vector of a query is zero."""
        gallery = self.gallery(modality)
        vectors = queries.array if isinstance(queries, MultiVectors) else queries
        if vectors.shape[1] != gallery.dim or not len(gallery):
            raise IntegrityError(
                f"the model in {self.index.folder} makes {vectors.shape[1]} dimensions, and the index of {modality}"
                f" has {len(gallery)} items of {gallery.dim}; {REBUILD}"
            )
        if isinstance(queries, np.ndarray) and not queries.any(axis=1).all():
            raise InputError(NO_DIRECTION)
        return gallery

    def nearest(self, modality: Modality, queries: Items, top: int, where: str | None = None) -> list[Answer]:
        """The hits of each of the vectors `queries` among the `images` or `sentences` that `where` allows."""
        return self._rank(modality, queries, top, self.allowed(modality, where))

    def _rank(self, modality: Modality, queries: Items, top: int, allowed: np.ndarray | None) -> list[Answer]:
        neighbours = self._require_fit(modality, queries).search(queries, top, allowed)
        return self._list_hits(modality, [neighbours.of(query) for query in range(len(queries))])


def blend(image: np.ndarray, sentence: np.ndarray, weight: float) -> np.ndarray:
    """(1, c) of unit length, along (1 - weight) `image` + weight `sentence`, (1, c), whose lengths do not count.

    Raises InputError where nothing is left.
    """
    return _unit((1 - weight) * _unit(image[0]).astype(np.float64)[0] + weight * _unit(sentence[0])[0])


def compose(image: np.ndarray, minus: np.ndarray, plus: np.ndarray) -> np.ndarray:
    """(1, c) of unit length: (q - w_n + w_p) / |q - w_n + w_p| (Kiros et al. 2014, eq. 15).

    Paper to code: q `image` (1, c); w_n the rows of `minus` (a, c) and w_p those of `plus` (b, c), one for each word;
    all of unit length. Raises InputError where nothing is left.
    """
    query = image[0].astype(np.float64) - minus.sum(axis=0, dtype=float) + plus.sum(axis=0, dtype=float)
    return _unit(query)


def _unit(query: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(query)
    if length < np.sqrt(np.finfo(np.float32).eps):
        raise InputError("the image and the words cancel each other out; use other words")
    return (query / length).astype(np.float32)[None]
