"""The interface of generators, which write captions for images, and the inputs from which they learn and generate."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch

from pipeline.compute.multivectors import one_vector_each
from pipeline.config.stored import restore
from pipeline.errors import InputError, UsageError
from pipeline.generate.beam import BeamSearch
from pipeline.generate.corpus import Corpus, Trigram
from pipeline.index.queries import QueryForms
from pipeline.models.joint_model import Features, JointModel
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.task import TrainingPairs, required
from pipeline.models.neural.training import Checkpoint, Training
from pipeline.text.dependencies import read_conllu
from pipeline.text.tokens import join_words
from pipeline.text.vocabulary import Tokens, Vocabulary

if TYPE_CHECKING:
    from pipeline.models.neural.fragment_models import AlignedModel

MAX_EMBEDDED_SENTENCES = 8192
"""Maximum number of sentences that JointSpace embeds at once."""
TAGS = (
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "SCONJ", "VERB", "X",
)  # fmt: skip
"""The universal parts of speech (UPOS) without PUNCT and SYM, because tokenised sentences have neither punctuation nor
symbols. A part of speech is stored as its position in this tuple."""
UNKNOWN_SPELLING = "-"
"""The spelling that the tagger gets for a word that is not in the vocabulary, whose true spelling is lost."""


class JointSpace:
    """The joint space of an index's model, in which images, sentences and words are embedded as unit vectors, so that
    the inner product of two vectors is their cosine."""

    def __init__(self, index: Any, gpu: torch.device | None = None) -> None:
        """Load the model of `index`, a StoredIndex, onto `gpu`, or onto the CPU if `gpu` is None. Raises UsageError if
        the model does not compare by cosine."""
        parameters = index.first.model()
        self.fingerprint: str = parameters.fingerprint
        registered = index.card.registered
        self.model: JointModel = restore(registered, parameters.settings, parameters.tensors, where=index.folder)
        if gpu is not None:
            self.model.to(gpu)
        if self.model.metric != "inner_product":
            name = index.card.model
            raise UsageError(
                f"The model {name} of the index {index.folder} does not compare by cosine, so captions cannot be"
                " generated with this model. Name the index of a model that compares by cosine, such as ncca."
            )
        self.forms = QueryForms(index, self.model)

    def images(self, features: Features) -> np.ndarray:
        """Embed n images, whose `features` are given as encoder -> (n, dim). Return unit vectors (n, c)."""
        return one_vector_each(self.model.embed_images(features))

    def sentences(self, texts: Sequence[str]) -> np.ndarray:
        """Embed m sentences, given as texts. Return unit vectors (m, c). There must be at least one sentence."""
        starts = range(0, len(texts), MAX_EMBEDDED_SENTENCES)
        blocks = (texts[start : start + MAX_EMBEDDED_SENTENCES] for start in starts)
        return np.concatenate([one_vector_each(self.model.embed_sentences(self.forms(block))) for block in blocks])

    @cached_property
    def words(self) -> np.ndarray:
        """The embeddings (V, c) of all V terms in the vocabulary or text encoder of the model, each embedded as a
        sentence of one word. If the model has no terms, this is the embedding (1, c) of the empty sentence."""
        return self.sentences(self.forms.terms or [""])


class Tagger:
    """A part-of-speech tagger: the averaged perceptron of nltk, which is trained on a treebank when the object is
    created."""

    def __init__(self, treebank: Sequence[Sequence[tuple[str, str]]], seed: int) -> None:
        """Train the tagger on `treebank`, whose sentences are lists of (word, part of speech), where the part of speech
        is a name in TAGS. `seed` decides the order of the sentences in training. Python's global random numbers stay as
        they were. Raises InputError if `treebank` is empty."""
        import random

        from nltk.tag.perceptron import PerceptronTagger

        if not treebank:
            raise InputError(
                "The treebank has no tagged words. Set language_text.treebank to a CoNLL-U file with universal parts of"
                " speech, such as NOUN, in column 4."
            )
        before = random.getstate()
        random.seed(seed)  # The tagger of nltk shuffles with Python's global random number generator.
        self._tagger = PerceptronTagger(load=False)
        self._tagger.train([list(sentence) for sentence in treebank])
        random.setstate(before)

    def tag(self, tokens: Tokens, terms: Sequence[str]) -> Tokens:
        """Return the part of speech of every word of `tokens`, as a position in TAGS, in sentences of the same lengths.
        The word ids in `tokens` are positions in `terms`. An unknown word has the id len(terms), and always gets the
        part of speech X."""
        numbers = {name: number for number, name in enumerate(TAGS)}
        spellings = [*terms, UNKNOWN_SPELLING]
        tags = []
        for ids in tokens:
            tagged = self._tagger.tag([spellings[i] for i in ids])
            tags += [numbers["X" if i == len(terms) else tag] for i, (_, tag) in zip(ids, tagged, strict=True)]
        return Tokens(np.array(tags, np.int32), tokens.offsets - tokens.offsets[0])


def read_tagged(lines: Iterable[str], source: str) -> Iterator[list[tuple[str, str]]]:
    """Read the sentences of CoNLL-U `lines`, and yield each as a list of (lowercase word, universal part of speech).
    Words whose part of speech is not in TAGS, such as punctuation and symbols, are left out, and so are sentences
    without other words. Raises InputError if a line is not valid, with the line number and `source`, the name of the
    file."""
    for entry in read_conllu(lines, source):
        words = zip(entry.parse.words, entry.parse.upos, strict=True)
        if tagged := [(word.lower(), tag) for word, tag in words if tag in TAGS]:
            yield tagged


class Ranker(NamedTuple):
    """The alignment model and the vectors of its snippets, from which the generator `ranked-snippets` learns.

    `name` is the name under which the class of the alignment `model` is registered. `vectors` (k, c) has one row for
    each of k aligned snippets: the sum of the word vectors of the snippet. Snippets with the same words have separate
    rows. The numbers of the rows that belong to the training snippets are in the attribute `names` of the training
    pairs.
    """

    name: str
    model: "AlignedModel"
    vectors: np.ndarray


@dataclass(frozen=True)
class Material:
    """The inputs for training a generator, which its class method `learn` gets.

    `view` says how the features of all encoders of an image become one vector. `train` and `dev` are the images of both
    splits with their sentences, as word ids of `vocabulary`. For a generator that learns from regions, `train` and
    `dev` are regions with snippets instead. `texts` has the sentences of both splits as texts, under the keys "train"
    and "dev". `extra` are training sentences without images, as texts. `settings` is the section of the configuration
    for this generator, `seed` decides all random numbers, and `precision` is the dtype of the large matrix products.
    Training runs on `device`, resumes from `checkpoint` if it is given, and calls `after_step` after every batch.
    `space` is None if the generator uses no joint space. `tagger` and `ranker` are None unless the spec of the
    generator says that it needs them.
    """

    view: ImageView
    train: TrainingPairs
    dev: TrainingPairs
    texts: Mapping[str, Sequence[str]]
    vocabulary: Vocabulary
    space: JointSpace | None
    extra: Sequence[str]
    tagger: Tagger | None
    settings: Any
    seed: int
    precision: torch.dtype
    checkpoint: Checkpoint | None
    after_step: Callable[[Training], None]
    device: torch.device = torch.device("cpu")
    ranker: Ranker | None = None


class HeldOut(NamedTuple):
    """Held-out sentences, whose perplexity or probability a generator computes. `pairs` are the images and sentences of
    one split that was not used in training, and `texts` are the same sentences as texts. `vocabulary`, `space` and
    `tagger` have the same meaning as in Material."""

    pairs: TrainingPairs
    texts: Sequence[str]
    vocabulary: Vocabulary
    space: JointSpace | None
    tagger: Tagger | None


class Description(NamedTuple):
    """A generated caption: its `words` and its `score`. A higher score is better. The scores of captions by different
    generators cannot be compared."""

    words: tuple[str, ...]
    score: float


@dataclass(frozen=True)
class Sources:
    """The inputs from which a generator writes captions, besides the images. `corpus` has the training sentences. The
    generator `mrnn` samples sentences if `temperature` is not None, and otherwise finds them by beam search with the
    settings `search`. A log-bilinear model makes `candidates` candidates per image, and ranks them with the language
    model `trigram`, which has counted the training sentences and additional texts. `seed` decides the random numbers.
    `space` and `trigram` are None if the generator uses no joint space."""

    corpus: Corpus
    search: BeamSearch
    temperature: float | None
    candidates: int
    seed: int
    space: JointSpace | None
    trigram: Trigram | None

    def generator(self, device: torch.device) -> torch.Generator:
        """Return a new random number generator of PyTorch on `device`, with the seed `seed`. Each call returns a
        generator of the same numbers."""
        return torch.Generator(device).manual_seed(self.seed)

    @cached_property
    def sentence_vectors(self) -> np.ndarray:
        """The embeddings (m, c) of all m training sentences in the joint space, which are computed at the first use."""
        return required(self.space).sentences(self.corpus.texts)


class Generator(Protocol):
    """A trained generator of captions. It reads the features of the image encoders with the names `encoders`. Some
    generators also need the joint space in Sources."""

    @property
    def encoders(self) -> tuple[str, ...]: ...

    def to(self, device: torch.device) -> "Generator":
        """Move the network of this generator to `device`, and return this generator, not a copy. A generator without a
        network is not changed."""
        ...

    def generate_captions(
        self, features: Mapping[str, np.ndarray], sources: Sources, count: int
    ) -> list[list[Description]]:
        """Generate at most `count` captions, best first, for each of n images, whose `features` are given as encoder ->
        (n, dim). `sources` has the other inputs, such as the training sentences, the settings of the search and the
        joint space. Return one list of captions per image. A list may be empty."""
        ...

    def settings(self) -> dict[str, Any]:
        """Return the settings as JSON values, to be stored. The class method `from_parts(settings, tensors)` restores
        the generator from these settings and from `tensors()`."""
        ...

    def tensors(self) -> dict[str, np.ndarray]:
        """Return all parameters of the generator, name -> array, to be stored."""
        ...


class RankingGenerator(Generator, Protocol):
    """A generator that also computes the probability of a given sentence, so that it can rank sentences for images."""

    def log_probabilities(self, features: Mapping[str, np.ndarray], given: HeldOut) -> np.ndarray:
        """Return the natural log probability (n, m), END included, of each of the m sentences of `given` given each of
        n images, whose `features` are given as encoder -> (n, dim)."""
        ...


def describe_images(
    generator: Generator, features: Mapping[str, np.ndarray], sources: Sources, count: int
) -> list[list[dict[str, Any]]]:
    """Generate at most `count` captions, best first, for each of n images, whose `features` are given as encoder -> (n,
    dim). `sources` has the other inputs of the generator.

    Returns a list of entries for each image, as descriptions.json stores them. An entry has the caption as `text`, its
    `score`, and in `nearest` the training sentence (`text`) that is nearest to the caption by the `cosine` of
    idf-weighted bags of words. `verbatim` is whether a training sentence has the same words in the same order as the
    caption, and all of these words are in the vocabulary.
    """
    corpus = sources.corpus
    described = generator.generate_captions(features, sources, count)
    likenesses = iter(corpus.likeness([" ".join(sentence.words) for image in described for sentence in image]))

    def entry(sentence: Description) -> dict[str, Any]:
        near = next(likenesses)
        nearest = {"text": corpus.texts[near.row], "cosine": near.cosine}
        text = join_words(sentence.words)
        return {"text": text, "score": sentence.score, "verbatim": near.verbatim, "nearest": nearest}

    return [[entry(sentence) for sentence in image] for image in described]


class Learned(NamedTuple):
    """The result of `learn`: a trained generator, and the log of its training as JSON values."""

    generator: Generator
    log: Mapping[str, Any]
