"""Words that are spelt alike."""

from collections.abc import Collection
from difflib import get_close_matches

LENGTHS = 2
"""Letters by which a word may be longer or shorter than one that is suggested for it."""


def nearest_word(word: str, known: Collection[str]) -> str | None:
    """The `known` word most like `word`, of those that begin alike and have about its length; None if none is."""
    alike = [one for one in known if one[:1] == word[:1] and abs(len(one) - len(word)) <= LENGTHS]
    return next(iter(get_close_matches(word, alike, n=1)), None)
