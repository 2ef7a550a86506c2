"""Searching a bundle: images by a sentence, sentences by an image."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import faiss
import numpy as np
import pyarrow as pa

from pipeline.errors import InputError
from pipeline.index.format import from_bytes
from pipeline.models import model_class
from pipeline.text.sequences import encode_tokens
from pipeline.text.tfidf import encode
from pipeline.text.tokens import make_analyzer
from pipeline.text.vocabulary import Vocabulary

FORMS = {"tfidf": encode, "tokens": encode_tokens}
"""How a sentence becomes what a model of that `sentence_view` takes."""


class Parts(Protocol):
    """What a search needs of a bundle; pipeline.storage.bundle.Bundle has it."""

    card: Mapping[str, Any]

    def index(self, modality: str) -> bytes: ...
    def table(self, modality: str) -> pa.Table: ...
    def vocabulary(self) -> Mapping[str, Any]: ...
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
        self._opened: dict[str, tuple[faiss.Index, pa.Table]] = {}

    def images(self, sentence: str, top: int) -> list[Hit]:
        """The `top` images nearest to `sentence`. Raises InputError when none of its words is known."""
        self.require_known(sentence)
        form = FORMS[self._model.sentence_view]([sentence], self._vocabulary)
        return self._nearest("images", self._model.embed_sentences(form), top)

    def sentences(self, features: Mapping[str, np.ndarray], top: int) -> list[Hit]:
        """The `top` sentences nearest to an image, given as encoder name -> (1, dim) float32.

        pipeline.index.query.image_features makes these of a photograph, and needs torch for it.
        """
        return self._nearest("sentences", self._model.embed_images(features), top)

    def require_known(self, sentence: str) -> None:
        """Raises InputError naming the words of `sentence` when the vocabulary has none of them."""
        terms = dict.fromkeys(make_analyzer(self._vocabulary.settings)(sentence))
        if not any(term in self._vocabulary.index for term in terms):
            words = ", ".join(term for term in terms if " " not in term) or "it has only stop words and signs"
            raise InputError(f"no word of {sentence!r} is in the vocabulary ({words}); use other words")

    @property
    def encoders(self) -> tuple[str, ...]:
        """The encoders whose features `sentences` takes."""
        return self._model.encoders

    @cached_property
    def _model(self) -> Any:
        parameters = self.parts.model()
        return model_class(self.parts.card["registered"]).from_parts(parameters.settings, parameters.tensors)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary.from_dict(self.parts.vocabulary())

    def _nearest(self, modality: str, query: np.ndarray, top: int) -> list[Hit]:
        if modality not in self._opened:
            index = from_bytes(self.parts.index(modality), f"{modality}.faiss", self.parts.card[modality])
            self._opened[modality] = index, self.parts.table(modality)
        index, table = self._opened[modality]
        scores, rows = index.search(np.ascontiguousarray(query, np.float32), min(top, index.ntotal))
        sign = -1 if index.metric_type == faiss.METRIC_L2 else 1
        found = rows[0] >= 0  # an inverted file pads with -1 when the lists that it visits hold too few
        records = table.take(rows[0][found]).to_pylist()
        return [
            Hit(rank, sign * float(score), record)
            for rank, (score, record) in enumerate(zip(scores[0][found], records, strict=True), 1)
        ]
