"""Texts to terms: normalise, lowercase, split into words, remove stop words, lemmatise, n-grams; the last three are
optional.

Scripts decide, not languages: where a script has spaces between words, terms are words and n-grams of neighbouring
words; Han, Kana, Thai, Lao, Khmer and Burmese have none, so there characters are the words (a letter with the marks on
it is one), and terms are n-grams of the characters of a run: pairs of Han, and triples where others are among them.
"""

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import filterfalse, groupby
from typing import Any, NamedTuple

from pipeline.text.lemmas import STOP_WORDS, make_lemmatiser

ASCII_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
"""Letters and digits, with inner apostrophes: `don't` is one word; punctuation is not a word."""
_LETTERS = r"[\p{L}\p{N}][\p{L}\p{N}\p{M}\u200d]*"  # a zero-width joiner shapes letters of Hindi
_SPACELESS = "".join(rf"\p{{scx={script}}}" for script in ("Han", "Hira", "Kana", "Thai", "Laoo", "Khmr", "Mymr"))
_HEBREW_POINTS = (*range(0x591, 0x5BE), 0x5BF, 0x5C1, 0x5C2, 0x5C4, 0x5C5, 0x5C7)
_ARABIC_SIGNS = (0x640, *range(0x610, 0x61B), *range(0x64E, 0x653), *range(0x656, 0x660), 0x670)
VOWEL_SIGNS = dict.fromkeys((*_HEBREW_POINTS, *_ARABIC_SIGNS)) | dict.fromkeys(range(0x64B, 0x64E), " ")
"""What is rarely written, and so left out of words, and the stretching of Arabic letters with it. Tanwin, the ending of
a case, ends the word before it, so that the stem is found with and without it."""
LONGEST_NGRAM = 3
LONGEST_HAN = 2
"""Characters in an n-gram of Han alone: they are morphemes, and two make most words of Chinese; others are letters."""


class Patterns(NamedTuple):
    """Of texts beyond ASCII: a `word`, as ASCII_WORD, with combining marks; a run of a script without spaces between
    words, `spaceless`, and of `han` alone; and a `character`, a letter with its marks."""

    word: Any
    spaceless: Any
    han: Any
    character: Any


@lru_cache(maxsize=1)
def _patterns() -> Patterns:
    """By `regex`, which knows scripts and marks; searches in ASCII do without its import."""
    import regex

    word = rf"{_LETTERS}(?:['\u2019]{_LETTERS})*"
    spaceless = rf"(?V1)[[{_SPACELESS}]&&[\p{{L}}\p{{N}}\p{{M}}]]+"
    return Patterns(*map(regex.compile, (word, spaceless, r"\p{scx=Han}+", r"\X")))


def normalise_text(text: str) -> str:
    """The one spelling of a text (Unicode's NFKC), in which everything that encodes texts reads it: accents may be
    characters of their own, as on a Mac, and letters as wide as Chinese ones."""
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


@dataclass(frozen=True)
class TermSettings:
    """How a text becomes terms. `stop_words` are removed before and after lemmatising; `lemmas` are those of the words
    that a vocabulary was built from (see `choose_lemmas`), so that they need no dictionary, which takes as long to load
    as a search. Texts that are not `english` keep their words. Terms are n-grams of up to `max_ngram` words, or of up
    to `max_characters` characters where there are no spaces."""

    lemmatise: bool
    stop_words: Collection[str]
    max_ngram: int
    lemmas: Mapping[str, str] = field(default_factory=dict)
    english: bool = True
    max_characters: int = 1

    @property
    def finds_lemmas(self) -> bool:
        return self.lemmatise and self.english

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "TermSettings":
        """From JSON. ValueError where that holds something else."""
        found = cls(**value)
        flags = isinstance(found.lemmatise, bool) and isinstance(found.english, bool)
        if not flags or not all(isinstance(word, str) for word in found.stop_words):
            raise ValueError("its rules for making terms are none of ours")
        if not all(isinstance(one, str) for pair in found.lemmas.items() for one in pair):
            raise ValueError("its lemmas are not words")
        for longest in (found.max_ngram, found.max_characters):
            if longest not in range(1, LONGEST_NGRAM + 1):
                raise ValueError(f"its longest n-gram is not in 1 to {LONGEST_NGRAM}")
        return found


