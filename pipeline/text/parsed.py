"""A sentence with both of its trees, as any engine gives it."""

from dataclasses import dataclass

from pipeline.text.brackets import PhraseTree, right_branching
from pipeline.text.conllu import Parse, chain

EMPTY = "no words"


@dataclass(frozen=True)
class Parsed:
    """The two trees over the same words, and why they are only chains where they are."""

    parse: Parse
    tree: PhraseTree
    fallback: str | None


def fall_back(text: str, reason: str) -> Parsed:
    """Chains of what stands between spaces in `text`: each word the head of the next, and right-branching phrases."""
    words = text.split()
    return Parsed(chain(words), right_branching(words), reason)
