"""Part-of-speech tagging, learned from any treebank in CoNLL-U."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from pipeline.errors import InputError, UsageError
from pipeline.text.sequences import Tokens

TAGS = (
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "SCONJ", "VERB", "X",
)  # fmt: skip
"""The universal parts of speech, except punctuation and symbols, which our sentences do not have."""
UNKNOWN = "-"
"""The tagger's input for an unknown word."""


class Tagged(NamedTuple):
    """A word of a treebank, lowercase, and its part of speech."""

    word: str
    tag: str


def read_treebank(lines: Iterable[str], source: str) -> Iterator[list[Tagged]]:
    """The sentences of CoNLL-U `lines` without punctuation, from columns 2 (FORM) and 4 (UPOS).

    Raises InputError naming `source` and the line of a row with too few columns.
    """
    sentence: list[Tagged] = []
    for number, line in enumerate(chain(lines, [""]), 1):
        line = line.rstrip("\r\n")
        if not line:
            if sentence:
                yield sentence
            sentence = []
            continue
        columns = line.split("\t")
        if line.startswith("#"):
            continue
        if len(columns) < 4:
            raise InputError(f"{source}, line {number} has {len(columns)} columns and no part of speech; give CoNLL-U")
        if columns[0].isdigit() and columns[3] in TAGS:
            sentence.append(Tagged(columns[1].lower(), columns[3]))


class Tagger:
    """nltk's averaged perceptron, trained on a treebank."""

    def __init__(self, treebank: Sequence[Sequence[Tagged]], seed: int) -> None:
        """Raises InputError if `treebank` is empty."""
        import random

        from nltk.tag.perceptron import PerceptronTagger

        if not treebank:
            raise InputError("the treebank holds no tagged word; give CoNLL-U with parts of speech in column 4")
        before = random.getstate()
        random.seed(seed)  # the tagger shuffles with the global generator
        self._tagger = PerceptronTagger(load=False)
        self._tagger.train([list(map(tuple, sentence)) for sentence in treebank])
        random.setstate(before)

    def tag(self, tokens: Tokens, terms: Sequence[str]) -> Tokens:
        """The part of speech, a position in TAGS, of every word of `tokens` over `terms`; X for unknown words."""
        numbers = {name: i for i, name in enumerate(TAGS)}
        ids, unknown, start = np.empty(len(tokens.ids), np.int32), len(terms), 0
        for words in tokens:
            spelt = [terms[i] if i < unknown else UNKNOWN for i in words]
            tags = [numbers[name] for _, name in self._tagger.tag(spelt)]
            ids[start : start + len(words)] = np.where(words == unknown, numbers["X"], tags)
            start += len(words)
        return Tokens(ids, tokens.offsets - tokens.offsets[0])


def require_tagger(treebank: Sequence[Sequence[Tagged]] | None, seed: int) -> Tagger:
    """A tagger trained on `treebank`; raises UsageError if it is None."""
    if treebank is None:
        raise UsageError("sc-nlm needs parts of speech; give a CoNLL-U file as language_text.treebank")
    return Tagger(treebank, seed)
