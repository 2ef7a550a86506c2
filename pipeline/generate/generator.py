"""The contract of generators, which describe images, and the material from which they learn and by which they are
judged: pairs, texts, a joint space, and parts of speech."""

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
from pipeline.text.sequences import Tokens
from pipeline.text.tokens import join_words
from pipeline.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from pipeline.models.neural.fragment_models import AlignedModel

BLOCK = 8192
"""Maximum number of sentences that are embedded at once."""
TAGS = (
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "SCONJ", "VERB", "X",
)  # fmt: skip
"""The universal parts of speech, except punctuation and symbols, which our sentences do not have."""
UNKNOWN = "-"
"""The tagger's input for an unknown word."""


class JointSpace:
    """Unit vectors of images, sentences and words by an index's model. Raises UsageError if it has another metric."""

    def __init__(self, index: Any, gpu: torch.device | None = None) -> None:
        parameters = index.first.model()
        self.fingerprint: str = parameters.fingerprint
        registered = index.card.registered
        self.model: JointModel = restore(registered, parameters.settings, parameters.tensors, where=index.folder)
        if gpu is not None:
            self.model.to(gpu)
        if self.model.metric != "inner_product":
            name = index.card.model
            raise UsageError(f"{name} does not compare by cosine; give the index of a model that does, such as ncca")
        self.forms = QueryForms(index, self.model)

    def images(self, features: Features) -> np.ndarray:
        """Embed n images, (n, c)."""
        return one_vector_each(self.model.embed_images(features))

    def sentences(self, texts: Sequence[str]) -> np.ndarray:
        """Embed m sentences, (m, c)."""
        blocks = (texts[start : start + BLOCK] for start in range(0, len(texts), BLOCK))
        return np.concatenate([one_vector_each(self.model.embed_sentences(self.forms(block))) for block in blocks])

    @cached_property
    def words(self) -> np.ndarray:
        """Every term that the model can list, as a sentence of one word, (V, c)."""
        return self.sentences(self.forms.terms or [""])


class Tagger:
    """nltk's averaged perceptron, trained on sentences of (word, part of speech)."""

    def __init__(self, treebank: Sequence[Sequence[tuple[str, str]]], seed: int) -> None:
        """Raises InputError if `treebank` is empty."""
        import random

        from nltk.tag.perceptron import PerceptronTagger

        if not treebank:
            raise InputError("the treebank holds no tagged word; give CoNLL-U with parts of speech in column 4")
        before = random.getstate()
        random.seed(seed)  # the tagger shuffles with the global generator
        self._tagger = PerceptronTagger(load=False)
        self._tagger.train([list(sentence) for sentence in treebank])
        random.setstate(before)

    def tag(self, tokens: Tokens, terms: Sequence[str]) -> Tokens:
        """Tag every word of `tokens` over `terms` with its part of speech, a position in TAGS; X for unknown words."""
        numbers = {name: number for number, name in enumerate(TAGS)}
        spellings = [*terms, UNKNOWN]
        tags = []
        for ids in tokens:
            tagged = self._tagger.tag([spellings[i] for i in ids])
            tags += [numbers["X" if i == len(terms) else tag] for i, (_, tag) in zip(ids, tagged, strict=True)]
        return Tokens(np.array(tags, np.int32), tokens.offsets - tokens.offsets[0])


def read_tagged(lines: Iterable[str], source: str) -> Iterator[list[tuple[str, str]]]:
    """Yield the sentences of CoNLL-U `lines` as lowercase words with their universal parts of speech, without
    punctuation. Raises InputError naming `source` and a line, as `read_conllu` does."""
    for entry in read_conllu(lines, source):
        words = zip(entry.parse.words, entry.parse.upos, strict=True)
        if tagged := [(word.lower(), tag) for word, tag in words if tag in TAGS]:
            yield tagged


class Ranker(NamedTuple):
    """The alignment `model` of the registered `name`, and the sums of the word vectors of all training snippets,
    `vectors` (k, c), by their numbers (the names of the training pairs)."""

    name: str
    model: "AlignedModel"
    vectors: np.ndarray


@dataclass(frozen=True)
class Material:
    """`train` and `dev`: images with sentences over `vocabulary`; `texts` has the sentences of both by name.

    `extra` are sentences without images. `settings` is the generator's own section, `precision` the dtype of heavy
    products. Training resumes from `checkpoint`, on `device`, and calls `after_step` after every batch. `space`,
    `tagger` and `ranker` are for the generators whose specs say that they need one.
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
    """Sentences on which perplexity is measured: the `pairs` of a split and their `texts`; the rest as in Material."""

    pairs: TrainingPairs
    texts: Sequence[str]
    vocabulary: Vocabulary
    space: JointSpace | None
    tagger: Tagger | None


class Description(NamedTuple):
    """A sentence's words, and its score; higher is better within one generator."""

    words: tuple[str, ...]
    score: float


@dataclass(frozen=True)
class Sources:
    """The inputs of generators: the training sentences, search settings, the number of `candidates` that the
    log-bilinear models make for an image, and for some the joint space and a trigram.

    With a `temperature`, sentences are sampled; without, the most probable are searched for.
    """

    corpus: Corpus
    search: BeamSearch
    temperature: float | None
    candidates: int
    seed: int
    space: JointSpace | None
    trigram: Trigram | None

    def generator(self, device: torch.device) -> torch.Generator:
        """A freshly seeded random number generator on `device`."""
        return torch.Generator(device).manual_seed(self.seed)

    @cached_property
    def sentence_vectors(self) -> np.ndarray:
        """The training sentences in the joint space, (m, c)."""
        return required(self.space).sentences(self.corpus.texts)


class Generator(Protocol):
    """A registered generator. It reads the features of `encoders`, and with `in_space` settings the joint space."""

    @property
    def encoders(self) -> tuple[str, ...]: ...

    def to(self, device: torch.device) -> "Generator":
        """Move its network to `device`, and return this generator."""
        ...

    def describe(self, features: Mapping[str, np.ndarray], sources: Sources, count: int) -> list[list[Description]]:
        """At most `count` descriptions, best first, of every image given as encoder -> (n, its dim)."""
        ...

    def settings(self) -> dict[str, Any]:
        """As JSON; `from_parts(settings, tensors)` restores the generator."""
        ...

    def tensors(self) -> dict[str, np.ndarray]: ...


class RankingGenerator(Generator, Protocol):
    """A generator that also says how probable a given sentence is."""

    def log_probabilities(self, features: Mapping[str, np.ndarray], given: HeldOut) -> np.ndarray:
        """Return the log probability (n, m) of each of the m sentences `given` each of n images."""
        ...


def describe_images(
    generator: Generator, features: Mapping[str, np.ndarray], sources: Sources, count: int
) -> list[list[dict[str, Any]]]:
    """At most `count` sentences, best first, of every image given as encoder -> (n, its dim), as descriptions.json has
    them: `text` and `score`, the training sentence `nearest` to it by the cosine of weighted bags of words, and whether
    the two are the same word by word, `verbatim`."""
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
    """A trained generator and the log of its training, as JSON values."""

    generator: Generator
    log: Mapping[str, Any]  # Any: JSON values
