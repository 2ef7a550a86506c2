"""Searching an index for images, regions and captions, with a text, an image or both."""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.compute.multivectors import Items, MultiVectors, one_vector_each, several_vectors_each
from pipeline.compute.runtime import without_collection
from pipeline.errors import InputError, IntegrityError, UsageError
from pipeline.index.calibration import Calibration, Judgement, explain_missing_line
from pipeline.index.gallery import Gallery, open_gallery, with_regions
from pipeline.index.queries import QueryEncoder
from pipeline.index.text_index import TextIndex, TextMatches, TextQuery
from pipeline.storage.card import Modality
from pipeline.storage.files import REBUILD
from pipeline.storage.index_shard import MODALITIES
from pipeline.storage.stored_index import StoredIndex
from pipeline.storage.tables import RowTable

Encoded = Mapping[str, np.ndarray] | bytes | Items
Photograph = Encoded | Callable[[], Encoded]
"""An image in a query: a mapping from image encoders to its features (1, dim) float32
(pipeline.index.queries.encode_image), or its embedding in the joint space, or, for a multi-vector model whose index
contains the image, the bytes of its file. It may also be a function that returns one of these. The function may be
slow, because it is only called after the rest of the query has been checked."""
NO_DIRECTION = (
    "The query vector is zero: the words cancel each other out, or none of them carries weight. Rephrase the query."
)
MAX_ROWS_IN_MEMORY = 1 << 21
"""Largest number of rows of a table of images or captions that is kept in memory. If the table has more rows, each
search reads only the rows of its results from the file (see `Searcher.is_kept` for the exception)."""
RANK_OFFSET = 60
"""The constant of reciprocal rank fusion (Cormack, Clarke and Buettcher 2009). An image gets 1 / (60 + rank) points for
its rank from 1 by the score of its vector. If the texts of the image match the words of the query, it gets 1 / (60 +
rank) more points for its rank from 1 among these matches."""
MAX_FUSED = 100
"""Largest number of nearest images that get points for the rank of their vector (see RANK_OFFSET). Other images can
only get points for the words of the query."""
MAX_DRAWN = 50
"""Largest number of hits that a notebook shows with a thumbnail."""
MAX_SORTED = 2000
"""Smallest number of results that are found before the likely matches among them are sorted by a column. Likely matches
beyond this number are missing from the sorted results, unless more results are requested."""


@dataclass(frozen=True)
class Hit:
    """One result of a search: its rank from 1, its score (greater is better), and its row in the table of images or
    captions, as column -> value.

    If the text search has found the image, because its texts have all words of the query, `matches` names these texts:
    `caption`, `file name`, or a column. If a column value or the file name equals the query, only this text is named.
    `matches` is empty if the text search has not found the image. The text search finds no images by words that too
    many photos have (see pipeline.index.text_index). `matches` is ignored when hits are compared with `==`. If the
    model cannot embed the query, the hit was found by words alone, and its score is 0.
    """

    rank: int
    score: float
    row: Mapping[str, Any]
    matches: tuple[str, ...] = field(default=(), compare=False)


class Answer(list[Hit]):
    """The results of a query, the best first.

    `error` says why one of several queries has no results, and is None for an answered query. `judgement` says how many
    results of a text query are likely matches, and whether the query is out of domain (`off_topic`). `judgement` is
    None if the index is not calibrated, if the model cannot embed the text, or if the query has a photo or words to
    subtract or to add. The judgement is computed when it is first used, so that searches that do not need it stay fast.
    `identified` is the number of images that have the query as an identifier, such as a file name. The hits of these
    images come first. If the answer has fewer hits than `identified`, some of these images are missing from the answer.
    """

    identified = 0
    _judge: Callable[[Sequence[float]], Judgement] | None = None
    _draw: Callable[[Hit], str] | None = None

    def __init__(self, hits: Iterable[Hit] = (), error: str | None = None) -> None:
        super().__init__(hits)
        self.error = error

    @property
    def matched(self) -> bool:
        """Whether the text search has found some of the hits, because their texts have all words of the query."""
        return any(hit.matches for hit in self)

    @cached_property
    def judgement(self) -> Judgement | None:
        """The judgement of a text query, or None (see the class). Hits with `matches` count as likely matches."""
        scores = [math.inf if hit.matches else hit.score for hit in self]
        return self._judge(scores) if self._judge else None

    def __getstate__(self) -> dict[str, Any]:
        return {"error": self.error, "identified": self.identified, "judgement": self.judgement}

    def _repr_html_(self) -> str | None:
        """Return the first MAX_DRAWN hits as HTML for a notebook, or None if no function that draws hits is set."""
        return "".join(map(self._draw, self[:MAX_DRAWN])) if self._draw else None


