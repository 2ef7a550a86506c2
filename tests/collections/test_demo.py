"""The demo collection: the same everywhere, true of its pictures, and varied enough to learn from."""

import io
from collections import Counter

import nltk
import pytest
from PIL import Image

from pipeline.demo import DrawingSettings, SceneRecord, scene_record
from pipeline.demo.trees import DemoSentence
from pipeline.demo.words import (
    NOUNS,
    plural,
)
from pipeline.demo.world import KINDS

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


def test_splits_have_the_sizes_asked_for(records: list[SceneRecord]) -> None:
    assert Counter(record.split for record in records) == {"train": 60, "dev": 10, "test": 15, "weak": 35}
    assert len({record.name for record in records}) == SETTINGS.images
    assert all(len(record.sentences) == (0 if record.split == "weak" else 5) for record in records)
    assert all((record.document is not None) == (record.split == "weak") for record in records)


def test_boxes_lie_inside_decodable_images(records: list[SceneRecord]) -> None:
    for record in records:
        image = Image.open(io.BytesIO(record.jpeg))
        image.load()
        assert image.mode == "RGB" and 160 <= image.width <= 200 and abs(image.height - 0.75 * image.width) <= 0.5
        assert 1 <= len(record.boxes) <= 4
        for labelled in record.boxes:
            x1, y1, x2, y2 = labelled.box
            assert 0 <= x1 < x2 <= image.width and 0 <= y1 < y2 <= image.height
            assert labelled.label in KINDS


def test_leaves_of_both_trees_are_the_tokens(sentences: list[DemoSentence]) -> None:
    for sentence in sentences:
        tokens = sentence.text.split(" ")
        assert [row[1] for row in _rows(sentence)] == tokens
        tree = nltk.Tree.fromstring(sentence.brackets)
        assert tree.leaves() == tokens
        assert all(subtree.label() for subtree in tree.subtrees()), sentence.brackets


def test_dependencies_are_trees_with_one_root(sentences: list[DemoSentence]) -> None:
    for sentence in sentences:
        rows = _rows(sentence)
        assert all(len(row) == 10 for row in rows)
        assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
        heads = [int(row[6]) for row in rows]
        assert [row[7] for row in rows if row[6] == "0"] == ["root"] == [row[7] for row in rows if row[7] == "root"]
        for node in range(1, len(rows) + 1):
            steps = 0
            while node and steps <= len(rows):
                node, steps = heads[node - 1], steps + 1
            assert node == 0, f"a cycle in: {sentence.text}"


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
