"""Splits texts into terms.

A text is normalised, converted to lower case and split into words. Optionally, stop words are removed, words are
replaced by their lemmas, and n-grams are added.

The script of a text, and not its language, decides what a word is. In a script with spaces between words, terms are
words and n-grams of neighbouring words. Han, Kana, Thai, Lao, Khmer and Burmese have no spaces between words. In these
scripts each character (a letter with its marks) counts as a word, and terms are n-grams of neighbouring characters.
N-grams of Han characters alone have at most LONGEST_HAN characters.

In scripts with spaces, pieces of words can be terms as well. Pieces match the forms of a word with each other, and
compound words with their parts. English has no pieces, because they lower the recall of searches (docs/measured.md).
"""

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import filterfalse, groupby
from typing import Any, NamedTuple

from pipeline.text.lemmas import STOP_WORDS, make_lemmatiser

ASCII_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
"""A word of an ASCII text: letters and digits, with apostrophes inside. `don't` is one word."""
_LETTERS = r"[\p{L}\p{N}][\p{L}\p{N}\p{M}]*"
_SPACELESS = "".join(rf"\p{{scx={script}}}" for script in ("Han", "Hira", "Kana", "Thai", "Laoo", "Khmr", "Mymr"))
_HEBREW_POINTS = (*range(0x591, 0x5BE), 0x5BF, 0x5C1, 0x5C2, 0x5C4, 0x5C5, 0x5C7)
_ARABIC_SIGNS = (0x640, *range(0x610, 0x61B), *range(0x64E, 0x653), *range(0x656, 0x660), 0x670)
_DIRECTIONS = (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_JOINERS = (0xAD, 0x34F, 0x200D, 0x2060, 0xFEFF)
_VARIATIONS = (*range(0x180B, 0x1810), 0x20E3, *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
_REMOVED = (*_HEBREW_POINTS, *_ARABIC_SIGNS, *_DIRECTIONS, *_JOINERS, *_VARIATIONS)
SPELLINGS = dict.fromkeys(_REMOVED) | dict.fromkeys(range(0x64B, 0x64E), " ") | {0x2019: "'", 0x2BC: "'"}
"""Mapping from characters to their replacements in words, or to None for characters that are removed. Hebrew points,
Arabic vowel signs, and the sign that stretches Arabic letters are removed, because they are rarely written. Marks of
the writing direction, soft hyphens, invisible joiners and variation selectors are removed, because they do not change a
word. The Arabic case endings of tanwin are replaced by a space, so that the stem of the word is the same with and
without the ending. All apostrophes become ASCII apostrophes."""
_OTHER_DIGIT = re.compile(r"[^\D0-9]")
LONGEST_NGRAM = 3
"""Largest number of words, or of characters, in an n-gram."""
LONGEST_HAN = 2
"""Largest number of characters in an n-gram of Han characters alone. Han characters are morphemes, and two of them form
most Chinese words. The characters of the other scripts are letters."""

PIECE = "~"
"""First character of a term that is a piece of a word."""
WORD_END = "_"
"""Character in a piece for the beginning or the end of the word."""
PIECE_LENGTHS = (2, 3, 4)
"""Numbers of letters in a piece of a word, including WORD_END."""


class Patterns(NamedTuple):
    """Compiled patterns for texts with characters outside ASCII.

    `word` matches a word like ASCII_WORD, with combining marks. `spaceless` matches a sequence of characters of scripts
    without spaces between words, and `han` a sequence of Han characters. `character` matches a user-perceived
    character, such as a consonant cluster of Khmer with its vowel signs. `letter` matches one letter with its marks.
    `non_joiner` matches a zero-width non-joiner that follows a mark, as in Indic scripts. Such a non-joiner is removed,
    because it is inside a word. A non-joiner that follows a letter, as in Persian, is not matched, and separates parts
    of words.
    """

    word: Any
    spaceless: Any
    han: Any
    character: Any
    letter: Any
    non_joiner: Any


@lru_cache(maxsize=1)
def _patterns() -> Patterns:
    """Compile the patterns with the library `regex`, which knows scripts and marks. As long as all texts are ASCII, the
    library is not imported."""
    import regex

    word = rf"{_LETTERS}(?:'{_LETTERS})*"
    spaceless = rf"(?V1)[[{_SPACELESS}]&&[\p{{L}}\p{{N}}\p{{M}}]]+"
    han = r"\p{scx=Han}+"
    non_joiner = r"(?<=\p{M})\u200c"
    return Patterns(*map(regex.compile, (word, spaceless, han, r"\X", r"\P{M}\p{M}*", non_joiner)))


def normalise_text(text: str) -> str:
    """Return a text in the normal form NFKC of Unicode. All text encoders read texts in this form.

    This form unifies different spellings of the same letters, such as accents as separate characters (common on macOS),
    and full-width letters.
    """
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


@dataclass(frozen=True)
class TermSettings:
    """The settings for splitting a text into terms.

    If `lemmatise` and `english` are true, words are replaced by their lemmas. `lemmas` maps the words from which a
    vocabulary was built to their terms (see `choose_lemmas`). The dictionary is loaded only for other words, because
    loading it takes as long as a search. `stop_words` are removed before and after the words are replaced. Terms are
    n-grams of up to `max_ngram` words, or of up to `max_characters` characters in scripts without spaces. If `pieces`
    is true, pieces of words are terms as well.
    """

    lemmatise: bool
    stop_words: Collection[str]
    max_ngram: int
    lemmas: Mapping[str, str] = field(default_factory=dict)
    english: bool = True
    max_characters: int = 1
    pieces: bool = False

    @property
    def finds_lemmas(self) -> bool:
        return self.lemmatise and self.english

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON. `pieces` is left out if it is false. Settings that were stored before `pieces`
        existed thus keep their digests."""
        return {name: value for name, value in asdict(self).items() if name != "pieces" or value}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "TermSettings":
        """Return the settings from the result of `to_dict`. Raises ValueError if a value has another form, and
        TypeError if a key is unknown, or if a key without a default is missing."""
        found = cls(**value)
        flags = all(isinstance(flag, bool) for flag in (found.lemmatise, found.english, found.pieces))
        if not flags or not all(isinstance(word, str) for word in found.stop_words):
            raise ValueError(
                "the stored settings of terms are damaged: lemmatise, english and pieces must be true or false, and"
                " every stop word must be a text"
            )
        if not all(isinstance(word, str) for pair in found.lemmas.items() for word in pair):
            raise ValueError("the stored settings of terms are damaged: lemmas must map words to words")
        for longest in (found.max_ngram, found.max_characters):
            if longest not in range(1, LONGEST_NGRAM + 1):
                raise ValueError(
                    f"the stored settings of terms are damaged: the length of the longest n-gram is {longest!r}"
                    f" (max_ngram or max_characters), but must be from 1 to {LONGEST_NGRAM}"
                )
        return found


class WordRun(NamedTuple):
    """Neighbouring words of a text, each with its term, which is the word itself or its lemma.

    `between` is the text between the words: a space, or nothing if the words are characters of a script without spaces.
    """

    between: str
    words: list[str]
    terms: list[str]


def list_letters(word: str) -> list[str]:
    """Return the letters of a word, each with its marks, with WORD_END before and after them."""
    return [WORD_END, *(word if word.isascii() else _patterns().letter.findall(word)), WORD_END]


@lru_cache(maxsize=1 << 16)
def cut_word(word: str) -> tuple[str, ...]:
    """Return the pieces of a word with the lengths PIECE_LENGTHS, the shortest first, each after the character PIECE.
    The whole word is not a piece."""
    letters = list_letters(word)
    spans = [(start, start + n) for n in PIECE_LENGTHS if n < len(letters) for start in range(len(letters) - n + 1)]
    return tuple(PIECE + "".join(letters[start:stop]) for start, stop in spans)


def make_analyzer(settings: TermSettings, cut: Callable[[str], Sequence[str]] = cut_word) -> Callable[[str], list[str]]:
    """Return a function that lists the terms of a text: first the words, then the pairs of neighbouring words, and so
    on up to the longest n-grams. A term is listed as often as it occurs. N-grams of Han characters alone are not longer
    than LONGEST_HAN.

    If `settings.pieces` is true, the last terms are the pieces of the words in scripts with spaces. `cut` is the
    function that returns the pieces of a word.
    """
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
        if settings.pieces:
            found += [piece for between, _, terms in runs if between for term in terms for piece in cut(term)]
        return found

    return analyze


def make_reader(settings: TermSettings) -> Callable[[str], Iterator[WordRun]]:
    """Return a function that yields the runs of neighbouring words of a text, in order. Stop words are removed, so that
    a run may have no words, and the words around a stop word become neighbours."""
    stop = frozenset(settings.stop_words)
    lemmatise = make_lemmatiser(settings.lemmas)
    if not settings.lemmas:
        lemmatise = lru_cache(maxsize=1 << 17)(lemmatise)

    def read(text: str) -> Iterator[WordRun]:
        for between, words in _runs(_words(_spell(text))):
            words = [word for word in words if word.lower() not in stop]
            terms = words
            if settings.finds_lemmas:
                pairs = [(word, lemmatise(word)) for word in words]
                pairs = [(word, lemma) for word, lemma in pairs if lemma.lower() not in stop]
                words = [word for word, _ in pairs]
                terms = [lemma for _, lemma in pairs]
            yield WordRun(between, words, terms)

    return read


def _spell(text: str) -> str:
    """Convert a text to lower case, and unify spellings by SPELLINGS.

    Digits of all scripts become ASCII digits. The dot that lower case adds to the Turkish capital I is removed.
    """
    text = normalise_text(text)
    if text.isascii():
        return text.lower()
    text = text.translate(SPELLINGS).lower().replace("i\u0307", "i")
    text = _patterns().non_joiner.sub("", text) if "\u200c" in text else text
    return _OTHER_DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), text)


def _words(text: str) -> list[str]:
    return ASCII_WORD.findall(text) if text.isascii() else _patterns().word.findall(text)


def _runs(tokens: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Group tokens into runs of words with spaces between them, and runs of characters of scripts without spaces.

    Yield a pair for each run: the text between its words, which is a space or empty, and the words.
    """
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
    """Return the words of a term. In scripts without spaces, the words are the characters of the term."""
    return [word for _, words in _runs(term.split(" ")) for word in words]


def join_words(words: Iterable[str]) -> str:
    """Join words to a text that `make_reader` splits into the same words. Characters of scripts without spaces are
    joined without a space."""
    return " ".join(("" if spaceless else " ").join(group) for spaceless, group in groupby(words, _is_spaceless))


def says_something(term: str, settings: TermSettings) -> bool:
    """Return whether a term has a word that is not an English stop word. If `settings.english` is false, always return
    true."""
    return not settings.english or any(word.lower() not in STOP_WORDS for word in term.split(" "))


def english_stop_words() -> list[str]:
    """Return the English stop words of scikit-learn in alphabetical order."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    return sorted(ENGLISH_STOP_WORDS)
