"""The vocabulary: the most common terms of the training sentences, and how to find them in a text."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pipeline.errors import InputError
from pipeline.text.tokens import TermSettings, make_analyzer


@dataclass(frozen=True)
class Vocabulary:
    """`terms` by falling document frequency (ties alphabetical), with their inverse document frequency.

    idf of term i is ln((1 + n) / (1 + df_i)) + 1 over the n training sentences, or 1 where idf is off.
    It holds all that encoding needs, the stop words too, so that a bundle can carry it.
    """

    settings: TermSettings
    normalise: bool
    terms: tuple[str, ...]
    idf: tuple[float, ...]
    n_sentences: int

    @cached_property
    def index(self) -> dict[str, int]:
        """Column of every term."""
        return {term: column for column, term in enumerate(self.terms)}

    def unknown_words(self, text: str) -> list[str]:
        """The words of `text`, as terms, that are in none of its known terms. Stop words are no terms."""
        terms = make_analyzer(self.settings)(text)
        known = {word for term in terms if term in self.index for word in term.split(" ")}
        return [word for word in dict.fromkeys(terms) if " " not in word and word not in known]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Vocabulary":
        """The inverse of `to_dict`; keys beyond the fields are left alone."""
        settings = TermSettings(**value["settings"])
        terms, idf = tuple(value["terms"]), tuple(value["idf"])
        return cls(settings, value["normalise"], terms, idf, value["n_sentences"])


def build_vocabulary(
    sentences: Iterable[str], settings: TermSettings, *, size: int, min_count: int, idf: bool, normalise: bool
) -> Vocabulary:
    """The `size` most common terms found in at least `min_count` sentences.

    Raises InputError when no term is left.
    """
    analyze = make_analyzer(settings)
    counts: Counter[str] = Counter()
    n = 0
    for sentence in sentences:
        counts.update(set(analyze(sentence)))
        n += 1
    common = sorted((item for item in counts.items() if item[1] >= min_count), key=lambda item: (-item[1], item[0]))
    if not common:
        raise InputError(f"no term occurs in {min_count} of the {n} training sentences; lower text.min_count")
    terms, frequencies = zip(*common[:size], strict=True)
    weights = np.log((1 + n) / (1 + np.asarray(frequencies))) + 1 if idf else np.ones(len(terms))
    return Vocabulary(settings, normalise, terms, tuple(weights.tolist()), n)
