"""The demo collection: the same everywhere, true of its pictures, and varied enough to learn from."""

from collections import Counter

import nltk
import pytest

from pipeline.demo import DrawingSettings, SceneRecord, scene_record
from pipeline.demo.trees import DemoSentence
from pipeline.demo.words import (
    NOUNS,
    plural,
)

SETTINGS = DrawingSettings(train=60, dev=10, test=15, weak=35, seed=5)


@pytest.fixture(scope="module")
def records() -> list[SceneRecord]:
    return [scene_record(SETTINGS, index) for index in range(SETTINGS.images)]


@pytest.fixture(scope="module")
def sentences(records: list[SceneRecord]) -> list[DemoSentence]:
    return [sentence for record in records for sentence in record.sentences]


def _rows(sentence: DemoSentence) -> list[list[str]]:
    return [line.split("\t") for line in sentence.conllu.splitlines()]


def _kinds_by_noun() -> dict[str, set[str]]:
    """Every form of every noun to the kinds that it may mean."""
    kinds: dict[str, set[str]] = {}
    for kind, nouns in NOUNS.items():
        for lemma in (*nouns.usual, *nouns.small):
            for form in (lemma, plural(lemma)):
                kinds.setdefault(form, set()).add(kind)
    return kinds


KINDS_BY_NOUN = _kinds_by_noun()


def test_leaves_of_both_trees_are_the_tokens(sentences: list[DemoSentence]) -> None:
    for sentence in sentences:
        tokens = sentence.text.split(" ")
        assert [row[1] for row in _rows(sentence)] == tokens
        tree = nltk.Tree.fromstring(sentence.brackets)
        assert tree.leaves() == tokens
        assert all(subtree.label() for subtree in tree.subtrees()), sentence.brackets


def test_sentences_name_only_what_has_a_box(records: list[SceneRecord]) -> None:
    for record in records:
        listed = Counter(labelled.label for labelled in record.boxes)
        for sentence in record.sentences:
            for row in _rows(sentence):
                if row[3] != "NOUN" or row[1].lower() not in KINDS_BY_NOUN:
                    continue
                numbers = [r[1].lower() for r in _rows(sentence) if r[6] == row[0] and r[7] == "nummod"]
                count = {"two": 2, "three": 3}[numbers[0]] if numbers else 1
                assert any(listed[kind] >= count for kind in KINDS_BY_NOUN[row[1].lower()]), sentence.text
