"""Embedding queries, which are texts or photos, with the model and the encoders of an index."""

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
from pipeline.models.joint_model import JointModel
from pipeline.storage.files import REBUILD
from pipeline.storage.json_files import Json
from pipeline.storage.stored_index import StoredIndex
from pipeline.text.tokens import PIECE, make_analyzer
from pipeline.text.vocabulary import Vocabulary, encode_tokens

if TYPE_CHECKING:
    from PIL.Image import Image
    from spacy.language import Language

    from pipeline.encoders.image_encoder import ImageEncoder
    from pipeline.text.trees import Trees

TREES = ("dependency-trees", "phrase-trees")
"""Names of the forms of texts that need a parser, in the order in which `pack_trees` returns them."""
VECTORS = "vectors"
"""Name of the form of texts that text encoders compute."""

MAX_SMALL_BATCH = 64
"""Largest number of queries in a batch for which a text encoder's method `encode_query` is used, which may return dense
vectors. A larger batch is encoded by `encode`."""
MAX_QUOTED_CHARACTERS = 200
"""Largest number of characters of a query, and of its unknown words, that an error message repeats."""
MAX_SUGGESTIONS = 8
"""Largest number of unknown words of a query for which a similar known word is sought. The search for each word takes
milliseconds."""


class QueryEncoder:
    """The model of an index, which embeds queries in the joint space. The files of the model are read when they are
    first needed."""

    def __init__(self, index: StoredIndex) -> None:
        self.index = index

    @property
    def multi_vector(self) -> bool:
        """Whether an image or a caption has several vectors in the joint space."""
        return self.index.card.kind == "fragments"

    def embed_sentence(self, sentence: str) -> Items:
        """Embed a text in the joint space. Returns (1, c) float32, or MultiVectors with one item for a multi-vector
        model.

        A text without known words is embedded too, but its vector has no meaning. `require_known` refuses such a text.
        """
        return self.embed_sentences([sentence])

    def embed_sentences(self, sentences: Sequence[str]) -> Items:
        """Embed n texts, at least one, in the joint space. Returns (n, c) float32, which need not have unit length, or
        MultiVectors with n items for a multi-vector model.

        Raises UsageError if the index cannot embed texts (see QueryForms), and IntegrityError if the model is damaged
        or if a vector has NaN or infinity.
        """
        forms = self._forms(sentences)
        return self._computed(lambda: self.model.embed_sentences(forms))

    def embed_image(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """Embed an image in the joint space. Its `features` map the names of image encoders to arrays (1, dim). Returns
        (1, c) float32, which need not have unit length.

        The model must have one vector per item. Features of encoders that the model does not use are ignored. Raises
        UsageError if the features of an encoder of the model are missing, and IntegrityError if the features do not fit
        the model, or if the result has NaN or infinity.
        """
        self._require_encoders(features)
        return one_vector_each(self._computed(lambda: self.model.embed_images(features)))

    def stored_encoders(self) -> "dict[str, StoredEncoder]":
        """Return the image encoders of the model by name. Their files are not read yet. Raises UsageError if the index
        lacks an encoder of the model."""
        self._require_encoders(self.index.card.encoders)
        return {name: StoredEncoder(self.index, name) for name in self.model.encoders}

    def _require_encoders(self, names: Collection[str]) -> None:
        if missing := [name for name in self.model.encoders if name not in names]:
            raise UsageError(
                f"The index {self.index.card.model} cannot be searched with photos, because the features of its encoder"
                f" {missing[0]} were precomputed. Search with a vector (Index.search in Python), or set made_by of this"
                " encoder to the model that computed the features and run `jointspace run CONFIG`."
            )

    def _computed(self, embed: Callable[[], Items]) -> Items:
        """Call `embed`, which embeds queries with the model, and return its result.

        Raises IntegrityError if the model does not fit the vocabulary, the encoders or the kind of the index, or if
        the vectors contain NaN or infinity.
        """
        try:
            items = embed()
            vectors = items.array if isinstance(items, MultiVectors) else items
        except (*MALFORMED, IntegrityError) as error:
            raise IntegrityError(
                f"The model in {self.index.folder} cannot compute vectors from its vocabulary or encoders"
                f" ({brief(error)}). {REBUILD}"
            ) from error
        if isinstance(items, MultiVectors) != self.multi_vector:
            raise IntegrityError(
                f"The card of {self.index.folder} says that its model has"
                f" {'several vectors' if self.multi_vector else 'one vector'} per item, but the model computes"
                f" {'one' if self.multi_vector else 'several'}. {REBUILD}"
            )
        if vectors.ndim != 2 or not np.isfinite(vectors).all():
            raise IntegrityError(
                f"The model in {self.index.folder} computes vectors with NaN or infinity, or an array that is not a"
                f" table of vectors. {REBUILD}"
            )
        return items

    def unknown_words(self, sentence: str) -> list[str]:
        """Return the words of a text that are unknown to all vocabularies and text encoders of the model. The model
        ignores these words. Raises UsageError if the index cannot embed any text."""
        readers = self._forms.readers
        unknown = [
            [
                word
                for word in reader.unknown(sentence)
                if all(other.unknown(word) for other in readers if other is not reader)
            ]
            for reader in readers
        ]
        # A vocabulary of lemmas may list the lemma of a word that another vocabulary knows in another form. The
        # shortest list has the fewest words of this kind.
        return min(unknown, key=len)

    def knows(self, text: str) -> bool:
        """Return whether the model knows words of a text other than stop words, so that a search for the text makes
        sense. Raises UsageError if the index cannot embed any text."""
        return any(reader.searches(text) for reader in self._forms.readers)

    def count_words(self, sentence: str) -> tuple[int, int]:
        """Return the number of words in a text, and the number of unknown words among them.

        If the model has several vocabularies or text encoders, both numbers come from the vocabulary or text encoder
        with the fewest unknown words. Raises UsageError if the index cannot embed any text.
        """
        return min((reader.count_words(sentence) for reader in self._forms.readers), key=lambda counts: counts[1])

    def ignored(self, *texts: str) -> dict[str, str | None]:
        """Return the unknown words of some texts, as word -> a known word of similar spelling, or None if no known word
        is similar.

        Similar words are sought only for the first MAX_SUGGESTIONS unknown words. All other unknown words have None.
        Raises UsageError if the index cannot embed any text.
        """
        words: dict[str, str | None] = dict.fromkeys(word for text in texts for word in self.unknown_words(text))
        for word in list(words)[:MAX_SUGGESTIONS]:
            words[word] = next(filter(None, (reader.suggest(word) for reader in self._forms.readers)), None)
        return words

    def require_known(self, sentence: str) -> None:
        """Raise InputError if a text query is blank, or if the model knows no word of the query other than stop words.
        Raises UsageError if the index cannot embed any text."""
        if not sentence.strip():
            raise InputError("The query is empty. Write at least one word.")
        if not self.knows(sentence):
            quoted = repr(sentence[:MAX_QUOTED_CHARACTERS])
            words = spell(self.ignored(sentence))[:MAX_QUOTED_CHARACTERS]
            if not words:
                raise InputError(f"The query {quoted} contains only stop words and punctuation. Try other words.")
            if any(reader.knows(sentence) for reader in self._forms.readers):
                raise InputError(
                    f"The query {quoted} has only stop words and words that the model does not know (unknown words:"
                    f" {words}). Try other words."
                )
            raise InputError(f"The model knows none of the words of {quoted} ({words}). Try other words.")

    @cached_property
    def _forms(self) -> "QueryForms":
        return QueryForms(self.index, self.model)

    @cached_property
    def model(self) -> JointModel:
        """The model of the index. Raises IntegrityError if its files are damaged or do not fit together."""
        index = self.index
        parameters = index.first.model()
        model = restore(index.card.registered, parameters.settings, parameters.tensors, where=index.folder)
        names = (*model.encoders, *model.text_encoders, *model.region_encoders)
        if not all(isinstance(name, str) for name in names):
            raise IntegrityError(f"The encoder names of the model in {self.index.folder} are not texts. {REBUILD}")
        return model


@runtime_checkable
class HasViews(Protocol):
    """The interface of an ensemble, whose members read texts in the forms that `views` names."""

    views: tuple[str, ...]


class QueryForms:
    """The text encoders, vocabularies and the parser of an index, which turn queries into the form that its model
    reads.

    `views` are the names of the forms of text that the model reads, and `each` says whether the model is an ensemble,
    whose members read one form each. `encoders` are the text encoders by name, and `vocabularies` are the vocabularies
    by form of text (such as tokens or trees). The constructor raises UsageError if text vectors were precomputed and
    their encoder is missing, and if the model reads trees and no parser is available for queries. It raises
    IntegrityError if the index lacks a file or a file is damaged.
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
                raise IntegrityError(f"The model in {index.folder} does not name a text encoder. {REBUILD}")
            if missing := [name for name in model.text_encoders if name not in index.card.text_encoders]:
                raise UsageError(
                    f"The index {index.card.model} cannot be searched with text, because the vectors of its text"
                    f" encoder {missing[0]} were precomputed. Search with a vector (Index.search in Python), or set"
                    " made_by of this text encoder to the model that computed the vectors and run"
                    " `jointspace run CONFIG`."
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
                    f"The model {index.card.model} reads {parsed[0].replace('-', ' ')}, so a text query must be"
                    f" parsed. {error} You can also search with a photo (`--image FILE`), or use the index of a model"
                    " that reads plain words."
                ) from error
        value = index.first.vocabulary() if words else {}
        try:
            self.vocabularies = {
                view: Vocabulary.from_dict(value["views"][view] if self.each else value) for view in words
            }
        except MALFORMED as error:
            raise IntegrityError(f"The vocabulary of {index.folder} cannot be used ({error}). {REBUILD}") from error

    @property
    def readers(self) -> list[Any]:
        """The text encoders and vocabularies. Each has the methods `knows`, `searches`, `unknown`, `suggest` and
        `count_words`, which read texts or words, and the attribute `terms`."""
        return [*self.encoders.values(), *self.vocabularies.values()]

    @property
    def terms(self) -> Sequence[str]:
        """The words and n-grams that the first text encoder or vocabulary with a list of terms knows, without pieces of
        words. There are no terms if no encoder or vocabulary has a list."""
        terms = next((reader.terms for reader in self.readers if reader.terms), ())
        return [term for term in terms if not term.startswith(PIECE)]

    def __call__(self, texts: Sequence[str]) -> Any:
        """Convert `texts` to the form that the model reads. For an ensemble, return a mapping from the name of each
        form that its members read to the texts in this form."""
        forms = {view: self._form(view, texts) for view in self.views}
        return forms if self.each else forms[self.views[0]]

    def _form(self, view: str, texts: Sequence[str]) -> Any:
        if view == VECTORS:
            is_small = len(texts) <= MAX_SMALL_BATCH
            return {
                name: (encoder.encode_query if is_small else encoder.encode)(texts)
                for name, encoder in self.encoders.items()
            }
        if view in TREES:
            return self._parser.trees(texts, view, self.vocabularies[view])
        return encode_tokens(texts, self.vocabularies[view])


class QueryParser:
    """A parser of queries. It uses the spaCy pipeline that `load` returns and the label table `labels` that was stored
    with the model.

    Threads may share the parser, because only one of them parses at a time. The constructor raises UsageError if spaCy
    is not installed.
    """

    def __init__(self, load: "Callable[[], Language]", labels: Mapping[str, Json]) -> None:
        # The imports are here, because models that read plain words do not need these modules.
        from pipeline.text.parsing import parse_texts, require_spacy
        from pipeline.text.trees import LabelTable

        require_spacy()
        self._parse = partial(parse_texts, load)
        self._labels = LabelTable.from_dict(labels)
        self._lock = Lock()

    def trees(self, sentences: Sequence[str], view: str, vocabulary: Vocabulary) -> "Trees":
        """Parse texts, and return their trees of the form `view`, which is one of TREES, with words as numbers of the
        `vocabulary`."""
        from pipeline.text.trees import fit_trees, pack_trees

        with self._lock:
            parsed = self._parse(sentences)
        analyze = make_analyzer(vocabulary.settings)
        fitted = fit_trees([one.parse for one in parsed], [one.tree for one in parsed], sentences, analyze)
        return pack_trees(fitted, vocabulary, self._labels)[TREES.index(view)]


def spell(ignored: Mapping[str, str | None]) -> str:
    """Return unknown words as a text, with the known words that may be meant, as in `purpel (purple?), zyx`. `ignored`
    is the result of `QueryEncoder.ignored`."""
    return ", ".join(f"{word} ({near}?)" if near else word for word, near in ignored.items())


class StoredEncoder:
    """The image encoder `name` of an index. Its files are read only by `open`."""

    def __init__(self, index: StoredIndex, name: str) -> None:
        self._index = index
        self._name = name
        self.settings: Mapping[str, Json] = index.card.encoders[name].to_json()

    @property
    def key(self) -> str:
        """A text that is equal for two encoders, also of different indexes, with equal files and settings."""
        folder = f"encoders/{self._name}/"
        files = {name: about for name, about in self._index.first.card.files.items() if name.startswith(folder)}
        digests = [files[name].sha256 for name in sorted(files) if name != f"{folder}model.json"]
        return json.dumps([digests, self.settings], sort_keys=True)

    def open(self) -> "OpenedEncoder":
        """Read the encoder from the index and return it. Raises IntegrityError if its files are damaged."""
        # The import is here, because text queries need no torch.
        from pipeline.encoders.image_encoder import ImageEncoder

        where = f"{self._index.folder}/encoders/{self._name}"
        stored = self._index.first.encoder(self._name)
        parts = EncoderParts(self.settings, stored.tensors, stored.library)
        return OpenedEncoder(restore_encoder(ImageEncoder, parts, where), where)


class OpenedEncoder:
    """An opened image encoder of an index. Messages name the folder `where` from which it was read."""

    def __init__(self, encoder: "ImageEncoder", where: str) -> None:
        self.encoder = encoder
        self.where = where

    def encode(self, images: "Sequence[Image]") -> np.ndarray:
        """Encode n RGB images as (n, dim) float32.

        Raises IntegrityError if the settings and the tensors of the encoder do not fit together.
        """
        try:
            return self.encoder.encode(images)
        except MALFORMED as error:
            raise IntegrityError(
                f"The encoder in {self.where} cannot encode images ({brief(error)}). {REBUILD}"
            ) from error


def encode_image(image: "Image", encoders: Mapping[str, OpenedEncoder]) -> dict[str, np.ndarray]:
    """Encode an RGB image with each of several opened encoders. Returns name of the encoder -> features (1, dim)
    float32."""
    return {name: encoder.encode([image]) for name, encoder in encoders.items()}


class SharedEncoders:
    """The image encoders of several indexes, and the features of the photos that they encoded last.

    Each encoder is opened once, when it is first needed. The features that were computed last are kept, so that several
    models or queries do not encode the same photo again. At most MAX_CACHED_FEATURES arrays are kept, and each has the
    features of one photo by one encoder. `decode` decodes the bytes of a photo to an RGB image. Only one thread at a
    time may use an object of this class.
    """

    MAX_CACHED_FEATURES = 64

    def __init__(self, decode: Callable[[bytes], "Image"]) -> None:
        self._decode = decode
        self._opened: dict[str, OpenedEncoder] = {}
        self._features: OrderedDict[tuple[str, str], np.ndarray] = OrderedDict()

    def __call__(self, data: bytes, encoders: Mapping[str, StoredEncoder]) -> dict[str, np.ndarray]:
        """Return the features of a photo as encoder name -> (1, dim) float32. `data` are the bytes of its file.

        A photo is encoded only once for encoders with the same `key`. Errors of `decode` and of the encoders are
        raised.
        """
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
        while len(self._features) > self.MAX_CACHED_FEATURES:
            self._features.popitem(last=False)
        return features
