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
"""Maximum number of sentences that are embedded at once."""
TAGS = (
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "SCONJ", "VERB", "X",
)  # fmt: skip
"""The universal parts of speech (UPOS) without PUNCT and SYM, because tokenised sentences have neither."""
UNKNOWN_SPELLING = "-"
"""The spelling that the tagger gets for a word that is not in the vocabulary."""


class JointSpace:
    """The joint space of an index's model, in which images, sentences and words are embedded as unit vectors."""

    def __init__(self, index: Any, gpu: torch.device | None = None) -> None:
        """Load the model of `index`, a StoredIndex, onto `gpu` if it is given. Raises UsageError if the model does not
        compare by cosine."""
        parameters = index.first.model()
        self.fingerprint: str = parameters.fingerprint
        registered = index.card.registered
        self.model: JointModel = restore(registered, parameters.settings, parameters.tensors, where=index.folder)
        if gpu is not None:
            self.model.to(gpu)
        if self.model.metric != "inner_product":
            name = index.card.model
            raise UsageError(
                f"The model {name} of the index does not compare by cosine. Name the index of a model that does, such"
                " as ncca."
            )
        self.forms = QueryForms(index, self.model)

    def images(self, features: Features) -> np.ndarray:
        """Embed n images, given as encoder -> (n, dim), in the joint space, (n, c)."""
        return one_vector_each(self.model.embed_images(features))

    def sentences(self, texts: Sequence[str]) -> np.ndarray:
        """Embed m sentences in the joint space, (m, c)."""
        starts = range(0, len(texts), MAX_EMBEDDED_SENTENCES)
        blocks = (texts[start : start + MAX_EMBEDDED_SENTENCES] for start in starts)
        return np.concatenate([one_vector_each(self.model.embed_sentences(self.forms(block))) for block in blocks])

    @cached_property
    def words(self) -> np.ndarray:
        """The embeddings (V, c) of all terms in the vocabulary or text encoder of the model, each as a sentence of its
        own. If there are no terms, this is the embedding (1, c) of the empty sentence."""
        return self.sentences(self.forms.terms or [""])


class Tagger:
    """A part-of-speech tagger: the averaged perceptron of nltk."""

    def __init__(self, treebank: Sequence[Sequence[tuple[str, str]]], seed: int) -> None:
        """Train the tagger on `treebank`, whose sentences are lists of (word, part of speech). `seed` decides the order
        of the sentences in training. Raises InputError if `treebank` is empty."""
        import random

        from nltk.tag.perceptron import PerceptronTagger

        if not treebank:
            raise InputError(
                "The treebank has no tagged words. Set language_text.treebank to a CoNLL-U file with universal parts of"
                " speech, such as NOUN, in column 4."
            )
        before = random.getstate()
        random.seed(seed)  # The tagger shuffles with Python's global random number generator.
        self._tagger = PerceptronTagger(load=False)
        self._tagger.train([list(sentence) for sentence in treebank])
        random.setstate(before)

    def tag(self, tokens: Tokens, terms: Sequence[str]) -> Tokens:
        """Tag every word of `tokens` with its part of speech, as a position in TAGS. The word ids in `tokens` are
        positions in `terms`. An unknown word has the id len(terms), and the tag X."""
        numbers = {name: number for number, name in enumerate(TAGS)}
        spellings = [*terms, UNKNOWN_SPELLING]
        tags = []
        for ids in tokens:
            tagged = self._tagger.tag([spellings[i] for i in ids])
            tags += [numbers["X" if i == len(terms) else tag] for i, (_, tag) in zip(ids, tagged, strict=True)]
        return Tokens(np.array(tags, np.int32), tokens.offsets - tokens.offsets[0])


def read_tagged(lines: Iterable[str], source: str) -> Iterator[list[tuple[str, str]]]:
    """Read the sentences of CoNLL-U `lines`, and yield each as a list of (lowercase word, universal part of speech).
    Leaves out punctuation and symbols, and sentences without other words. Raises InputError with the name `source` and
    the line number if a line is not valid."""
    for entry in read_conllu(lines, source):
        words = zip(entry.parse.words, entry.parse.upos, strict=True)
        if tagged := [(word.lower(), tag) for word, tag in words if tag in TAGS]:
            yield tagged


class Ranker(NamedTuple):
    """The inputs of the generator `ranked-snippets`. `name` is the registered name of the alignment `model`. `vectors`
    (k, c) has the sum of the word vectors of each of the k aligned snippets of train, with repetitions. The attribute
    `names` of the training pairs has the row of `vectors` for each training snippet."""

    name: str
    model: "AlignedModel"
    vectors: np.ndarray


