"""Queries, words and photos, in the joint space of an index's model, encoded like the indexed photos and captions."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from pipeline.compute.multivectors import Items, MultiVectors, one_vector_each
from pipeline.config.stored import restore
from pipeline.encoders.material import EncoderParts
from pipeline.encoders.restore import restore_encoder
from pipeline.encoders.text_encoder import TextEncoder
from pipeline.errors import MALFORMED, InputError, IntegrityError, UsageError, brief
from pipeline.index.format import REBUILD
from pipeline.models.joint_model import JointModel
from pipeline.storage.json_files import Json
from pipeline.storage.stored_index import StoredIndex
from pipeline.text.sequences import encode_tokens
from pipeline.text.tokens import make_analyzer
from pipeline.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from PIL.Image import Image
    from spacy import Language

    from pipeline.encoders.image_encoder import ImageEncoder
    from pipeline.text.trees import Trees

TREES = ("dependency-trees", "phrase-trees")
"""The forms of sentences that are parsed, as `pack_trees` orders them."""
VECTORS = "vectors"
"""The form of sentences that text encoders make."""

FEW = 64
"""Queries whose vectors are encoded as `encode_query` does, which may be dense."""
QUOTED = 200
"""Characters of a query that an error repeats."""
MOST_SUGGESTED = 8
"""Unknown words of a query for which a known one is looked for, which takes milliseconds each."""


class QueryEncoder:
    """The model of an index, which embeds queries in the joint space. Its parts are read when they are first needed."""

    def __init__(self, index: StoredIndex) -> None:
        self.index = index

    @property
    def multi_vector(self) -> bool:
        """Whether its images and sentences have several vectors each."""
        return self.index.card.kind == "fragments"

    def embed_sentence(self, sentence: str) -> Items:
        """`sentence` in the joint space: (1, c) float32, or one item of several vectors."""
        return self.embed_sentences([sentence])

    def embed_sentences(self, sentences: Sequence[str]) -> Items:
        """One or more `sentences` in the joint space, (n, c) float32 or n items."""
        forms = self._forms(sentences)
        return self._computed(lambda: self.model.embed_sentences(forms))

    def embed_image(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """(1, c) float32. Raises UsageError where an encoder of the model is missing among the features."""
        self._require_encoders(features)
        return one_vector_each(self._computed(lambda: self.model.embed_images(features)))

    def stored_encoders(self) -> "dict[str, StoredEncoder]":
        """The encoders of photographs, by name. Raises UsageError where one is missing."""
        self._require_encoders(self.index.card.encoders)
        return {name: StoredEncoder(self.index, name) for name in self.model.encoders}

    def _require_encoders(self, names: Collection[str]) -> None:
        if missing := [name for name in self.model.encoders if name not in names]:
            raise UsageError(
                f"{self.index.card.model} has no encoder {missing[0]}, whose features were imported, so it cannot"
                " be searched with photos; search by vectors (Index.search), or name the encoder that made them in"
                " made_by, and build the index again"
            )

    def _computed(self, embed: Callable[[], Items]) -> Items:
        """Return what the model makes of a query. Raises IntegrityError if the model does not fit the vocabulary, the
        encoders or the kind of the index."""
        try:
            items = embed()
            vectors = items.array if isinstance(items, MultiVectors) else items
        except (*MALFORMED, IntegrityError) as error:
            raise IntegrityError(
                f"the model in {self.index.folder} does not fit its vocabulary or encoders ({brief(error)}); {REBUILD}"
            ) from error
        if isinstance(items, MultiVectors) != self.multi_vector:
            raise IntegrityError(f"the model in {self.index.folder} does not fit the kind on its card; {REBUILD}")
        if vectors.ndim != 2 or not np.isfinite(vectors).all():
            raise IntegrityError(f"the model in {self.index.folder} makes vectors that are not finite; {REBUILD}")
        return items

    def unknown_words(self, sentence: str) -> list[str]:
        """The words of `sentence` that are in no vocabulary of the model, and so are ignored."""
        readers = self._forms.readers
        unknown = [
            [
                word
                for word in reader.unknown(sentence)
                if all(other.unknown(word) for other in readers if other is not reader)
            ]
            for reader in readers
        ]
        return min(unknown, key=len)  # a vocabulary of lemmas may name one that the others know in another form alone

    def count_words(self, sentence: str) -> tuple[int, int]:
        """Count the words of `sentence`, and its words that are unknown to the reader that knows most of them."""
        return min((reader.count_words(sentence) for reader in self._forms.readers), key=lambda counts: counts[1])

    def ignored(self, *texts: str) -> dict[str, str | None]:
        """The words of some texts that are ignored, each of the first few with the known one that is spelt like it."""
        words: dict[str, str | None] = dict.fromkeys(word for text in texts for word in self.unknown_words(text))
        for word in list(words)[:MOST_SUGGESTED]:
            words[word] = next(filter(None, (reader.suggest(word) for reader in self._forms.readers)), None)
        return words

    def require_known(self, sentence: str) -> None:
        """Raises InputError where `sentence` is blank, and naming its words when nothing in the model knows any that is
        not a stop word."""
        if not sentence.strip():
            raise InputError("the query is empty; write some words")
        readers = self._forms.readers
        if not any(reader.searches(sentence) for reader in readers):
            words = spell(self.ignored(sentence)) or "nothing but stop words and punctuation"
            kind = "only stop words" if any(reader.knows(sentence) for reader in readers) else "none of the words"
            raise InputError(f"the model knows {kind} of {sentence[:QUOTED]!r} ({words[:QUOTED]}); try other words")

    @cached_property
    def _forms(self) -> "QueryForms":
        return QueryForms(self.index, self.model)

    @cached_property
    def model(self) -> JointModel:
        """The model of the index. Raises IntegrityError if it is damaged."""
        index = self.index
        parameters = index.first.model()
        model = restore(index.card.registered, parameters.settings, parameters.tensors, where=index.folder)
        names = model.encoders
        if not all(isinstance(name, str) for name in names):
            raise IntegrityError(f"the model in {self.index.folder} names its encoders {names}; {REBUILD}")
        return model


@runtime_checkable
class HasViews(Protocol):
    """An ensemble, whose members read sentences in the forms `views`."""

    views: tuple[str, ...]


class QueryForms:
    """The parts of an index that turn texts into the form that its `model` reads.

    `encoders` are its text encoders by name, and `vocabularies` the vocabularies by the form of tokens or trees that
    they are for. Raises UsageError for imported vectors if their encoder is missing, and for trees if no parser can
    make them from a query. Raises IntegrityError for an index that lacks a part.
    """

    def __init__(self, index: StoredIndex, model: JointModel) -> None:
        self.index = index
        self.each = model.sentence_view == "each"
        self.views: tuple[str, ...] = (model.sentence_view,)
        if self.each:
            assert isinstance(model, HasViews)
            self.views = model.views
        self.encoders: dict[str, TextEncoder] = {}
        if VECTORS in self.views:
            if not model.text_encoders:
                raise IntegrityError(f"the model in {index.folder} names no text encoder; {REBUILD}")
            if missing := [name for name in model.text_encoders if name not in index.card.text_encoders]:
                raise UsageError(
                    f"{index.card.model} has no text encoder {missing[0]}, whose vectors were imported, so it"
                    " cannot be searched in words; search by vectors (Index.search), or name the one that made them in"
                    " made_by, and build the index again"
                )
            self.encoders = {
                name: restore_encoder(TextEncoder, index.first.text_encoder(name), index.folder)
                for name in model.text_encoders
            }
        words = [view for view in self.views if view != VECTORS]
        if parsed := [view for view in words if view in TREES]:
            try:
                self._parser = QueryParser(*index.parser())
            except UsageError as error:
                raise UsageError(
                    f"{index.card.model} reads {parsed[0].replace('-', ' ')}, and a query has none ({error});"
                    " search with a photo (--image), or the index of a model that reads plain words"
                ) from error
        value = index.first.vocabulary() if words else {}
        try:
            self.vocabularies = {
                view: Vocabulary.from_dict(value["views"][view] if self.each else value) for view in words
            }
        except MALFORMED as error:
            raise IntegrityError(f"the vocabulary of {index.folder} cannot be used: {error}; get it again") from error

    @property
    def readers(self) -> list[Any]:
        """All that know words, each with `knows`, `searches`, `unknown` and `suggest`."""
        return [*self.encoders.values(), *self.vocabularies.values()]

    @property
    def terms(self) -> Sequence[str]:
        """The words, and pairs of words, that a text encoder or vocabulary lists; nothing where none does."""
        return next((reader.terms for reader in self.readers if reader.terms), ())

    def __call__(self, texts: Sequence[str]) -> Any:
        """`texts` in the form that the model takes."""
        forms = {view: self._form(view, texts) for view in self.views}
        return forms if self.each else forms[self.views[0]]

    def _form(self, view: str, texts: Sequence[str]) -> Any:
        if view == VECTORS:
            few = len(texts) <= FEW
            return {
                name: (encoder.encode_query if few else encoder.encode)(texts)
                for name, encoder in self.encoders.items()
            }
        if view in TREES:
            return self._parser.trees(texts, view, self.vocabularies[view])
        return encode_tokens(texts, self.vocabularies[view])


class QueryParser:
    """Trees of sentences by the spaCy pipeline that `load` gives, and a label table; threads take turns."""

    def __init__(self, load: "Callable[[], Language]", labels: Mapping[str, Json]) -> None:
        from pipeline.text.parsing import parse_texts, require_spacy  # which plain words do without
        from pipeline.text.trees import LabelTable

        require_spacy()
        self._parse = partial(parse_texts, load)
        self._labels = LabelTable.from_dict(labels)
        self._lock = Lock()

    def trees(self, sentences: Sequence[str], view: str, vocabulary: Vocabulary) -> "Trees":
        """A tree of the form `view`, one of TREES, of each sentence."""
        from pipeline.text.trees import fit_trees, pack_trees

        with self._lock:
            parsed = self._parse(sentences)
        analyze = make_analyzer(vocabulary.settings)
        fitted = fit_trees([one.parse for one in parsed], [one.tree for one in parsed], sentences, analyze)
        return pack_trees(fitted, vocabulary, self._labels)[TREES.index(view)]


def spell(ignored: Mapping[str, str | None]) -> str:
    """Words that are not known, and what may be meant: `purpel (purple?), zyx`."""
    return ", ".join(f"{word} ({near}?)" if near else word for word, near in ignored.items())


class StoredEncoder:
    """The image encoder `name` of an index, which is read when it is opened."""

    def __init__(self, index: StoredIndex, name: str) -> None:
        self._index = index
        self._name = name
        self.settings: Mapping[str, Json] = index.card.encoders[name].to_json()

    @property
    def key(self) -> str:
        """A key that two encoders share if they have the same files and settings."""
        folder = f"encoders/{self._name}/"
        files = {name: about for name, about in self._index.first.card.files.items() if name.startswith(folder)}
        digests = [files[name].sha256 for name in sorted(files) if name != f"{folder}model.json"]
        return json.dumps([digests, self.settings], sort_keys=True)

    def open(self) -> "OpenedEncoder":
        """Restore the encoder. Its `encode` maps RGB images to (n, dim) float32."""
        from pipeline.encoders.image_encoder import ImageEncoder  # needs torch, which plain words do without

        where = f"{self._index.folder}/encoders/{self._name}"
        stored = self._index.first.encoder(self._name)
        parts = EncoderParts(self.settings, stored.tensors, stored.library)
        return OpenedEncoder(restore_encoder(ImageEncoder, parts, where), where)


class OpenedEncoder:
    """The image encoder of an index in the folder `where`."""

    def __init__(self, encoder: "ImageEncoder", where: str) -> None:
        self.encoder = encoder
        self.where = where

    def encode(self, images: "Sequence[Image]") -> np.ndarray:
        """Return (n, dim) float32 of RGB images. IntegrityError where its settings and tensors do not fit together."""
        try:
            return self.encoder.encode(images)
        except MALFORMED as error:
            reason = f"the encoder in {self.where} cannot encode images ({brief(error)})"
            raise IntegrityError(f"{reason}; {REBUILD}") from error


def encode_image(image: "Image", encoders: Mapping[str, OpenedEncoder]) -> dict[str, np.ndarray]:
    """Encoder name -> (1, dim) float32 of an RGB image, by encoders that were opened."""
    return {name: encoder.encode([image]) for name, encoder in encoders.items()}


class SharedEncoders:
    """Encoders of several indexes: each is opened once, when it is first needed, and the features of the last KEPT
    photographs are kept, so that several models, or another question, do not encode them again. For one thread."""

    KEPT = 64

    def __init__(self, decode: Callable[[bytes], "Image"]) -> None:
        self._decode = decode
        self._opened: dict[str, OpenedEncoder] = {}
        self._features: OrderedDict[tuple[str, str], np.ndarray] = OrderedDict()

    def __call__(self, data: bytes, encoders: Mapping[str, StoredEncoder]) -> dict[str, np.ndarray]:
        """Encoder name -> (1, dim) float32 of an encoded image. Two encoders are one where their `key` is the same."""
        digest = hashlib.sha256(data).hexdigest()
        keys = {name: encoder.key for name, encoder in encoders.items()}
        missing = {key: encoders[name] for name, key in keys.items() if (digest, key) not in self._features}
        if missing:
            image = self._decode(data)
            for key, encoder in missing.items():
                if key not in self._opened:
                    self._opened[key] = encoder.open()
                self._features[digest, key] = self._opened[key].encode([image])
        features = {name: self._features[digest, key] for name, key in keys.items()}
        while len(self._features) > self.KEPT:
            self._features.popitem(last=False)
        return features
