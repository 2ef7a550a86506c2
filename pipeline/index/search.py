"""Searching a bundle: images by a sentence, sentences by an image."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import faiss
import numpy as np
import pyarrow as pa

from pipeline.errors import MALFORMED, InputError, IntegrityError, UsageError, brief
from pipeline.index.arithmetic import compose, search_around_mean
from pipeline.index.format import REBUILD, open_index
from pipeline.index.format import Parts as IndexParts
from pipeline.index.query_trees import QueryParser, lacking
from pipeline.specs.stored import restore
from pipeline.text.sequences import encode_tokens
from pipeline.text.tfidf import encode
from pipeline.text.tokens import make_analyzer
from pipeline.text.vocabulary import Vocabulary

FORMS = {"tfidf": encode, "tokens": encode_tokens}
"""How a sentence becomes what a model of that `sentence_view` takes; `each` is a mapping of them all. Trees are parsed:
see QueryParser."""


class Parts(IndexParts, Protocol):
    """What a search needs of a bundle; pipeline.storage.bundle.Bundle has it."""

    def table(self, modality: str) -> pa.Table: ...
    def packed_table(self, modality: str) -> Any: ...
    def vocabulary(self) -> Mapping[str, Any]: ...
    def labels(self) -> Mapping[str, Any]: ...
    def parser(self) -> Any: ...
    def model(self) -> Any: ...


@dataclass(frozen=True)
class Hit:
    """One result: its rank from 1, its score (the greater the better), and its row of the bundle's table."""

    rank: int
    score: float
    row: Mapping[str, Any]