class WordRun(NamedTuple):
    """Neighbouring `words` of a text, each with its term: itself, or its lemma. `between` them there is a space, or
    nothing: then they are characters."""

    between: str
    words: list[str]
    terms: list[str]


def make_analyzer(settings: TermSettings) -> Callable[[str], list[str]]:
    """The function text -> terms: words, then pairs of neighbours, and so on."""
    read = make_reader(settings)
    longest = {" ": settings.max_ngram, "": settings.max_characters}
    lengths = range(1, max(longest.values()) + 1)

    def analyze(text: str) -> list[str]:
        runs = list(read(text))
        found = []
        for n in lengths:
            for between, _, terms in runs:
                if n <= longest[between]:
                    ngrams = (between.join(terms[start : start + n]) for start in range(len(terms) - n + 1))
                    found += ngrams if between or n <= LONGEST_HAN else filterfalse(_patterns().han.fullmatch, ngrams)
        return found

    return analyze


def make_reader(settings: TermSettings) -> Callable[[str], Iterator[WordRun]]:
    """The function text -> its runs of words, in order."""
    stop = frozenset(settings.stop_words)
    lemmatise = make_lemmatiser(settings.lemmas)
    if not settings.lemmas:
        lemmatise = lru_cache(maxsize=1 << 17)(lemmatise)

    def read(text: str) -> Iterator[WordRun]:
        text = normalise_text(text)
        text = text if text.isascii() else text.translate(VOWEL_SIGNS)
        for between, words in _runs(_words(text.lower())):
            words = [word for word in words if word.lower() not in stop]
            terms = words
            if settings.finds_lemmas:
                pairs = [(word, lemmatise(word)) for word in words]
                pairs = [(word, lemma) for word, lemma in pairs if lemma.lower() not in stop]
                words = [word for word, _ in pairs]
                terms = [lemma for _, lemma in pairs]
            yield WordRun(between, words, terms)

    return read


def _words(text: str) -> list[str]:
    return ASCII_WORD.findall(text) if text.isascii() else _patterns().word.findall(text)


def _runs(tokens: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Tokens as runs of words with a space between them, and runs of characters."""
    spaced: list[str] = []
    for token in tokens:
        if token.isascii() or not (spaceless := list(_patterns().spaceless.finditer(token))):
            spaced.append(token)
            continue
        end = 0
        for match in spaceless:
            spaced += _patterns().word.findall(token[end : match.start()])
            if spaced:
                yield " ", spaced
                spaced = []
            yield "", _patterns().character.findall(match[0])
            end = match.end()
        spaced += _patterns().word.findall(token[end:])
    if spaced:
        yield " ", spaced


def _is_spaceless(word: str) -> bool:
    return not word.isascii() and bool(_patterns().spaceless.fullmatch(word))


def words_of(term: str) -> list[str]:
    """The words that make a term: those between its spaces, or its characters."""
    return [word for _, words in _runs(term.split(" ")) for word in words]


def join_words(words: Iterable[str]) -> str:
    """The text that is read as these words: characters of scripts without spaces stand together."""
    return " ".join(("" if spaceless else " ").join(group) for spaceless, group in groupby(words, _is_spaceless))


def says_something(term: str, settings: TermSettings) -> bool:
    """Whether a term by these `settings` is more than English stop words; in other languages, always."""
    return not settings.english or any(word.lower() not in STOP_WORDS for word in term.split(" "))


def english_stop_words() -> list[str]:
    """scikit-learn's English stop words, sorted."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    return sorted(ENGLISH_STOP_WORDS)
