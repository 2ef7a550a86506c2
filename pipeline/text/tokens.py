"""From a text to its terms: lowercase, tokenise, stop words, lemmatise, n-grams; each step can be left out."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
"""Letters and digits, with inner apostrophes: `don't` is one word, punctuation none."""


@dataclass(frozen=True)
class TermSettings:
    """Which steps lead from a text to its terms. `stop_words` are compared before and after lemmatising."""

    lowercase: bool
    tokenizer: str
    lemmatise: bool
    stop_words: Collection[str]
    max_ngram: int


def make_analyzer(settings: TermSettings) -> Callable[[str], list[str]]:
    """The function text -> terms: words, then pairs of neighbouring words joined by a space, and so on."""
    split = _tokenizer(settings.tokenizer)
    lemma = _lemmatizer() if settings.lemmatise else None
    stop = frozenset(settings.stop_words)

    def analyze(text: str) -> list[str]:
        words = split(text.lower() if settings.lowercase else text)
        words = [word for word in words if word.lower() not in stop]
        if lemma:
            words = [word for word in map(lemma, words) if word.lower() not in stop]
        return words + [gram for n in range(2, settings.max_ngram + 1) for gram in _ngrams(words, n)]

    return analyze


def english_stop_words() -> list[str]:
    """scikit-learn's English stop words, sorted."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    return sorted(ENGLISH_STOP_WORDS)


def _ngrams(words: list[str], n: int) -> list[str]:
    return [" ".join(words[i : i + n]) for i in range(len(words) - n + 1)]


def _tokenizer(name: str) -> Callable[[str], list[str]]:
    if name == "words":
        return WORD.findall
    from nltk.tokenize.destructive import NLTKWordTokenizer

    treebank = NLTKWordTokenizer().tokenize
    return lambda text: [token for token in treebank(text) if WORD.search(token)]


def _lemmatizer() -> Callable[[str], str]:
    import simplemma

    return lru_cache(maxsize=1 << 17)(lambda word: simplemma.lemmatize(word, lang="en"))
