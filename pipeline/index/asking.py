"""What the model of a bundle makes of words and of photographs."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from pipeline.errors import MALFORMED, InputError, IntegrityError, UsageError, brief
from pipeline.index.format import REBUILD
from pipeline.index.format import IndexParts as IndexParts
from pipeline.index.query_trees import QueryParser, lacking
from pipeline.multivectors import Items, MultiVectors
from pipeline.specs.stored import restore
from pipeline.text.sequences import encode_tokens
from pipeline.text.tfidf import encode
from pipeline.text.tokens import make_analyzer
from pipeline.text.vocabulary import Vocabulary

FORMS = {"tfidf": encode, "tokens": encode_tokens}
"""How a sentence becomes what a model of that `sentence_view` takes; `each` is a mapping of them all. Trees are parsed:
see QueryParser."""


class SearchParts(IndexParts, Protocol):
    """What a search needs of a bundle; pipeline.storage.bundle.Bundle has it."""

    def table(self, modality: str) -> pa.Table: ...
    def packed_table(self, modality: str) -> Any: ...
    def vocabulary(self) -> Mapping[str, Any]: ...
    def labels(self) -> Mapping[str, Any]: ...
    def parser(self) -> Any: ...
    def model(self) -> Any: ...


class Asker:
    """The model of a bundle and what it needs of a query; each part is read when it is first needed."""

    def __init__(self, parts: SearchParts) -> None:
        self.parts = parts

    @property
    def multi_vector(self) -> bool:
        """Whether its images and sentences have several vectors each."""
        return self.parts.card.get("kind") == "fragments"

    def embed_sentence(self, sentence: str) -> Items:
        """`sentence` in the joint space: (1, c) float32, or one item of several vectors."""
        form = self._encode(sentence)
        return self._computed(lambda: self._model.embed_sentences(form))

    def embed_image(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """(1, c) float32. Raises UsageError where an encoder of the model is missing among the features."""
        if missing := [name for name in self.encoders if name not in features]:
            raise UsageError(
                f"{self.parts.folder} has no encoder {missing[0]}, whose features were imported, so that it cannot be"
                " searched with a photograph; build the index of a model on encoders of the run"
            )
        return self._computed(lambda: self._model.embed_images(features))

    def _computed(self, embed: Callable[[], Items]) -> Items:
        """What the model makes of a query. IntegrityError where it does not fit the bundle's vocabulary or encoders."""
        try:
            found = embed()
            vectors = found.vectors if isinstance(found, MultiVectors) else found
        except (*MALFORMED, IntegrityError) as error:
            raise IntegrityError(
                f"the model in {self.parts.folder} does not fit its vocabulary or encoders ({brief(error)}); {REBUILD}"
            ) from error
        if vectors.ndim != 2 or not np.isfinite(vectors).all():
            raise IntegrityError(f"the model in {self.parts.folder} makes no finite vectors; {REBUILD}")
        return found

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
