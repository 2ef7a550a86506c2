"""Texts to terms: normalise, lowercase, tokenise, remove stop words, lemmatise, n-grams; all but the first are
optional."""

import re
import unicodedata
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pipeline.text.lemmas import STOP_WORDS, make_lemmatiser

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
"""Letters and digits, with inner apostrophes: `don't` is one word; punctuation is not a word."""
TOKENIZERS, LONGEST_NGRAM = ("treebank", "words"), 3


def normalise_text(text: str) -> str:
    """The one spelling of a text (Unicode's NFKC), in which everything that encodes texts reads it: accents may be
    characters of their own, as on a Mac, and letters as wide as Chinese ones."""
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


@dataclass(frozen=True)
class TermSettings:
    """How a text becomes terms. `stop_words` are removed before and after lemmatising; `lemmas` are those of the words
    that a vocabulary was built from (see `choose_lemmas`), so that they need no dictionary, which takes as long to load
    as a search. Texts that are not `english` keep their words."""

    lowercase: bool
    tokenizer: str
    lemmatise: bool
    stop_words: Collection[str]
    max_ngram: int
    lemmas: Mapping[str, str] = field(default_factory=dict)
    english: bool = True

    @property
    def finds_lemmas(self) -> bool:
        return self.lemmatise and self.english

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "TermSettings":
        """From JSON. ValueError where that holds something else."""
        found = cls(**value)
        flags = all(isinstance(flag, bool) for flag in (found.lowercase, found.lemmatise, found.english))
        if not flags or found.tokenizer not in TOKENIZERS or not all(isinstance(one, str) for one in found.stop_words):
            raise ValueError("its rules for making terms are none of ours")
        if not all(isinstance(one, str) for pair in found.lemmas.items() for one in pair):
            raise ValueError("its lemmas are not words")
        if found.max_ngram not in range(1, LONGEST_NGRAM + 1):
            raise ValueError(f"its max_ngram is not in 1 to {LONGEST_NGRAM}")
        return found


def make_analyzer(settings: TermSettings) -> Callable[[str], list[str]]:
    """The function text -> terms: words, then pairs of adjacent words joined by a space, and so on."""
    read = make_reader(settings)
    lengths = range(2, settings.max_ngram + 1)

    def analyze(text: str) -> list[str]:
        words = [term for _, term in read(text)]
        return words + [" ".join(words[i : i + n]) for n in lengths for i in range(len(words) - n + 1)]

    return analyze


def make_reader(settings: TermSettings) -> Callable[[str], list[tuple[str, str]]]:
    """The function text -> its words, each with its term: itself, or its lemma."""
    split = _tokenizer(settings.tokenizer)
    stop = frozenset(settings.stop_words)
    lemmatise = make_lemmatiser(settings.lemmas)
    if not settings.lemmas:
        lemmatise = lru_cache(maxsize=1 << 17)(lemmatise)

    def read(text: str) -> list[tuple[str, str]]:
        text = normalise_text(text)
        words = split(text.lower() if settings.lowercase else text)
        words = [word for word in words if word.lower() not in stop]
        if not settings.finds_lemmas:
            return [(word, word) for word in words]
        pairs = ((word, lemmatise(word)) for word in words)
        return [(word, lemma) for word, lemma in pairs if lemma.lower() not in stop]

    return read


def says_something(term: str, settings: TermSettings) -> bool:
    """Whether a term by these `settings` is more than English stop words; in other languages, always."""
    return not settings.english or any(word.lower() not in STOP_WORDS for word in term.split(" "))


def english_stop_words() -> list[str]:
    """scikit-learn's English stop words, sorted."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    return sorted(ENGLISH_STOP_WORDS)


def _tokenizer(name: str) -> Callable[[str], list[str]]:
    if name == "words":
        return WORD.findall
    from pipeline.text.treebank_words import treebank_tokenizer

    treebank = treebank_tokenizer()
    return lambda text: [token for token in treebank(text) if WORD.search(token)]