class Searcher(QueryEncoder):
    """A searcher that answers queries from an index. The files of the index are read when they are first needed.

        Searcher(open_index(Path("results/demo/index/ncca"))).images("a dog runs on grass", top=10)[0].row["path"]

    A score is the inner product of the vectors, which is their cosine for most models, the negative squared distance if
    the metric is euclidean, or the score by the rule of a multi-vector model. A multi-vector model compares an image by
    its regions, which only the index has. An image in a query must therefore be one of the images of the index.

    `where` is a condition on the columns of the images, such as `price < 20` (see pipeline.index.conditions). Only
    images for which the condition is true, or their captions, are found. The `hidden_columns` are not in the results,
    and neither conditions nor words of a query can refer to them.
    """

    def __init__(self, index: StoredIndex, hidden_columns: Iterable[str] = ()) -> None:
        super().__init__(index)
        self._hidden = frozenset(hidden_columns)
        # A caller may set `draw` to a function that returns an image hit as HTML. Notebooks then show the photos of the
        # answers. If `draw` is None, notebooks show no photos.
        self.draw: Callable[[Hit], str] | None = None
        self._opened: dict[str, Gallery] = {}
        self._packed: dict[str, RowTable] = {}
        self._tables: dict[str, pa.Table] = {}

    @cached_property
    def text_index(self) -> TextIndex:
        """The full-text index of the captions, file names and columns. It is opened, or made, when it is first used.
        Raises UsageError if SQLite cannot make it."""
        return TextIndex(self.index, self._hidden)

    def images(
        self, sentence: str, top: int, where: str | None = None, match_text: bool = True,
        minus: Sequence[str] = (), plus: Sequence[str] = (), sort: str | None = None,
    ) -> Answer:  # fmt: skip
        """Find the `top` images that are nearest to a text.

        With `match_text`, images whose captions, file names or columns have all words of the text are found too, and
        are merged with the nearest images by their ranks. Images with the text as an identifier come first. The vectors
        of the texts in `minus` are subtracted from the vector of the text, and the vectors of the texts in `plus` are
        added. If `minus` or `plus` has a text, the answer has no judgement, and `match_text` has no effect. `sort` is a
        column by which the likely matches are sorted (see `sort_likely`). A minus sign before the name of the column
        reverses the order. With the condition `where`, only images that satisfy it are found.

        Raises InputError if the text is blank, if the model knows no word of the text and no image matches its words,
        if the model knows no word of a text in `minus` or `plus`, or if the vector of the query is zero. Raises
        UsageError if `where` is not a valid condition, if `sort` is not a column whose values have an order, if the
        model cannot add vectors of texts, or if the index cannot embed any text and no image matches the words.
        """
        if sort is not None:
            # The import is here, because queries without a sort column do not need pyarrow.compute.
            from pipeline.index.conditions import Column, kind_of, values_of

            values = values_of(self._visible(self.rows("images").schema.empty_table()), Column(sort.removeprefix("-")))
            if kind_of(values.type) == "nothing":
                raise UsageError(
                    f"The results cannot be sorted by the column {sort.removeprefix('-')}, because its values have the"
                    f" type {values.type}, which has no order. Sort by another column."
                )
            found = self.images(sentence, max(top, MAX_SORTED), where, match_text, minus, plus)
            return sort_likely(found, sort, top)
        if minus or plus:
            self.require_known(sentence)
            return self.analogy(lambda: self.embed_sentence(sentence), minus, plus, top, 0, where)
        (answer,) = self.batch([sentence], top, where, match_text)
        if answer.error:
            raise InputError(answer.error)
        return answer

    def images_by_text_vector(self, query: np.ndarray, top: int, where: str | None = None) -> Answer:
        """Find the `top` images that are nearest to `query`, the joint-space vector (1, c) of a text.

        Words are not searched as text, because the text is not known. Unknown words therefore do not count in the
        judgement either. `where` is a condition on the columns of the images. Raises InputError if the vector is zero.
        """
        return self._answer([""], query, top, where, False)[0]

    def _answer(
        self, sentences: Sequence[str], queries: Items, top: int, where: str | None, match_text: bool
    ) -> list[Answer]:
        """Find the `top` images that are nearest to each of the `queries`, which are the embedded `sentences`.

        A sentence is empty if only its vector is known. With `match_text`, images whose texts have all words of a
        sentence are merged with the nearest images. If the index is calibrated, each answer has a judgement.
        """
        allowed = self.allowed("images", where)
        gallery = self._require_fit("images", queries)
        neighbours = gallery.search(queries, top, allowed)
        ranked = [neighbours.of_query(number) for number in range(len(queries))]
        each = [queries[row : row + 1] for row in range(len(queries))] if isinstance(queries, np.ndarray) else None
        single = each or [*several_vectors_each(queries).blocks(1)]
        matches = [self._match(sentence, allowed) if match_text else None for sentence in sentences]
        for number, found in enumerate(matches):
            if found:
                ranked[number] = self._merge(single[number], found, top, allowed)
        answers = self._list_hits("images", ranked, matches)
        if each and not explain_missing_line(self.index):
            count = len(gallery) if allowed is None else int(allowed.sum())
            is_sample = not where or not where.strip()
            for sentence, query, answer in zip(sentences, each, answers, strict=True):
                answer._judge = partial(self._judge, sentence, query, count, is_sample)
        return answers

    def _match(self, sentence: str, allowed: np.ndarray | None) -> TextMatches | None:
        """Find the images whose texts have all words of a query, by the full-text index.

        Return None if no image has all words, if too many photos have them, or if the query has no words or too many
        words to be searched as text. `allowed` (n,) bool says which images may be found, or is None if all may.
        """
        query = TextQuery.parse(sentence)
        matches = self.text_index.search(query, allowed) if query else None
        return matches if matches and matches.ranks else None

    def _merge(
        self, query: Items, matches: TextMatches, top: int, allowed: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Merge the images that are nearest to a query with the images that match its words, by their ranks.

        `query` is a single embedded text, and `allowed` (n,) bool says which images may be found, or is None for all.
        Returns the rows (k,) of the `top` best images, and their scores (k,) by their vectors. Images with the query as
        an identifier come first. The other images that match the words, or whose score reaches the threshold of the
        calibration, come second, and the remaining images last. Without a calibration, no image is in the last group.
        Each group is sorted by the points of reciprocal rank fusion (see RANK_OFFSET). A larger `top` begins with the
        same images.
        """
        gallery = self.gallery("images")
        matching = np.zeros(self.rows("images").num_rows, bool)
        matching[list(matches.ranks)] = True
        nearest = gallery.search(query, max(top, MAX_FUSED), allowed).of_query(0)
        scores = {}
        for rows, values in (nearest, gallery.search(query, len(matches.ranks), matching).of_query(0)):
            scores |= zip(rows.tolist(), values.tolist(), strict=True)
        fused = np.round(nearest[1][:MAX_FUSED], 6)
        ranks = np.searchsorted(-fused, -fused)  # Equal scores have the same rank.
        points = dict(zip(nearest[0].tolist(), (1 / (RANK_OFFSET + 1 + ranks)).tolist(), strict=False))
        for row, rank in matches.ranks.items():
            points[row] = points.get(row, 0) + 1 / (RANK_OFFSET + 1 + rank)
        least = -math.inf
        if self.calibration and isinstance(query, np.ndarray):
            least = self.calibration.threshold(query)

        def order(row: int) -> tuple[bool, bool, float, float, int]:
            is_likely = row in matches.ranks or scores[row] >= least
            return row not in matches.exact, not is_likely, -points.get(row, 0), -scores[row], row

        merged = sorted((row for row in scores if row >= 0), key=order)[:top]
        return np.array(merged, np.int64), np.array([scores[row] for row in merged], np.float32)

    def _judge(
        self, sentence: str, query: np.ndarray, count: int, is_sample: bool, scores: Sequence[float]
    ) -> Judgement:
        """Judge the results of the query `sentence`. `count` photos were searched, and `scores` are the scores of the
        hits.

        `query` (1, c) is the vector of the query. `sentence` is empty if only this vector is known. `is_sample` says
        whether the searched photos resemble the background of the calibration. It is false for photos that satisfy a
        condition, because such photos may differ from the background. If it is false, the number of likely matches
        among the searched photos is only known if all of these photos are hits.
        """
        words = self.count_words(sentence) if sentence else (0, 0)
        assert self.calibration is not None  # `_answer` has checked the card.
        return self.calibration.judge(query, scores, count if is_sample or len(scores) == count else None, words)

    @cached_property
    def calibration(self) -> Calibration | None:
        """The calibration of the index, which says which results are likely matches. It is None if the index has no
        calibration, or if too many photos have changed since `jointspace calibrate`."""
        return Calibration.of_index(self.index)

    def batch(
        self, sentences: Sequence[str], top: int, where: str | None = None, match_text: bool = True
    ) -> list[Answer]:
        """Find the `top` images that are nearest to each of many texts. Returns one answer per text, in their order.

        The texts are encoded together, and the index is searched once. `where` is a condition on the columns of the
        images. With `match_text`, images whose captions, file names or columns have all words of a text are found too.
        A text for which `images` would raise InputError gets an empty answer whose `error` is the message. Other
        errors, such as a UsageError for a wrong condition, are raised.
        """
        if len(sentences) > 1:
            self._keep("images")  # Otherwise the next batch would unpack the table again.
        answers = [self._answer_unknown(sentence, top, where, match_text) for sentence in sentences]
        valid = [number for number, answer in enumerate(answers) if answer is None]
        queries = self.embed_sentences([sentences[number] for number in valid]) if valid else np.empty((0, 0))
        if isinstance(queries, np.ndarray):
            directed = queries.any(axis=1)
            for row in np.flatnonzero(~directed).tolist():
                answers[valid[row]] = Answer(error=NO_DIRECTION)
            valid = np.array(valid, np.int64)[directed].tolist()
            queries = queries[directed]
        if valid:
            found = self._answer([sentences[number] for number in valid], queries, top, where, match_text)
            for number, answer in zip(valid, found, strict=True):
                answers[number] = answer
        return [answer for answer in answers if answer is not None]

    def _answer_unknown(self, sentence: str, top: int, where: str | None, match_text: bool) -> Answer | None:
        """Answer a text that the model cannot embed, with the `top` images that match its words and satisfy `where`.
        Return None for a text that the model can embed.

        Images that have the text as an identifier come first, and the others follow by their rank in the full-text
        search. All hits have the score 0. If no image matches, or if `match_text` is false, the answer is empty and has
        the message of `require_known` as its `error`. If the model cannot embed any text, the UsageError of
        `require_known` is raised instead, unless the index has no text encoder and an image matches.
        """
        try:
            self.require_known(sentence)
            return None
        except (InputError, UsageError) as error:
            cannot_embed = isinstance(error, UsageError)
            if cannot_embed and self.index.card.text_encoders:  # For example, the encoder's code is not allowed.
                raise
            matches = self._match(sentence, self.allowed("images", where)) if match_text else None
            if matches is None and cannot_embed:
                raise
            if matches is None:
                return Answer(error=str(error))
        rows = sorted(matches.ranks, key=lambda row: (row not in matches.exact, matches.ranks[row], row))[:top]
        return self._list_hits("images", [(np.array(rows, np.int64), np.zeros(len(rows)))], [matches])[0]

    def regions(self, snippet: str, top: int, where: str | None = None) -> Answer:
        """Find the `top` best regions for the words of a `snippet`, at most one region per image.

        The score of a region is the sum of the inner products of its vector with the vectors of all words. The row of a
        hit is the row of the image, with the additional key `box`: x1, y1, x2, y2 of the region in pixels of the
        original image. With the condition `where`, only images that satisfy it are found. Raises InputError if the
        model knows no word, and UsageError if the model does not compare regions.
        """
        if not self.multi_vector:
            raise UsageError(
                f"Regions cannot be searched, because the model {self.index.card.model} does not compare image regions."
                " Use the index of a region model, such as dvsa."
            )
        self.require_known(snippet)
        words = several_vectors_each(self.embed_sentence(snippet))
        gallery = with_regions(self._require_fit("images", words))
        rows, scores, boxes = gallery.regions(words.array, top, self.allowed("images", where))
        (hits,) = self._list_hits("images", [(rows, scores)])
        return Answer(
            Hit(hit.rank, hit.score, {**hit.row, "box": box}) for hit, box in zip(hits, boxes.tolist(), strict=True)
        )

    def sentences(self, photograph: Photograph, top: int, where: str | None = None) -> Answer:
        """Find the `top` captions that are nearest to an image. Raises UsageError if the index has no captions.

        With the condition `where`, only captions of images that satisfy it are found.
        """
        if not self.has("sentences"):
            raise UsageError(
                f"No captions can be found for a photo, because the index of the model {self.index.card.model} has no"
                " captions. Search for similar photos instead (`jointspace search INDEX --image FILE --similar`)."
            )
        allowed = self.allowed("sentences", where)
        return self._rank("sentences", self.embed_photograph(photograph), top, allowed)[0]

    def similar(
        self, photograph: Photograph, top: int, sentence: str | None = None, weight: float = 0.5,
        where: str | None = None,
    ) -> Answer:  # fmt: skip
        """Find the `top` images that are nearest to an image, or to an image and a text `sentence`.

        The query of an image and a text is the sum of their unit vectors: the text's vector times `weight`, and the
        image's vector times 1 - `weight`. With a multi-vector model, which accepts no text here, the regions of the
        image are used like the words of a text. Raises InputError if the model knows no word of the text, or if the
        vectors cancel each other out. Raises UsageError if `weight` is not from 0 to 1, or if the model's vectors of
        texts and images cannot be added. `weight` is ignored without a text. With the condition `where`, only images
        that satisfy it are found.
        """
        if sentence is not None:
            if not 0 <= weight <= 1:
                raise UsageError(f"The weight of the text is {weight:g}, but must be from 0 to 1. Change the weight.")
            self.require_known(sentence)
            self._require_sums()
        allowed = self.allowed("images", where)
        query = self.embed_photograph(photograph)
        if sentence is not None:
            query = blend(one_vector_each(query), one_vector_each(self.embed_sentence(sentence)), weight)
        return self._rank("images", query, top, allowed)[0]

    def has(self, modality: Modality) -> bool:
        """Return whether the index contains any `images` or `sentences` that can be found."""
        card = self.index.card.index_of(modality)
        return bool(card and card.count)

    def embed_photograph(self, photograph: Photograph) -> Items:
        """Embed an image in any of the forms of Photograph.

        Raises InputError if the index of a multi-vector model does not contain the image, and UsageError if the
        features of an encoder of the model are missing.
        """
        if callable(photograph):
            photograph = photograph()
        if isinstance(photograph, Items):
            return photograph
        if isinstance(photograph, Mapping):
            return self.embed_image(photograph)
        rows = np.flatnonzero(self.table("images")["sha256"].to_numpy() == hashlib.sha256(photograph).hexdigest())
        if not len(rows):
            raise InputError(
                f"The model {self.index.card.model} compares photos by their regions, so the photo must be one of the"
                " photos of the index. Add the photo to the collection and run `jointspace run CONFIG`, or use the"
                " index of a model with one vector per photo, such as ncca."
            )
        return with_regions(self.gallery("images")).item(int(rows[0]))

    def _require_sums(self) -> None:
        """Raise UsageError if the model's vectors of texts and images cannot be added, because it has several vectors
        per item or compares by the Euclidean distance."""
        model = self.index.card.model
        if self.multi_vector:
            raise UsageError(
                f"Words cannot be added to a photo with the model {model}, or subtracted from a query, because this"
                " model has several vectors per photo, one per region. Use the index of a model with one vector per"
                " photo, such as ncca."
            )
        if self.index.card.metric != "inner_product":
            raise UsageError(
                "Words can only be added to a photo, or subtracted from a query, with a model that compares by cosine,"
                f" but {model} uses the Euclidean distance. Use the index of another model, such as ncca."
            )

    def analogy(
        self, photograph: Photograph, minus: Sequence[str], plus: Sequence[str], top: int, among: int,
        where: str | None = None,
    ) -> Answer:  # fmt: skip
        """Find the `top` images for an image without the words `minus` and with the words `plus`.

        The vectors of the words are subtracted from and added to the vector of the image (Kiros et al. 2014, section
        3.2). The method `images` passes a function that embeds a text in place of the image. The `among` best results
        are then sorted again: the mean of their vectors is computed, and the results whose vectors are nearest to the
        mean come first. A poor result among good results therefore comes last. If `among` is 0 or 1, or if the index
        cannot return its vectors, the results stay sorted by their scores. With the condition `where`, only images that
        satisfy it are found.

        Raises InputError if `minus` and `plus` are empty, if the model knows no word of one of their texts, or if the
        vectors cancel each other out. Raises UsageError if the model's vectors of texts and images cannot be added.
        """
        if not (*minus, *plus):
            raise InputError("No words change the image. Name at least one word to subtract or to add.")
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
        rows, scores = gallery.search(query, max(top, among), allowed).of_query(0)
        if among > 1 and len(rows):
            with suppress(RuntimeError):  # Some types of index cannot return their vectors.
                vectors = gallery.reconstruct(rows[:among])
                order = np.argsort(np.linalg.norm(vectors - vectors.mean(axis=0), axis=1), kind="stable")
                rows[:among], scores[:among] = rows[order], scores[order]
        return self._list_hits("images", [(rows[:top], scores[:top])])[0]

    def open(self) -> None:
        """Read the model, the FAISS indexes and the tables now, except large tables, whose rows are read when needed.

        Afterwards, threads may share the searcher.
        """
        _ = self.model, self.calibration
        for modality in MODALITIES:
            if self.has(modality):
                self.gallery(modality)
                self._keep(modality)

    def check(self) -> None:
        """Open all files that any query needs, and check them.

        Raises IntegrityError if a search would fail because of a damaged file. Raises UsageError if something that
        queries need is missing, such as a library on this machine or the encoder of precomputed vectors.
        """
        self.index.check_rows()
        self.open()
        _ = self._forms
        if not self.multi_vector:
            for encoder in self.stored_encoders().values():
                encoder.open()

    def gallery(self, modality: Modality) -> Gallery:
        """Return the gallery of the `images` or `sentences`. It is opened by the first call, and then kept open."""
        if modality not in self._opened:
            self._opened[modality] = open_gallery(self.index, modality)
        return self._opened[modality]

    def table(self, modality: Modality) -> pa.Table:
        """Return the whole table of the `images` or `sentences` without the hidden columns, and keep it in memory."""
        if modality not in self._tables:  # Taking rows from a table of many chunks is slow.
            self._tables[modality] = self._visible(self.index.table(modality)).combine_chunks()
        return self._tables[modality]

    def is_kept(self, modality: Modality) -> bool:
        """Return whether searches keep the table of the `images` or `sentences` in memory.

        The table is kept if it has at most MAX_ROWS_IN_MEMORY rows, or if the index hides any photos
        (`StoredIndex.hidden`). Otherwise each search reads the rows of its results from the file.
        """
        return self.rows(modality).num_rows <= MAX_ROWS_IN_MEMORY or bool(self.index.hidden)

    def _keep(self, modality: Modality) -> None:
        """Read the table of the `images` or `sentences` into memory and keep it, if `is_kept` is true."""
        if self.is_kept(modality):
            self.table(modality)

    def rows(self, modality: Modality) -> RowTable:
        """Return the opened table of the `images` or `sentences`, whose rows are read from the file on request. It also
        has the hidden columns."""
        if modality not in self._packed:
            self._packed[modality] = self.index.packed_table(modality)
        return self._packed[modality]

    def records(self, modality: Modality, rows: np.ndarray) -> list[dict[str, Any]]:
        """Return the table rows with the numbers `rows` (k,) as column -> value, in this order and without the hidden
        columns."""
        kept = self._tables.get(modality)
        if kept is not None:
            return kept.take(rows).to_pylist()
        records = self.rows(modality).records(rows)
        return [{name: record[name] for name in record if name not in self._hidden} for record in records]

    def groups(self, modality: Modality) -> Iterator[pa.Table]:
        """Yield all rows of a table in order, without the hidden columns.

        The rows are a single table if the table is kept in memory. Otherwise they are several tables, which are read in
        turn.
        """
        self._keep(modality)
        kept = self._tables.get(modality)
        return map(self._visible, self.rows(modality).groups()) if kept is None else iter([kept])

    def _visible(self, table: pa.Table) -> pa.Table:
        """Return `table` without the hidden columns."""
        return table.drop_columns([name for name in table.column_names if name in self._hidden])

    @property
    def columns(self) -> dict[str, str]:
        """The columns that are offered to users for conditions, as name -> kind. The kind says which literals the
        column can be compared with: `numbers`, `truth`, `dates` or `text`, or `nothing` if the column cannot be
        compared."""
        # The import is here, because queries without a condition do not need pyarrow.compute.
        from pipeline.index.conditions import filterable_columns

        return filterable_columns(self._visible(self.rows("images").schema.empty_table()))

    def allowed(self, modality: Modality, where: str | None) -> np.ndarray | None:
        """Return for each of the n rows of the `images` or `sentences` whether it may be found, as (n,) bool.

        An image or sentence may be found if it was not removed, and if the condition `where` is true for the image.
        Return None if `where` is None or blank and no rows are hidden. Raises UsageError if `where` is not valid.
        """
        asked = where if where and where.strip() else None
        if asked is None and not self.index.hidden:
            return None
        from pipeline.index.conditions import Predicate

        condition = Predicate(asked or "image_id >= 0")
        allowed = []
        ids = []
        for images in self.groups("images"):
            rows = condition.rows(images)
            if images["path"].null_count:  # The columns of removed rows are null.
                rows = rows & images["path"].is_valid().to_numpy()
            allowed.append(rows)
            if modality != "images":
                ids.append(images["image_id"].to_numpy()[rows])
        if modality == "images":
            return np.concatenate(allowed)
        ids = np.concatenate(ids)
        return np.concatenate(
            [
                np.isin(sentences["image_id"].to_numpy(), ids) & sentences["text"].is_valid().to_numpy()
                for sentences in self.groups(modality)
            ]
        )

    def _list_hits(
        self, modality: Modality, answers: Sequence[tuple[np.ndarray, np.ndarray]],
        matches: Sequence[TextMatches | None] = (),
    ) -> list[Answer]:  # fmt: skip
        """Build one Answer per query from the rows and scores of its results, which keep their order.

        `answers` has, for each query, the rows (k,) in the table of the modality and the scores (k,). `matches` has,
        for each query, the images that match its words, or None. `matches` is empty if no words were searched. Raises
        IntegrityError if a row is not in the table.
        """
        count = self.rows(modality).num_rows
        rows = np.concatenate([rows for rows, _ in answers])
        if len(rows) and not 0 <= rows.min() <= rows.max() < count:
            raise IntegrityError(
                f"The index of {modality} in {self.index.folder} has ids that are not in 0 to {count - 1}, the rows of"
                f" {modality}.parquet. {REBUILD}"
            )
        # Many small objects would start the garbage collection, although none of them is garbage.
        with without_collection():
            records = iter(self.records(modality, rows))  # The rows of all answers are read at once.
            found = [
                Answer(Hit(rank, score, next(records)) for rank, score in enumerate(scores.tolist(), 1))
                for _, scores in answers
            ]
        for answer in found if modality == "images" else ():
            answer._draw = self.draw
        for answer, (numbers, _), matching in zip(found, answers, matches, strict=False):
            answer.identified = len(matching.exact) if matching else 0
            for place, row in enumerate(numbers.tolist() if matching else ()):
                if matching and row in matching.ranks:
                    answer[place] = replace(answer[place], matches=matching.query.fields_of(answer[place].row))
        return found

    def _require_fit(self, modality: Modality, queries: Items) -> Gallery:
        """Return the gallery of a modality, after a check that these `queries` can be searched in it.

        Raises IntegrityError if the gallery is empty or has other dimensions than the queries, and InputError if each
        query has one vector and one of these vectors is zero.
        """
        gallery = self.gallery(modality)
        vectors = queries.array if isinstance(queries, MultiVectors) else queries
        if vectors.shape[1] != gallery.dim or not len(gallery):
            raise IntegrityError(
                f"The model in {self.index.folder} computes vectors of {vectors.shape[1]} dimensions, but the index of"
                f" {modality} has {len(gallery)} items of {gallery.dim} dimensions. {REBUILD}"
            )
        if isinstance(queries, np.ndarray) and not queries.any(axis=1).all():
            raise InputError(NO_DIRECTION)
        return gallery

    def nearest(self, modality: Modality, queries: Items, top: int, where: str | None = None) -> list[Answer]:
        """Find the `top` items (images or sentences, as `modality` says) that are nearest to each of the `queries`,
        which are already embedded in the joint space. Returns one answer per query.

        Texts are searched by `batch`, which also searches for their words. With the condition `where`, only images that
        satisfy it, or their captions, are found.
        """
        return self._rank(modality, queries, top, self.allowed(modality, where))

    def _rank(self, modality: Modality, queries: Items, top: int, allowed: np.ndarray | None) -> list[Answer]:
        neighbours = self._require_fit(modality, queries).search(queries, top, allowed)
        return self._list_hits(modality, [neighbours.of_query(query) for query in range(len(queries))])


def sort_likely(answer: Answer, column: str, top: int) -> Answer:
    """Sort the likely matches of an answer by a column (see `_sort_hits`), and return the first `top` hits as a new
    answer with ranks from 1.

    Hits with the query as an identifier stay before the other hits, and are sorted among themselves. The less likely
    hits follow unsorted. An answer without a judgement is sorted completely if the text search has found all of its
    hits, so that each hit has `matches`. If some hits of such an answer have no `matches`, only the `top` best hits are
    sorted.
    """
    every = len(answer) if all(hit.matches for hit in answer) else top
    likely = answer.judgement.likely if answer.judgement else every
    first = answer[: answer.identified]
    others = answer[answer.identified : likely]
    hits = [*_sort_hits(first, column), *_sort_hits(others, column), *answer[len(first) + len(others) :]][:top]
    ordered = Answer(replace(hit, rank=rank) for rank, hit in enumerate(hits, 1))
    ordered.identified = answer.identified
    ordered._judge = answer._judge
    ordered._draw = answer._draw
    return ordered


def _sort_hits(hits: Sequence[Hit], column: str) -> list[Hit]:
    """Sort hits by a column: dates from the newest, and other values from the smallest.

    A minus sign before the name of the column reverses this. Hits whose value is missing or NaN come last in any case.
    """
    name = column.removeprefix("-")
    # NaN is the only value that is not equal to itself.
    known = [hit for hit in hits if hit.row[name] is not None and hit.row[name] == hit.row[name]]
    newest_first = any(isinstance(hit.row[name], date) for hit in known[:1])
    known.sort(key=lambda hit: hit.row[name], reverse=newest_first != column.startswith("-"))
    return [*known, *(hit for hit in hits if hit.row[name] is None or hit.row[name] != hit.row[name])]


def blend(image: np.ndarray, sentence: np.ndarray, weight: float) -> np.ndarray:
    """Return the weighted sum of the unit vectors of an image and a text, scaled to unit length, as (1, c) float32.

    `image` (1, c) and `sentence` (1, c) are first scaled to unit length. The sum is (1 - weight) * image + weight *
    sentence. Raises InputError if one of the two vectors or the sum is zero.
    """
    return _unit((1 - weight) * _unit(image[0]).astype(np.float64)[0] + weight * _unit(sentence[0])[0])


def compose(image: np.ndarray, minus: np.ndarray, plus: np.ndarray) -> np.ndarray:
    """Subtract word vectors from the vector of an image and add others: (q - w_n + w_p) / |q - w_n + w_p|.

    This is eq. 15 of Kiros et al. 2014. q is `image` (1, c), w_n is the sum of the rows of `minus` (a, c), and w_p is
    the sum of the rows of `plus` (b, c), with one row for each word. All vectors must have unit length. Returns (1, c)
    float32. Raises InputError if q - w_n + w_p is zero.
    """
    query = image[0].astype(np.float64) - minus.sum(axis=0, dtype=float) + plus.sum(axis=0, dtype=float)
    return _unit(query)


def _unit(query: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(query)
    if length < np.sqrt(np.finfo(np.float32).eps):
        raise InputError(
            "The photo or text of this query and its other words cancel each other out, so nothing is left to search"
            " for. Use other words."
        )
    return (query / length).astype(np.float32)[None]
