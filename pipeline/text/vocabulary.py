"""The vocabulary: the most common terms of the training sentences."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import SequenceMatcher, get_close_matches
from functools import cached_property
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack

import numpy as np

from pipeline.errors import InputError
from pipeline.text.lemmas import choose_lemmas, is_english
from pipeline.text.tokens import TermSettings, WordRun, make_analyzer, make_reader, says_something, words_of

if TYPE_CHECKING:
    from pipeline.text.counting import TermCounts

LARGEST = float(np.finfo(np.float32).max)
EDITS, NEAR = 2, 5
"""Letters by which a word may differ from one that is suggested for it, and those of which the nearest is chosen."""
POOR = 0.1
"""Share of dev's sentences without a known word, or of its words that are unknown, above which a person is warned."""


def _edits(word: str, other: str) -> int:
    """Letters that are added, left out or replaced between two words; none between words of the same letters."""
    if sorted(word) == sorted(other):
        return 0
    codes = SequenceMatcher(None, word, other, autojunk=False).get_opcodes()
    return sum(max(b - a, d - c) for kind, a, b, c, d in codes if kind != "equal")


class VocabularySizes(TypedDict):
    """What is kept of the terms of training sentences; see `learn_vocabulary`."""

    size: int
    min_count: int
    idf: bool
    normalise: bool


class CountsWords(Protocol):
    """A text encoder or a vocabulary, which says how much of a text it knows."""

    def count_words(self, text: str) -> tuple[int, int]: ...

    def knows(self, text: str) -> bool: ...


