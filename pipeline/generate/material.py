"""The material from which generators learn and by which they are judged: pairs, texts, a joint space, and parts of
speech."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch

from pipeline.compute.multivectors import one_vector_each
from pipeline.config.stored import restore
from pipeline.errors import InputError, UsageError
from pipeline.index.queries import QueryForms
from pipeline.models.joint_model import Features, JointModel
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.task import TrainingPairs
from pipeline.models.neural.training import Checkpoint, Training
from pipeline.text.dependencies import read_conllu
from pipeline.text.sequences import Tokens
from pipeline.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from pipeline.models.neural.fragment_models import AlignedModel

Value = TypeVar("Value")

BLOCK = 8192
"""Maximum number of sentences that are embedded at once."""
TAGS = (
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "SCONJ", "VERB", "X",
)  # fmt: skip
"""The universal parts of speech, except punctuation and symbols, which our sentences do not have."""
UNKNOWN = "-"
"""The tagger's input for an unknown word."""


class JointSpace:
    """The joint space of an index's model: images, sentences and words as unit vectors. Raises UsageError where the
    model does not compare by cosine."""

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


def required(value: Value | None) -> Value:
    """Return a value that is there for this generator, because its spec says that it needs it."""
    assert value is not None
    return value


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