@dataclass(frozen=True)
class Material:
    """The inputs for training a generator.

    `view` says how the features of all encoders of an image become one vector. `train` and `dev` are the images of both
    splits with their sentences, as word ids of `vocabulary`. `texts` has the sentences of both splits as texts, under
    the keys "train" and "dev". `extra` are training sentences without images. `settings` is the section of the
    configuration for this generator, and `precision` is the dtype of the large matrix products. Training runs on
    `device`, resumes from `checkpoint` if it is given, and calls `after_step` after every batch. `space` is None if the
    generator uses no joint space. `tagger` and `ranker` are None unless the spec of the generator says that it needs
    them.
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
    """Held-out sentences, whose perplexity or probability is computed. `pairs` are the images and sentences of one
    split, and `texts` are the same sentences as texts. `vocabulary`, `space` and `tagger` have the same meaning as in
    Material."""

    pairs: TrainingPairs
    texts: Sequence[str]
    vocabulary: Vocabulary
    space: JointSpace | None
    tagger: Tagger | None


class Description(NamedTuple):
    """The words of a generated caption, and its score. Higher is better. Scores of different generators cannot be
    compared."""

    words: tuple[str, ...]
    score: float


@dataclass(frozen=True)
class Sources:
    """The inputs of a generator besides the images. `corpus` has the training sentences. The generator `mrnn` samples
    sentences if there is a `temperature`, and otherwise finds them by beam search with the settings `search`. A
    log-bilinear model makes `candidates` candidates per image. `space` and `trigram` are None if the generator uses no
    joint space."""

    corpus: Corpus
    search: BeamSearch
    temperature: float | None
    candidates: int
    seed: int
    space: JointSpace | None
    trigram: Trigram | None

    def generator(self, device: torch.device) -> torch.Generator:
        """Return a new random number generator on `device`, with the seed `seed`."""
        return torch.Generator(device).manual_seed(self.seed)

    @cached_property
    def sentence_vectors(self) -> np.ndarray:
        """The embeddings (m, c) of the training sentences in the joint space."""
        return required(self.space).sentences(self.corpus.texts)


class Generator(Protocol):
    """A generator of captions. It reads the features of the image encoders `encoders`. Some generators also need a
    joint space (see Sources)."""

    @property
    def encoders(self) -> tuple[str, ...]: ...

    def to(self, device: torch.device) -> "Generator":
        """Move the network to `device`, and return this generator. Does nothing without a network."""
        ...

    def describe(self, features: Mapping[str, np.ndarray], sources: Sources, count: int) -> list[list[Description]]:
        """Generate at most `count` captions, best first, for each of n images, given as encoder -> (n, dim). `sources`
        has the other inputs."""
        ...

    def settings(self) -> dict[str, Any]:
        """Return the settings as JSON values. The class method `from_parts(settings, tensors)` restores the generator
        from these settings and `tensors()`."""
        ...

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the parameters as name -> array."""
        ...


class RankingGenerator(Generator, Protocol):
    """A generator that also computes the probability of a given sentence."""

    def log_probabilities(self, features: Mapping[str, np.ndarray], given: HeldOut) -> np.ndarray:
        """Return the natural log probability (n, m) of each of m sentences given each of n images. `features` has the
        images as encoder -> (n, dim), and `given` the sentences."""
        ...


def describe_images(
    generator: Generator, features: Mapping[str, np.ndarray], sources: Sources, count: int
) -> list[list[dict[str, Any]]]:
    """Generate at most `count` captions, best first, for each of n images, given as encoder -> (n, dim). `sources` has
    the other inputs of the generator.

    Returns the entries of descriptions.json, image after image. Each has the caption as `text`, its `score`, and in
    `nearest` the training sentence (`text`) that is nearest by the `cosine` of idf-weighted bags of words. `verbatim`
    is whether the caption has the same words in the same order as a training sentence.
    """
    corpus = sources.corpus
    described = generator.describe(features, sources, count)
    likenesses = iter(corpus.likeness([" ".join(sentence.words) for image in described for sentence in image]))

    def entry(sentence: Description) -> dict[str, Any]:
        near = next(likenesses)
        nearest = {"text": corpus.texts[near.row], "cosine": near.cosine}
        text = join_words(sentence.words)
        return {"text": text, "score": sentence.score, "verbatim": near.verbatim, "nearest": nearest}

    return [[entry(sentence) for sentence in image] for image in described]


class Learned(NamedTuple):
    """A trained generator, and the log of its training as JSON values."""

    generator: Generator
    log: Mapping[str, Any]