class KnownTerms:
    """Says which words of a text are known: those of its `terms`, which `split` makes of a text."""

    split: TermSettings
    terms: Sequence[str]

    @cached_property
    def index(self) -> dict[str, int]:
        """Row of every term."""
        return {term: row for row, term in enumerate(self.terms)}

    @cached_property
    def analyze(self) -> Callable[[str], list[str]]:
        return make_analyzer(self.split)

    @cached_property
    def read(self) -> Callable[[str], Iterator[WordRun]]:
        return make_reader(self.split)

    def rows(self, text: str) -> list[int]:
        """The rows of the known terms of `text`."""
        return [self.index[term] for term in self.analyze(text) if term in self.index]

    def knows(self, text: str) -> bool:
        """Whether a term of `text` is known."""
        return bool(self.rows(text))

    def searches(self, text: str) -> bool:
        """Whether a term of `text` is known that is not of English stop words alone."""
        return any(says_something(self.terms[row], self.split) for row in self.rows(text))

    def suggest(self, word: str) -> str | None:
        """The known word that is nearest to `word` by its spelling, nearer than another word would be by chance: at
        most two letters of eight differ, one of five, and of fewer none, unless they are in another order. None
        without any."""
        starts, most = (word[:1], word[1::-1]), min(EDITS, (len(word) - 2) // 3)
        known = {other for term in self.terms for other in term.split(" ") if other.startswith(starts)}
        near = get_close_matches(word, sorted(other for other in known if abs(len(other) - len(word)) <= EDITS), NEAR)
        edits, nearest = min(((_edits(word, other), other) for other in near), default=(EDITS + 1, None))
        return nearest if edits <= most else None

    def unknown(self, text: str) -> list[str]:
        """The words of `text`, not their lemmas, that are part of no known term, each once; unknown characters that
        are neighbours are one word. Stop words are not listed."""
        words: dict[str, None] = {}
        for between, marked in self._marked(text):
            for is_known, group in groupby(marked, lambda pair: pair[1]):
                if not is_known:
                    strange = [word for word, _ in group]
                    words |= dict.fromkeys(strange if between else ["".join(strange)])
        return list(words)

    def count_words(self, text: str) -> tuple[int, int]:
        """How many words `text` has, and how many of them are part of no known term."""
        flags = [is_known for _, marked in self._marked(text) for _, is_known in marked]
        return len(flags), flags.count(False)

    def _marked(self, text: str) -> Iterator[tuple[str, list[tuple[str, bool]]]]:
        """The runs of words of `text`, each word with whether it is part of a known term of this text."""
        known = {word for row in self.rows(text) for word in words_of(self.terms[row])}
        for between, words, terms in self.read(text):
            yield between, [(word, term in known) for word, term in zip(words, terms, strict=True)]


@dataclass(frozen=True)
class Coverage:
    """How much of some `sentences` a text encoder or a vocabulary knows: in `without` of them it knows no word, and of
    all their `words` it does not know `unknown`."""

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
        """Whether more than POOR of the sentences, or of their words, are lost."""
        return self.without > POOR * self.sentences or self.unknown > POOR * self.words

    def __str__(self) -> str:
        known = f"{self.without:,} of {self.sentences:,} dev sentences have no known word"
        return f"{known}; {100 * self.unknown / max(self.words, 1):.1f} % of their words are unknown"


@dataclass(frozen=True)
class Vocabulary(KnownTerms):
    """`terms` by falling document frequency (ties alphabetical), and their inverse document frequencies.

    idf_i = ln((1 + n) / (1 + df_i)) + 1 over the n training sentences, or 1 without idf. With the settings, this is
    everything that encoding needs, so a bundle can carry it.
    """

    settings: TermSettings
    normalise: bool
    terms: Sequence[str]
    idf: tuple[float, ...]
    n_sentences: int

    @property
    def split(self) -> TermSettings:  # pyright: ignore[reportIncompatibleVariableOverride]  # no code assigns it
        return self.settings

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Vocabulary":
        """The inverse of `to_dict`; ignores other keys. ValueError where terms and idf do not fit."""
        settings = TermSettings.from_dict(value["settings"])
        terms, idf = tuple(value["terms"]), tuple(value["idf"])
        if not all(isinstance(term, str) for term in terms) or not isinstance(value["normalise"], bool):
            raise ValueError("its terms are not text, or normalise is not true or false")
        if (
            len(idf) != len(terms)
            or len(set(terms)) != len(terms)
            or not (np.abs(np.array(idf, float)) < LARGEST).all()
        ):
            raise ValueError("its terms are not each once, with one idf each")
        return cls(settings, value["normalise"], terms, idf, value["n_sentences"])


def build_vocabulary(sentences: Iterable[str], settings: TermSettings, **sizes: Unpack[VocabularySizes]) -> Vocabulary:
    """As `learn_vocabulary`, of sentences that can be read twice."""
    from pipeline.text.counting import count_terms  # which loads pyarrow: queries do without

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
    """The `size` most common terms that at least `min_count` of the sentences contain whose terms `count` counts: their
    words first, by which lemmas are chosen if the sentences are English. Raises InputError if there are none."""
    plain = replace(settings, lemmatise=False, max_ngram=1, max_characters=1)
    counts = count(plain)
    words = counts.all()
    settings = replace(settings, english=is_english(words))
    if settings.finds_lemmas:
        settings = replace(settings, lemmas=choose_lemmas(words, settings.stop_words, min_count))
    if settings.finds_lemmas or settings.max_ngram > 1 or settings.max_characters > 1:
        counts = count(settings)

    common = counts.most_common(size, min_count)
    if not common:
        raise InputError(f"no term occurs in {min_count} of the {counts.n} training sentences; lower text.min_count")
    terms, frequencies = zip(*common, strict=True)
    weights = np.log((1 + counts.n) / (1 + np.asarray(frequencies))) + 1 if idf else np.ones(len(terms))
    kept = {word for term in terms for word in words_of(term)}.union(settings.stop_words)
    lemmas = {word: term for word, term in settings.lemmas.items() if term in kept or term.lower() in kept}
    return Vocabulary(replace(settings, lemmas=lemmas), normalise, terms, tuple(weights.tolist()), counts.n)
