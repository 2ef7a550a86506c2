"""Noun phrases with their heads, against the nodes of packed trees and against the demo's own grammar."""

import numpy as np

from pipeline.text.conversions import NounPhrase, list_noun_phrases
from pipeline.text.phrase_trees import read_brackets


def tree_of(text: str):
    return next(iter(read_brackets([text], "t")))[1]


def test_heads_are_the_nouns_that_phrases_are_about() -> None:
    men = "(NP (NP (CD two) (NNS men)) (PP (IN in) (NP (JJ blue) (NNS shirts))))"
    animals = "(NP (NP (DT a) (NN dog)) (CC and) (NP (DT a) (NN cat)))"
    text = f"(S {men} (VP (VBP see) {animals}))"
    assert list_noun_phrases(tree_of(text)) == [
        NounPhrase("two men", "men"),
        NounPhrase("blue shirts", "shirts"),
        NounPhrase("two men in blue shirts", "men"),
        NounPhrase("a dog", "dog"),
        NounPhrase("a cat", "cat"),
        NounPhrase("a dog and a cat", "dog"),
    ]
    assert list_noun_phrases(tree_of("(NP (DT a) (NN dog))")) == []


LEAVES = (("DT", "a"), ("NN", "dog"), (".", "."), (",", ","), ("PUNCT", "-"), ("?", "?"), ("SYM", "$"))


def grow(rng: np.random.Generator, depth: int) -> str:
    """A random phrase in brackets."""
    parts = [grow(rng, depth - 1) if depth and rng.random() < 0.5 else leaf(rng) for _ in range(rng.integers(1, 4))]
    return f"({rng.choice(['NP', 'S', 'ROOT', 'PP'])} {' '.join(parts)})"


def leaf(rng: np.random.Generator) -> str:
    return "({} {})".format(*LEAVES[rng.integers(len(LEAVES))])


def test_the_others_are_all_noun_phrases_that_lack_a_word() -> None:
    """Against nltk's nodes and their leaves."""
    from nltk import Tree  # which takes a second

    rng, several = np.random.default_rng(0), 0
    for _ in range(400):
        text = grow(rng, 4)
        tree = Tree.fromstring(text)
        spoken = {"DT", "NN", "SYM"} & {tag for _, tag in tree.pos()} or {tag for tag, _ in LEAVES}
        counts = [(node, sum(tag in spoken for _, tag in node.pos())) for node in tree.subtrees()]
        expected = [" ".join(node.leaves()) for node, n in counts if node.label() == "NP" and n < counts[0][1]]
        assert sorted(phrase.text for phrase in list_noun_phrases(tree_of(text))) == sorted(expected)
        several += len(expected) > 1
    assert several > 50
