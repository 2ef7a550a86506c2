"""Parts of speech for sentences of ours, by a tagger that learns from any treebank in CoNLL-U."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pipeline.errors import InputError, UsageError
from pipeline.text.sequences import Tokens

TAGS = (
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "SCONJ", "VERB", "X",
)  # fmt: skip
"""The universal parts of speech but those of punctuation and signs, which sentences of ours have not."""

UNKNOWN = "-"
"""What the tagger reads in place of an unknown word."""


class Tagged(NamedTuple):
    """A word of a treebank, lowercase, and its part of speech."""

    word: str
    tag: str


def read_treebank(lines: Iterable[str], source: str) -> Iterator[list[Tagged]]:
    """The sentences of CoNLL-U `lines` without punctuation, from columns 2 (FORM) and 4 (UPOS).

    Raises InputError naming `source` and the line of a row that has too few columns.
    """
    sentence: list[Tagged] = []
    for number, line in enumerate(lines, 1):
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
    if sentence:
        yield sentence


class Tagger:
    """nltk's averaged perceptron, taught by a treebank."""

    def __init__(self, treebank: Sequence[Sequence[Tagged]], seed: int) -> None:
        """Raises InputError where `treebank` is empty."""
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
        """The part of speech of every word of `tokens` over `terms`, as numbers of TAGS; of an unknown word, X."""
        numbers = {name: i for i, name in enumerate(TAGS)}
        ids, unknown, start = np.empty(len(tokens.ids), np.int32), len(terms), 0
        for words in tokens:
            spelt = [terms[i] if i < unknown else UNKNOWN for i in words]
            tags = [numbers[name] for _, name in self._tagger.tag(spelt)]
            ids[start : start + len(words)] = np.where(words == unknown, numbers["X"], tags)
            start += len(words)
        return Tokens(ids, tokens.offsets - tokens.offsets[0])


def require_tagger(treebank: Sequence[Sequence[Tagged]] | None, seed: int) -> Tagger:
    """A tagger taught by `treebank`; raises UsageError where there is none."""
    if treebank is None:
        raise UsageError("sc-nlm needs parts of speech; give a CoNLL-U file as language_text.treebank")
    return Tagger(treebank, seed)
