"""Vocabularies: the most common terms of the training sentences, and sentences as sequences of word ids."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import SequenceMatcher, get_close_matches
from functools import cached_property, lru_cache, partial
from itertools import chain, groupby, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack

import numpy as np

from pipeline.compute.ragged import Ragged, offsets_of
from pipeline.errors import InputError
from pipeline.text.lemmas import choose_lemmas, is_english
from pipeline.text.tokens import (
    PIECE,
    PIECE_LENGTHS,
    TermSettings,
    WordRun,
    cut_word,
    list_letters,
    make_analyzer,
    make_reader,
    says_something,
    words_of,
)

if TYPE_CHECKING:
    from pipeline.text.counting import TermCounts

MAX_IDF = float(np.finfo(np.float32).max)
"""Largest number that float32 can store. A stored vocabulary is refused if the absolute value of an inverse document
frequency is not smaller than this number."""
MAX_EDITS = 2
"""Largest number of letters in which a suggested word may differ from the unknown word."""
SUGGESTION_CANDIDATES = 5
"""Maximum number of similar known words among which the suggestion is chosen."""
MAX_UNKNOWN_SHARE = 0.1
"""Largest share of the dev sentences that may have no known word, and of the words in dev that may be unknown, before a
warning is given."""
POSSIBLE_PIECES = 10
"""Minimum ratio of possible to known pieces that makes pieces of a length specific. The possible pieces are all
sequences of known letters of this length, and the known pieces are the known pieces of all lengths. With this ratio, an
unknown word rarely has a known piece of this length by chance. With 2,000 known pieces, specific pieces have 3 letters
in most alphabets, and 2 syllables in Korean."""


def _edits(word: str, other: str) -> int:
    """Count the letters that are added, removed or replaced between two words. A replaced letter counts once.

    The count is 0 if the two words have the same letters in another order.
    """
    if sorted(word) == sorted(other):
        return 0
    codes = SequenceMatcher(None, word, other, autojunk=False).get_opcodes()
    return sum(max(b - a, d - c) for kind, a, b, c, d in codes if kind != "equal")


class VocabularySizes(TypedDict):
    """The parameters of `learn_vocabulary` that decide which terms are kept and how they are weighted."""

    size: int
    min_count: int
    idf: bool
    normalise: bool


class CountsWords(Protocol):
    """A text encoder or a vocabulary that can report which words of a text it knows (see KnownTerms)."""

    def count_words(self, text: str) -> tuple[int, int]: ...

    def knows(self, text: str) -> bool: ...


class KnownTerms:
    """The base class of vocabularies and text encoders with a list of known terms. `split` has the settings by which a
    text is split into terms."""

    split: TermSettings
    terms: Sequence[str]

    @cached_property
    def index(self) -> dict[str, int]:
        """The position of every term in `terms`: term -> position."""
        return {term: row for row, term in enumerate(self.terms)}

    @cached_property
    def analyze(self) -> Callable[[str], list[str]]:
        return make_analyzer(self.split, self.cut)

    @cached_property
    def cut(self) -> Callable[[str], list[str]]:
        """The function that returns the pieces of a word that are among the known terms. The function returns no pieces
        for a word that counts as unknown, by the rule of `_cut`."""
        pieces = [term.removeprefix(PIECE) for term in self.terms if term.startswith(PIECE)]
        letters = {letter for piece in pieces for letter in list_letters(piece)}
        lengths = (n for n in PIECE_LENGTHS if len(letters) ** n >= POSSIBLE_PIECES * len(pieces))
        return lru_cache(maxsize=1 << 16)(partial(self._cut, length=next(lengths, PIECE_LENGTHS[-1])))

    def _cut(self, word: str, length: int) -> list[str]:
        """Return the pieces of a word that are terms, or no pieces if the word is unknown.

        A word is known if it is a term, or if specific pieces among the terms cover at least half of its letters.
        Specific pieces have `length` letters, or fewer if the word is shorter.
        """
        pieces = [piece for piece in cut_word(word) if piece in self.index]
        if word not in self.index:
            letters = list_letters(word)
            length = min(length, len(letters) - 1)
            starts = range(len(letters) - length + 1)
            known = [start for start in starts if PIECE + "".join(letters[start : start + length]) in self.index]
            covered = {position for start in known for position in range(start, start + length)}
            if 2 * len(covered - {0, len(letters) - 1}) < len(letters) - 2:
                return []
        return pieces

    @cached_property
    def read(self) -> Callable[[str], Iterator[WordRun]]:
        return make_reader(self.split)

    def rows(self, text: str) -> list[int]:
        """Return the positions in `terms` of the known terms in `text`, as often as the terms occur."""
        return [self.index[term] for term in self.analyze(text) if term in self.index]

    def knows(self, text: str) -> bool:
        """Return whether at least one term of `text` is known."""
        return bool(self.rows(text))

    def searches(self, text: str) -> bool:
        """Return whether `text` has a known term that does not consist of English stop words alone."""
        return any(says_something(self.terms[row], self.split) for row in self.rows(text))

    def suggest(self, word: str) -> str | None:
        """Return the known word whose spelling is most similar to `word`, or None if no known word is similar enough.

        Two letters may differ if `word` has 8 letters or more, one letter if it has 5 to 7, and none in shorter words.
        The letters may be in another order. The suggested word begins with the first letter of `word`, or with its
        first two letters in reversed order.
        """
        starts = (word[:1], word[1::-1])
        most = min(MAX_EDITS, (len(word) - 2) // 3)
        known = {other for term in self.terms for other in term.split(" ") if other.startswith(starts)}
        similar_length = sorted(other for other in known if abs(len(other) - len(word)) <= MAX_EDITS)
        near = get_close_matches(word, similar_length, SUGGESTION_CANDIDATES)
        edits, nearest = min(((_edits(word, other), other) for other in near), default=(MAX_EDITS + 1, None))
        return nearest if edits <= most else None

    def unknown(self, text: str) -> list[str]:
        """List the words of `text` that are not part of a known term and have no known pieces, each once and without
        stop words.

        Neighbouring unknown characters of a script without spaces are listed as one word.
        """
        words: dict[str, None] = {}
        for between, marked in self._marked(text):
            for is_known, group in groupby(marked, lambda pair: pair[1]):
                if not is_known:
                    strange = [word for word, _ in group]
                    words |= dict.fromkeys(strange if between else ["".join(strange)])
        return list(words)

    def count_words(self, text: str) -> tuple[int, int]:
        """Return the number of words in `text`, without stop words, and how many of them are unknown: not part of a
        known term, and without known pieces."""
        flags = [is_known for _, marked in self._marked(text) for _, is_known in marked]
        return len(flags), flags.count(False)

    def _marked(self, text: str) -> Iterator[tuple[str, list[tuple[str, bool]]]]:
        """Yield the runs of words of `text`. Each run is a pair: the text between its words (see WordRun), and a list
        of its words.

        The list has a pair for each word: the word, and whether it is part of a known term in `text` or has known
        pieces.
        """
        known = {word for row in self.rows(text) for word in words_of(self.terms[row])}
        for between, words, terms in self.read(text):
            has_pieces = self.split.pieces and between
            flags = [term in known or bool(has_pieces and self.cut(term)) for term in terms]
            yield between, list(zip(words, flags, strict=True))


@dataclass(frozen=True)
class Coverage:
    """Counts of the words that a text encoder or a vocabulary knows in some sentences.

    `sentences` is the number of sentences, and `without` is the number of sentences in which no word is known. `words`
    is the number of words in all sentences, without stop words, and `unknown` is the number of unknown words among
    them.
    """

    sentences: int
    without: int
    words: int
    unknown: int

    @classmethod
    def measure(cls, encoder: CountsWords, texts: Iterable[str]) -> "Coverage":
        sentences = without = words = unknown = 0
        for text in texts:
            count, missing = encoder.count_words(text)
            sentences += 1
            without += not encoder.knows(text)
            words += count
            unknown += missing
        return cls(sentences, without, words, unknown)

    @property
    def is_poor(self) -> bool:
        """Whether the share of sentences without a known word, or of unknown words, exceeds MAX_UNKNOWN_SHARE."""
        return self.without > MAX_UNKNOWN_SHARE * self.sentences or self.unknown > MAX_UNKNOWN_SHARE * self.words

    def __str__(self) -> str:
        known = f"{self.without:,} of {self.sentences:,} dev sentences have no known word"
        return f"{known}; {100 * self.unknown / max(self.words, 1):.1f} % of their words are unknown"


@dataclass(frozen=True)
class Vocabulary(KnownTerms):
    """A vocabulary: terms by falling document frequency (ties are alphabetical), and their weights `idf`.

    The weight of term i is ln((1 + n) / (1 + df_i)) + 1, where df_i of the n training sentences (`n_sentences`) contain
    the term. All weights are 1 if the vocabulary was built without idf. `settings` are the settings by which a text is
    split into terms, and `normalise` says whether vectors are scaled to unit length. An index stores a copy of the
    vocabulary, which suffices to encode queries.
    """

    settings: TermSettings
    normalise: bool
    terms: Sequence[str]
    idf: tuple[float, ...]
    n_sentences: int

    @property
    def split(self) -> TermSettings:  # pyright: ignore[reportIncompatibleVariableOverride]  # No code assigns `split`.
        return self.settings

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "settings": self.settings.to_dict()}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Vocabulary":
        """Return the vocabulary that `to_dict` has described. Other keys are ignored.

        Raises ValueError, or KeyError for a missing key, if the vocabulary does not have the form that `to_dict`
        writes.
        """
        settings = TermSettings.from_dict(value["settings"])
        terms = tuple(value["terms"])
        idf = tuple(value["idf"])
        if not all(isinstance(term, str) for term in terms) or not isinstance(value["normalise"], bool):
            raise ValueError(
                "the stored vocabulary is damaged: every term must be a text, and normalise must be true or false"
            )
        if (
            len(idf) != len(terms)
            or len(set(terms)) != len(terms)
            or not (np.abs(np.array(idf, float)) < MAX_IDF).all()
        ):
            raise ValueError(
                f"the stored vocabulary is damaged: the {len(terms)} terms must be different and have one finite idf"
                f" weight each, but there are {len(set(terms))} different terms and {len(idf)} weights"
            )
        return cls(settings, value["normalise"], terms, idf, value["n_sentences"])


def build_vocabulary(sentences: Iterable[str], settings: TermSettings, **sizes: Unpack[VocabularySizes]) -> Vocabulary:
    """Learn the vocabulary of `sentences`.

    `sizes` has four values. The vocabulary has at most `size` terms, which are in at least `min_count` sentences each.
    `idf` says whether terms are weighted by their inverse document frequency, and `normalise` whether vectors are
    scaled to unit length. Raises InputError if no term is in enough sentences.

    The sentences may be read twice, so `sentences` must not be an iterator.
    """
    from pipeline.text.counting import count_terms  # Queries do not need this import of pyarrow.

    with TemporaryDirectory(prefix="jointspace-counts-") as folder:
        return learn_vocabulary(lambda chosen: count_terms(sentences, chosen, Path(folder)), settings, **sizes)


def learn_vocabulary(
    count: "Callable[[TermSettings], TermCounts]",
    settings: TermSettings,
    *,
    size: int,
    min_count: int,
    idf: bool,
    normalise: bool,
) -> Vocabulary:
    """Learn a vocabulary of the `size` most common terms that are in at least `min_count` training sentences, or of all
    such terms if there are fewer.

    `count(settings)` counts the terms of the training sentences. The function is called for single words first. The
    counts of these words decide whether the sentences are English, and which lemmas are used. If lemmas, n-grams or
    pieces of words are terms too, `count` is called again for all terms. An English vocabulary has no pieces of words.
    In other languages, if `settings.pieces` is true, pieces take at most half of the vocabulary. `idf` says whether
    terms are weighted by their inverse document frequency, and `normalise` whether vectors are scaled to unit length.
    Raises InputError if no term is frequent enough.
    """
    plain = replace(settings, lemmatise=False, max_ngram=1, max_characters=1, pieces=False)
    counts = count(plain)
    words = counts.all()
    english = is_english(words)
    settings = replace(settings, english=english, pieces=settings.pieces and not english)
    if settings.finds_lemmas:
        settings = replace(settings, lemmas=choose_lemmas(words, settings.stop_words, min_count))
    if settings.finds_lemmas or settings.pieces or settings.max_ngram > 1 or settings.max_characters > 1:
        counts = count(settings)

    pieces = counts.most_common(size // 2, min_count, pieces=True) if settings.pieces else []
    common = counts.most_common(size - len(pieces), min_count) + pieces
    common.sort(key=lambda term: (-term[1], term[0]))
    if not common:
        raise InputError(
            f"The vocabulary would be empty, because no term occurs in {min_count} or more of the {counts.n} training"
            " captions. Lower text.min_count or, if a model that reads words needs the vocabulary, tokens.min_count."
        )
    terms, frequencies = zip(*common, strict=True)
    weights = np.log((1 + counts.n) / (1 + np.asarray(frequencies))) + 1 if idf else np.ones(len(terms))
    kept = {word for term in terms for word in words_of(term)}.union(settings.stop_words)
    lemmas = {word: term for word, term in settings.lemmas.items() if term in kept or term.lower() in kept}
    return Vocabulary(replace(settings, lemmas=lemmas), normalise, terms, tuple(weights.tolist()), counts.n)


@dataclass(frozen=True)
class Tokens(Ragged):
    """The word ids of m sentences. The words of sentence i are ids[offsets[i] : offsets[i + 1]].

    `ids` is (total,) int32 and `offsets` is (m + 1,) int64. Unknown words have the id V, for a vocabulary of V terms.
    """

    ids: np.ndarray
    offsets: np.ndarray

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self.ids[start:stop] for start, stop in pairwise(self.offsets))


def encode_tokens(texts: Iterable[str], vocabulary: Vocabulary) -> Tokens:
    """Encode texts as ids of words in a vocabulary of single words. Unknown words have the id V. A text without words
    has length 0."""
    analyze = make_analyzer(vocabulary.settings)
    index = vocabulary.index
    unknown = len(vocabulary.terms)
    sentences = [[index.get(word, unknown) for word in analyze(text)] for text in texts]
    offsets = offsets_of(list(map(len, sentences)))
    return Tokens(np.fromiter(chain.from_iterable(sentences), np.int32, offsets[-1]), offsets)
