"""A spaCy tagger and dependency parser learned from a treebank, and how well parses agree with one."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from pipeline.errors import InputError
from pipeline.settings.parse import ParserSettings
from pipeline.text.conllu import ROOT, Parse
from pipeline.text.parsing import parse_words, require_spacy

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.training import Example

LANGUAGE = "en"
ROWS = {"NORM": 5000, "PREFIX": 1000, "SUFFIX": 2500, "SHAPE": 2500}
"""Properties of a word that its vector is the sum of, and rows of each one's hashed table."""


@dataclass(frozen=True)
class Agreement:
    """Percent of `words` (punctuation too) whose head (`uas`), head and whole relation (`las`), head and relation
    without its subtype (`las_universal`), and own part of speech (`tags`) are the treebank's."""

    uas: float
    las: float
    las_universal: float
    tags: float
    words: int
    sentences: int

    def to_dict(self) -> dict[str, float]:
        return {name: round(value, 2) for name, value in asdict(self).items()}


def compare(found: Sequence[Parse], gold: Sequence[Parse]) -> Agreement:
    """How well `found` agree with `gold`, which have the same words."""
    right = {"uas": 0, "las": 0, "las_universal": 0, "tags": 0}
    for ours, theirs in zip(found, gold, strict=True):
        for word in range(len(theirs)):
            attached = ours.heads[word] == theirs.heads[word]
            mine, true = ours.relations[word], theirs.relations[word]
            right["uas"] += attached
            right["las"] += attached and mine == true
            right["las_universal"] += attached and mine.partition(":")[0] == true.partition(":")[0]
            right["tags"] += ours.xpos[word] == theirs.xpos[word]
    words = sum(map(len, gold))
    return Agreement(
        **{name: 100 * count / max(words, 1) for name, count in right.items()}, words=words, sentences=len(gold)
    )


def judge(pipeline: "Language", gold: Sequence[Parse]) -> Agreement:
    """The agreement of what `pipeline` makes of the words of `gold` (so with the treebank's tokenisation)."""
    return compare(list(parse_words(pipeline, (parse.words for parse in gold))), gold)


class ParserTraining:
    """Learns from `training` and is judged on `dev`; `pipeline` is then the one of the best epoch.

    Raises InputError where a treebank has no sentence.
    """

    def __init__(self, training: Sequence[Parse], dev: Sequence[Parse], settings: ParserSettings, seed: int) -> None:
        for name, parses in {"training": training, "dev": dev}.items():
            if not any(map(len, parses)):
                raise InputError(f"the {name} treebank has no sentence; give a CoNLL-U file with some")
        spacy = require_spacy()
        spacy.util.fix_random_seed(seed)
        self.settings = settings
        self.pipeline = _blank(settings)
        self._dev = [parse for parse in dev if len(parse)]
        self._examples = [_example(self.pipeline, parse) for parse in training if len(parse)]
        optimiser = self.pipeline.initialize(lambda: self._examples)
        optimiser.learn_rate = settings.learning_rate
        self._optimiser = optimiser
        self._random = random.Random(seed)

    def learn(self) -> Iterator[Agreement]:
        """Train, one epoch after another, yielding the agreement on dev after each."""
        best, stale, kept = -1.0, 0, None
        for _ in range(self.settings.epochs):
            self._pass()
            with self.pipeline.use_params(self._optimiser.averages):
                agreement = judge(self.pipeline, self._dev)
                stale += 1
                if agreement.las > best:
                    best, stale, kept = agreement.las, 0, self.pipeline.to_bytes(exclude=["tokenizer"])
            yield agreement
            if stale >= self.settings.patience:
                break
        self.pipeline.from_bytes(kept, exclude=["tokenizer"])

    def _pass(self) -> None:
        self._random.shuffle(self._examples)
        for batch in _batches(self._examples, self.settings.batch_words):
            self.pipeline.update(batch, sgd=self._optimiser, drop=self.settings.dropout)


def _batches(examples: "list[Example]", words: int) -> "Iterator[list[Example]]":
    """Neighbours together that have about `words` words."""
    ends = accumulate(map(len, examples))
    batch: list[Example] = []
    limit = words
    for example, end in zip(examples, ends, strict=True):
        batch.append(example)
        if end >= limit:
            yield batch
            batch, limit = [], end + words
    if batch:
        yield batch


def _blank(settings: ParserSettings) -> "Language":
    """Hashed word properties, a shared convolution, and on it a tagger and an arc-eager parser."""
    spacy = require_spacy()
    listener: dict[str, Any] = {"@architectures": "spacy.Tok2VecListener.v1", "width": settings.width, "upstream": "*"}
    embed = {
        "@architectures": "spacy.MultiHashEmbed.v2",
        "width": settings.width,
        "attrs": list(ROWS),
        "rows": list(ROWS.values()),
        "include_static_vectors": False,
    }
    encode = {
        "@architectures": "spacy.MaxoutWindowEncoder.v2",
        "width": settings.width,
        "depth": settings.depth,
        "window_size": 1,
        "maxout_pieces": 3,
    }
    parser = {
        "@architectures": "spacy.TransitionBasedParser.v2",
        "state_type": "parser",
        "extra_state_tokens": False,
        "hidden_width": settings.hidden,
        "maxout_pieces": 2,
        "use_upper": True,
        "tok2vec": listener,
    }
    pipeline = spacy.blank(LANGUAGE)
    pipeline.add_pipe(
        "tok2vec", config={"model": {"@architectures": "spacy.Tok2Vec.v2", "embed": embed, "encode": encode}}
    )
    pipeline.add_pipe("tagger", config={"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": listener}})
    pipeline.add_pipe("parser", config={"model": parser})
    return pipeline


def _example(pipeline: "Language", parse: Parse) -> "Example":
    from spacy.tokens import Doc
    from spacy.training import Example

    heads = [number if head == ROOT else head for number, head in enumerate(parse.heads)]
    relations = [
        "ROOT" if head == ROOT else relation for head, relation in zip(parse.heads, parse.relations, strict=True)
    ]
    gold = Doc(
        pipeline.vocab,
        words=list(parse.words),
        spaces=list(parse.spaces),
        tags=list(parse.xpos),
        heads=heads,
        deps=relations,
    )
    return Example(Doc(pipeline.vocab, words=list(parse.words), spaces=list(parse.spaces)), gold)