class Searcher:
    """Answers queries from a bundle's indices; each part is read when it is first needed.

        searcher = Searcher(Bundle("results/demo/index/ncca"))
        searcher.images("a dog runs on grass", top=10)[0].row["path"]

    A score is the inner product of unit vectors, or minus the squared distance where the metric is euclidean.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._opened: dict[str, Any] = {}
        self._packed: dict[str, Any] = {}
        self._tables: dict[str, pa.Table] = {}

    def images(self, sentence: str, top: int) -> list[Hit]:
        """The `top` images nearest to `sentence`. Raises InputError when none of its words is known."""
        self.require_known(sentence)
        return self._nearest("images", self.embed_sentence(sentence), top)

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
            found = iter(self._nearest_of_each("images", np.concatenate(embedded), top))
            answers = [answer if isinstance(answer, InputError) else next(found) for answer in answers]
        return answers

    def sentences(self, features: Mapping[str, np.ndarray], top: int) -> list[Hit]:
        """The `top` sentences nearest to an image, given as encoder name -> (1, dim) float32.

        pipeline.index.query.image_features makes these of a photograph, and needs torch for it.
        """
        return self._nearest("sentences", self._embed_image(features), top)

    def analogy(
        self, features: Mapping[str, np.ndarray], minus: Sequence[str], plus: Sequence[str], top: int, among: int
    ) -> list[Hit]:
        """The `top` images for an image less the words `minus` plus the words `plus` (Kiros et al. 2014, section 3.2).

        The `among` nearest are re-sorted by their distance to their mean. Raises as `require_words`.
        """
        if self.parts.card["metric"] != "inner_product":
            raise UsageError("words are added to images as unit vectors, and this model has none; use another row")
        self.require_words(minus, plus)
        image = self._embed_image(features)
        words = [np.concatenate([image[:0], *map(self.embed_sentence, chosen)]) for chosen in (minus, plus)]
        query = compose(image, *words)
        self._require_fit("images", query)
        rows, scores = search_around_mean(self._open("images"), query, top, among)
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
            self._tables[modality] = self.parts.table(modality).combine_chunks()
        return self._tables[modality]

    def embed_sentence(self, sentence: str) -> np.ndarray:
        """(1, c) float32, `sentence` in the joint space."""
        form = self._encode(sentence)
        return self._computed(lambda: self._model.embed_sentences(form))

    def _embed_image(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """(1, c) float32. Raises UsageError where an encoder of the model is missing among the features."""
        if missing := [name for name in self.encoders if name not in features]:
            raise UsageError(
                f"{self.parts.folder} has no encoder {missing[0]}, whose features were imported, so that it cannot be"
                " searched with a photograph; build the index of a model on encoders of the run"
            )
        return self._computed(lambda: self._model.embed_images(features))

    def _computed(self, embed: Callable[[], np.ndarray]) -> np.ndarray:
        """What the model makes of a query. IntegrityError where it does not fit the bundle's vocabulary or encoders."""
        try:
            vectors = embed()
        except (*MALFORMED, IntegrityError) as error:
            raise IntegrityError(
                f"the model in {self.parts.folder} does not fit its vocabulary or encoders ({brief(error)}); {REBUILD}"
            ) from error
        if vectors.ndim != 2 or not np.isfinite(vectors).all():
            raise IntegrityError(f"the model in {self.parts.folder} makes no finite vectors; {REBUILD}")
        return vectors

    def unknown_words(self, sentence: str) -> list[str]:
        """The words of `sentence` that no vocabulary of the model has, so that nothing is searched for them."""
        lists = []
        for name, one in self._vocabularies.items():
            others = [other for view, other in self._vocabularies.items() if view != name]
            unknown = one.unknown_words(sentence)
            lists.append([word for word in unknown if all(other.unknown_words(word) for other in others)])
        return min(lists, key=len)  # a vocabulary of lemmas may name one that the others know in another form alone

    def require_words(self, minus: Sequence[str], plus: Sequence[str]) -> None:
        """Raises InputError where there are no words to change an image by, and as `require_known` for each."""
        if not (*minus, *plus):
            raise InputError("no words change the image; give a word to take away or to add")
        for word in (*minus, *plus):
            self.require_known(word)

    def require_known(self, sentence: str) -> None:
        """Raises InputError where `sentence` is blank, and naming its words when no vocabulary has any of them."""
        if not sentence.strip():
            raise InputError("the sentence is empty; write some words")
        known = [(make_analyzer(one.settings)(sentence), one.index) for one in self._vocabularies.values()]
        terms = dict.fromkeys(term for own, _ in known for term in own)
        if not any(term in index for own, index in known for term in own):
            words = ", ".join(term for term in terms if " " not in term) or "it has only stop words and signs"
            raise InputError(f"no word of {sentence!r} is in the vocabulary ({words}); use other words")

    @property
    def encoders(self) -> tuple[str, ...]:
        """The encoders whose features `sentences` takes."""
        return self._model.encoders

    def _encode(self, sentence: str) -> Any:
        """`sentence` alone in the form that the model takes."""
        forms = {
            view: FORMS[view]([sentence], known) if view in FORMS else self._parser.trees(sentence, view, known)
            for view, known in self._vocabularies.items()
        }
        return forms if self._model.sentence_view == "each" else forms[self._model.sentence_view]

    @cached_property
    def _parser(self) -> QueryParser:
        return QueryParser(self.parts.parser(), self.parts.card["parse"]["max_words"], self.parts.labels())

    @cached_property
    def _model(self) -> Any:
        parameters = self.parts.model()
        model = restore(self.parts.card["registered"], parameters.settings, parameters.tensors, where=self.parts.folder)
        names = getattr(model, "encoders", ())
        if not all(isinstance(name, str) for name in names):
            raise IntegrityError(f"the model in {self.parts.folder} names its encoders {names}; {REBUILD}")
        return model

    @cached_property
    def _vocabularies(self) -> dict[str, Vocabulary]:
        """By the form of sentences that each is for; a model that takes `each` has several. Raises UsageError for one
        that takes trees where there is no parser to make them of a query."""
        value, view = self.parts.vocabulary(), self._model.sentence_view
        views = value["views"] if view == "each" else {view: value}
        parsed = [name for name in views if name not in FORMS]
        if parsed and (remedy := lacking(self.parts.card.get("parse"))):
            raise UsageError(
                f"{self.parts.card['model']} reads {parsed[0].replace('-', ' ')}, and a query in words is not parsed:"
                f" search with a photograph (--image), or the index of a row that reads plain words, or {remedy}"
            )
        return {name: Vocabulary.from_dict(one) for name, one in views.items()}

    def _open(self, modality: str) -> faiss.Index:
        if modality not in self._opened:
            self._opened[modality] = open_index(self.parts, modality)
        return self._opened[modality]

    def _packed_table(self, modality: str) -> Any:
        if modality not in self._packed:
            self._packed[modality] = self.parts.packed_table(modality)
        return self._packed[modality]

    def _list_hits(self, modality: str, rows: np.ndarray, scores: np.ndarray) -> list[Hit]:
        """The `rows` (k,) of a modality's table with their `scores` (k,), ranked as they come."""
        kept = self._tables.get(modality)
        count = self._packed_table(modality).num_rows if kept is None else kept.num_rows
        if len(rows) and not 0 <= min(rows) <= max(rows) < count:
            raise IntegrityError(
                f"the index of {modality} in {self.parts.folder} numbers rows beyond the {count} of {modality}.parquet;"
                f" {REBUILD}"
            )
        records = self._packed_table(modality).records(rows) if kept is None else kept.take(rows).to_pylist()
        ranked = enumerate(zip(scores, records, strict=True), 1)
        return [Hit(rank, float(score), record) for rank, (score, record) in ranked]

    def _nearest(self, modality: str, query: np.ndarray, top: int) -> list[Hit]:
        return self._nearest_of_each(modality, query, top)[0]

    def _require_fit(self, modality: str, queries: np.ndarray) -> faiss.Index:
        """The index of a modality; IntegrityError where the model's `queries` are not of its dimensions."""
        index = self._open(modality)
        if queries.shape[1] != index.d or not index.ntotal:
            raise IntegrityError(
                f"the model in {self.parts.folder} makes {queries.shape[1]} dimensions, and its index of {modality} has"
                f" {index.ntotal} vectors of {index.d}; {REBUILD}"
            )
        return index

    def _nearest_of_each(self, modality: str, queries: np.ndarray, top: int) -> list[list[Hit]]:
        index = self._require_fit(modality, queries)
        scores, rows = index.search(np.ascontiguousarray(queries, np.float32), min(top, index.ntotal))
        sign = -1 if index.metric_type == faiss.METRIC_L2 else 1
        found = rows >= 0  # an inverted file pads with -1 when the lists that it visits hold too few
        return [self._list_hits(modality, rows[i][found[i]], sign * scores[i][found[i]]) for i in range(len(rows))]
