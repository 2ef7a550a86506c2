"""Training a spaCy tagger and dependency parser on a treebank, and the agreement of parses with one."""

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
"""Word properties whose hashed vectors are combined, and the size of each hash table."""


@dataclass(frozen=True)
class Agreement:
    """Percent of `words` (with punctuation) that agree with the treebank in their head (`uas`), head and full relation
    (`las`), head and relation without subtype (`las_universal`), and treebank part of speech (`tags`)."""

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
    uas = las = las_universal = tags = 0
    for ours, theirs in zip(found, gold, strict=True):
        for word in range(len(theirs)):
            attached = ours.heads[word] == theirs.heads[word]
            mine, true = ours.relations[word], theirs.relations[word]
            uas += attached
            las += attached and mine == true
            las_universal += attached and mine.partition(":")[0] == true.partition(":")[0]
            tags += ours.xpos[word] == theirs.xpos[word]
    words = sum(map(len, gold))
    shares = (100 * right / max(words, 1) for right in (uas, las, las_universal, tags))
    return Agreement(*shares, words, len(gold))


def judge(pipeline: "Language", gold: Sequence[Parse]) -> Agreement:
    """The agreement of `pipeline` with `gold`, on the treebank's own words."""
    return compare(list(parse_words(pipeline, (parse.words for parse in gold))), gold)


class ParserTraining:
    """Trains `pipeline` on `training` and keeps the epoch that is best on `dev`.

    Raises InputError if a treebank has no sentences.
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
        self._optimiser = self.pipeline.initialize(lambda: self._examples)
        self._optimiser.learn_rate = settings.learning_rate
        self._random = random.Random(seed)

    def learn(self) -> Iterator[Agreement]:
        """Train, yielding the agreement on dev after each epoch."""
        best, stale, kept = -1.0, 0, None
        for _ in range(self.settings.epochs):
            self._random.shuffle(self._examples)
            for batch in _batches(self._examples, self.settings.batch_words):
                self.pipeline.update(batch, sgd=self._optimiser, drop=self.settings.dropout)
            with self.pipeline.use_params(self._optimiser.averages):
                agreement = judge(self.pipeline, self._dev)
                stale += 1
                if agreement.las > best:
                    best, stale, kept = agreement.las, 0, self.pipeline.to_bytes(exclude=["tokenizer"])
            yield agreement
            if stale >= self.settings.patience:
                break
        self.pipeline.from_bytes(kept, exclude=["tokenizer"])


def _batches(examples: "list[Example]", words: int) -> "Iterator[list[Example]]":
    """Consecutive examples of about `words` words in all."""
    batch: list[Example] = []
    limit = words
    for example, end in zip(examples, accumulate(map(len, examples)), strict=True):
        batch.append(example)
        if end >= limit:
            yield batch
            batch, limit = [], end + words
    if batch:
        yield batch


def _blank(settings: ParserSettings) -> "Language":
    """An untrained pipeline: hashed word properties, a shared convolution, a tagger, and an arc-eager parser."""
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

    text = {"words": list(parse.words), "spaces": list(parse.spaces)}
    heads = [number if head == ROOT else head for number, head in enumerate(parse.heads)]
    arcs = zip(parse.heads, parse.relations, strict=True)
    relations = ["ROOT" if head == ROOT else relation for head, relation in arcs]
    gold = Doc(pipeline.vocab, **text, tags=list(parse.xpos), heads=heads, deps=relations)
    return Example(Doc(pipeline.vocab, **text), gold)
