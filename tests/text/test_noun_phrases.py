"""Noun phrases with their heads, against the nodes of packed trees and against the demo's own grammar."""

import numpy as np

from pipeline.collections.demo import DemoSettings, collection_texts, scene_record
from pipeline.neural.correspondence import noun_phrases
from pipeline.text.brackets import read_brackets
from pipeline.text.noun_phrases import NounPhrase, list_noun_phrases
from pipeline.text.trees import NOTHING, pack


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


def test_they_are_those_of_packed_trees() -> None:
    settings = DemoSettings(train=20, dev=0, test=0, weak=0, seed=1)
    lines = collection_texts([scene_record(settings, i) for i in range(20)])["trees.brackets"].splitlines()
    trees = [tree for _, tree in read_brackets(lines, "b")]
    labels = sorted({label for tree in trees for label in tree.labels})
    packed = pack(
        [
            [
                (parent, 0 if node < len(tree.words) else NOTHING, labels.index(label))
                for node, (parent, label) in enumerate(zip(tree.parents, tree.labels, strict=True))
            ]
            for tree in trees
        ]
    )
    nodes = noun_phrases(packed, labels.index("NP"))
    listed = [list_noun_phrases(tree) for tree in trees]
    counts = np.bincount(np.searchsorted(packed.offsets, nodes, "right") - 1, minlength=len(trees))
    assert [len(own) for own in listed] == counts.tolist() and sum(counts) > 150
