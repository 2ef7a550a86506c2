"""Texts to terms: lowercase, tokenise, remove stop words, lemmatise, n-grams; every step is optional."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
"""Letters and digits, with inner apostrophes: `don't` is one word; punctuation is not a word."""
TOKENIZERS, LONGEST_NGRAM = ("treebank", "words"), 3


@dataclass(frozen=True)
class TermSettings:
    """How a text becomes terms. `stop_words` are removed before and after lemmatising; `lemmas` are those of the words
    that a vocabulary was built from, so that they need no dictionary, which takes as long to load as a search."""

    lowercase: bool
    tokenizer: str
    lemmatise: bool
    stop_words: Collection[str]
    max_ngram: int
    lemmas: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "TermSettings":
        """From JSON. ValueError where that holds something else."""
        found = cls(**value)
        flags = isinstance(found.lowercase, bool) and isinstance(found.lemmatise, bool)
        if not flags or found.tokenizer not in TOKENIZERS or not all(isinstance(one, str) for one in found.stop_words):
            raise ValueError("its rules for making terms are none of ours")
        if not all(isinstance(one, str) for pair in found.lemmas.items() for one in pair):
            raise ValueError("its lemmas are not words")
        if found.max_ngram not in range(1, LONGEST_NGRAM + 1):
            raise ValueError(f"its max_ngram is not in 1 to {LONGEST_NGRAM}")
        return found


def make_analyzer(settings: TermSettings) -> Callable[[str], list[str]]:
    """The function text -> terms: words, then pairs of adjacent words joined by a space, and so on."""
    split = _tokenizer(settings.tokenizer)
    known, others = settings.lemmas.get, lru_cache(maxsize=1 << 17)(find_lemma)
    stop = frozenset(settings.stop_words)

    def analyze(text: str) -> list[str]:
        words = split(text.lower() if settings.lowercase else text)
        words = [word for word in words if word.lower() not in stop]
        if settings.lemmatise:
            lemmas = (known(word) or others(word) for word in words)
            words = [lemma for lemma in lemmas if lemma.lower() not in stop]
        lengths = range(2, settings.max_ngram + 1)
        return words + [" ".join(words[i : i + n]) for n in lengths for i in range(len(words) - n + 1)]

    return analyze


def find_lemma(word: str) -> str:
    """The English lemma of any word."""
    import simplemma

    return simplemma.lemmatize(word, lang="en")


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
