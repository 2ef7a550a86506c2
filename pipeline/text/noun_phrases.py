"""The noun phrases of a sentence: their words and their head."""

from dataclasses import dataclass

from pipeline.text.brackets import PhraseTree
from pipeline.text.heads import head_words

NOUN_PHRASE = "NP"


@dataclass(frozen=True)
class NounPhrase:
    """The words `text` with single spaces between them, one of which is the `head`: `two men in shirts`, `men`."""

    text: str
    head: str


def list_noun_phrases(tree: PhraseTree) -> list[NounPhrase]:
    """The noun phrases within the sentence, in the order of their nodes: models.neural.correspondence.noun_phrases of
    the tree with one root. A phrase of all words but punctuation is the sentence, and not one of them."""
    tree = tree.under_one_root()
    first, last = tree.extents()
    words, heads = tree.words, head_words(tree)
    return [
        NounPhrase(" ".join(words[first[node] : last[node] + 1]), words[heads[node]])
        for node in range(len(words), len(tree))
        if tree.labels[node] == NOUN_PHRASE and tree.parents[node] >= 0
    ]
