"""The demo collection: the same everywhere, true of its pictures, and varied enough to learn from."""

import io
import re
from collections import Counter
from dataclasses import replace
from functools import partial

import nltk
import numpy as np
import pytest
from PIL import Image

from examples.demo import DrawingSettings, SceneRecord, collection_texts, scene_record
from examples.demo.facts import Facts, read_facts
from examples.demo.figures import DRAWINGS, draw_figure
from examples.demo.grammar import describe
from examples.demo.picture import Outline, draw_picture
from examples.demo.scene import Figure, Scene, Thing, sample_scene
from examples.demo.trees import DemoSentence
from examples.demo.weak import annotate
from examples.demo.words import (
    GARMENTS,
    NOUNS,
    PATH_WORDS,
    PLACE_WORDS,
    SKY_WORDS,
    VERBS,
    VIEWS,
    plural,
)
from examples.demo.world import COLOURS, KINDS, MEDIUM, PLACES
from pipeline.workers import isolated_map

SETTINGS = DrawingSettings(train=180, dev=30, test=40, weak=150, seed=5)


@pytest.fixture(scope="module")
def records() -> list[SceneRecord]:
    return [scene_record(SETTINGS, index) for index in range(SETTINGS.images)]


@pytest.fixture(scope="module")
def sentences(records: list[SceneRecord]) -> list[DemoSentence]:
    return [sentence for record in records for sentence in record.sentences]


@pytest.fixture(scope="module")
def described() -> list[tuple[Facts, tuple[DemoSentence, ...]]]:
    """Facts and what was said of them, for 150 drawn scenes."""
    result = []
    for seed in range(150):
        rng = np.random.default_rng([9, seed])
        scene = sample_scene(rng)
        facts = read_facts(scene, draw_picture(scene, rng).outlines)
        result.append((facts, describe(facts, rng)))
    return result


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
    assert Counter(record.split for record in records) == {"train": 180, "dev": 30, "test": 40, "weak": 150}
    assert len({record.name for record in records}) == SETTINGS.images
    assert all(len(record.sentences) == (0 if record.split == "weak" else 5) for record in records)
    assert all((record.document is not None) == (record.split == "weak") for record in records)


def test_other_processes_make_the_same_records(records: list[SceneRecord]) -> None:
    indices = [*range(8), *range(SETTINGS.targets, SETTINGS.targets + 8)]
    assert list(isolated_map(partial(scene_record, SETTINGS), indices, 2)) == [records[i] for i in indices]


def test_a_larger_collection_begins_with_the_smaller_one(records: list[SceneRecord]) -> None:
    larger = replace(SETTINGS, train=SETTINGS.targets + 1)
    assert [scene_record(larger, i).jpeg for i in range(5)] == [record.jpeg for record in records[:5]]
    first_weak = scene_record(larger, larger.targets)
    assert first_weak == records[SETTINGS.targets]
    assert scene_record(replace(SETTINGS, seed=6), 0).jpeg != records[0].jpeg


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


def test_a_known_sentence_has_its_trees() -> None:
    facts = Facts("beach", "day", (Thing("dog", "red", "medium", "run", 1, True),))
    texts = {sentence.text: sentence for seed in range(99) for sentence in describe(facts, np.random.default_rng(seed))}
    sentence = texts["A red dog is running on the beach ."]
    assert sentence.brackets == (
        "(S (NP (DT A) (JJ red) (NN dog)) (VP (VBZ is) (VP (VBG running) (PP (IN on) (NP (DT the) (NN beach))))) (. .))"
    )
    assert [(row[6], row[7]) for row in _rows(sentence)] == [
        *(("3", "det"), ("3", "amod"), ("5", "nsubj"), ("5", "aux"), ("0", "root")),
        *(("8", "case"), ("8", "det"), ("5", "obl"), ("5", "punct")),
    ]


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


def test_colours_belong_to_what_they_are_said_of(described: list[tuple[Facts, tuple[DemoSentence, ...]]]) -> None:
    checked = 0
    wearers = {garment: {k for k, v in GARMENTS.items() if garment in v} for v in GARMENTS.values() for garment in v}
    for facts, said in described:
        colours = {thing.kind: thing.colour for thing in facts.things}
        for sentence in said:
            rows = _rows(sentence)
            for row in rows:
                noun = rows[int(row[6]) - 1]
                kinds = {**KINDS_BY_NOUN, **wearers}.get(noun[2])
                if row[7] == "amod" and row[1].lower() in COLOURS and kinds:
                    assert row[1].lower() in {colours.get(kind) for kind in kinds}, sentence.text
                    checked += 1
    assert checked > 300


def test_verbs_are_those_of_the_actions(described: list[tuple[Facts, tuple[DemoSentence, ...]]]) -> None:
    checked = 0
    for facts, said in described:
        legal = {verb.lemma for thing in facts.things for verb in VERBS[thing.action]}
        for sentence in said:
            verbs = {row[2] for row in _rows(sentence) if row[3] == "VERB"} - {"be", "wear"}
            assert verbs <= legal, sentence.text
            checked += len(verbs)
    assert checked > 300


def test_only_what_moves_goes_along_a_path(sentences: list[DemoSentence]) -> None:
    movers = {verb.lemma for action in ("run", "drive") for verb in VERBS[action]}
    paths = {text.split()[0] for texts in PATH_WORDS.values() for text in texts} - {"over"}
    checked = 0
    for sentence in sentences:
        rows = _rows(sentence)
        for row in rows:
            if row[1].lower() in paths:
                ground = rows[int(row[6]) - 1]
                assert rows[int(ground[6]) - 1][2] in movers, sentence.text
                checked += 1
    assert checked > 20


def _facts_of_two(x: tuple[float, float], depth: tuple[float, float], visible: float = 1.0) -> Facts:
    """Facts of a dog and a house, 40 pixels wide and high, in a scene of 200 x 150."""
    things = (Thing("dog", "red", "medium", "run", 1, True), Thing("house", "blue", "medium", "stand", 1, True))
    figures = tuple(Figure(i, x[i], depth[i], depth[i], 40, False) for i in range(2))
    scene = Scene(200, 150, 50, "grass", "day", things, figures)
    boxes = [(int(x[i]) - 20, int(depth[i]) - 40, int(x[i]) + 20, int(depth[i])) for i in range(2)]
    return read_facts(scene, [Outline(boxes[0], boxes[0], 1.0), Outline(boxes[1], boxes[1], visible)])


@pytest.mark.parametrize(
    ("x", "depth", "expected"),
    [
        ((60, 105), (100, 100), {"next to", "left of"}),
        ((150, 40), (100, 100), {"right of"}),
        ((100, 90), (120, 90), {"in front of"}),
        ((100, 90), (90, 120), {"behind"}),
        ((100, 75), (100, 102), set()),
    ],
)
def test_relations_follow_from_the_geometry(x: tuple, depth: tuple, expected: set[str]) -> None:
    assert {relation.name for relation in _facts_of_two(x, depth).relations if relation.subject == 0} == expected


def test_what_is_hidden_is_neither_said_nor_listed() -> None:
    assert [thing.kind for thing in _facts_of_two((60, 105), (100, 100), visible=0.2).things] == ["dog"]
    things = (Thing("ball", "red", "small", "lie", 1, True), Thing("bus", "blue", "large", "park", 1, True))
    figures = (Figure(0, 140, 110, 110, 16, False), Figure(1, 140, 125, 125, 110, False))
    scene = Scene(180, 135, 50, "street", "day", things, figures)
    picture = draw_picture(scene, np.random.default_rng(0))
    assert picture.outlines[0].box is None and picture.outlines[0].visible == 0
    assert picture.outlines[1].visible == 1
    assert picture.outlines[1].extent == picture.outlines[1].box  # both end where the image ends
    assert [thing.kind for thing in read_facts(scene, picture.outlines).things] == ["bus"]


def test_distractors_are_drawn_but_not_mentioned() -> None:
    things = (Thing("dog", "red", "medium", "run", 1, True), Thing("cat", "blue", "medium", "sit", 1, False))
    figures = (Figure(0, 50, 110, 110, 50, False), Figure(1, 130, 110, 110, 50, False))
    scene = Scene(180, 135, 50, "grass", "day", things, figures)
    picture = draw_picture(scene, np.random.default_rng(0))
    assert all(outline.visible == 1 for outline in picture.outlines)
    assert [thing.kind for thing in read_facts(scene, picture.outlines).things] == ["dog"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_action_and_colour_of_a_kind_looks_different(kind: str) -> None:
    actions, colours = KINDS[kind].actions, KINDS[kind].colours
    drawn = [(colours[0], action) for action in actions] + [(colour, actions[0]) for colour in colours[1:]]
    sprites = [draw_figure(kind, colour, action, 40, np.random.default_rng(0)) for colour, action in drawn]
    lifted = {"bounce"}  # differs by where it is, not by its shape
    expected = len(drawn) - len(lifted & set(actions))
    assert len({sprite.tobytes() for sprite in sprites}) == expected
    assert all(sprite.getbbox() for sprite in sprites)


def test_the_tables_cover_the_world() -> None:
    assert len(KINDS) >= 20 and len(COLOURS) >= 8 and len(PLACES) >= 8
    assert set(KINDS) == set(NOUNS) == set(DRAWINGS)
    assert {action for kind in KINDS.values() for action in kind.actions} == set(VERBS)
    assert set(PLACES) == set(PLACE_WORDS) == set(SKY_WORDS) == set(VIEWS) == set(PATH_WORDS) | {"lake"}
    for place, properties in PLACES.items():
        visitors = [kind for kind in KINDS.values() if place in kind.places]
        assert len(visitors) >= 8, place
        for kind in visitors:
            assert any(MEDIUM.get(action, "ground") in properties.media for action in kind.actions), place
            assert set(kind.colours) - set(properties.hides), place


def test_sentences_are_varied(sentences: list[DemoSentence]) -> None:
    texts = [sentence.text for sentence in sentences]
    lengths = [len(text.split()) for text in texts]
    assert len(set(texts)) > 0.97 * len(texts)
    assert len({word.lower() for text in texts for word in text.split()}) > 230
    assert min(lengths) <= 4 and max(lengths) >= 18 and 9 < np.mean(lengths) < 13
    assert 0.85 < np.mean([text.endswith(" .") for text in texts]) < 0.95
    assert 0.88 < np.mean([text[0].isupper() for text in texts]) < 0.98


def test_images_are_varied(records: list[SceneRecord]) -> None:
    labels = Counter(labelled.label for record in records for labelled in record.boxes)
    assert len(labels) >= 22 and max(labels.values()) < 0.2 * labels.total()
    assert len({record.jpeg for record in records}) == len(records)
    assert set(Counter(len(record.boxes) for record in records)) == {1, 2, 3, 4}


def test_weak_text_is_noisy_partial_and_missing(records: list[SceneRecord]) -> None:
    weak = [record for record in records if record.document]
    titles = [record.document.title for record in weak]
    assert 0.05 < np.mean([not title for title in titles]) < 0.25
    assert 0.2 < np.mean([bool(re.fullmatch(r"(DSC_|IMG_|P101|DSCN|100_)\d{4}", title)) for title in titles]) < 0.4
    assert 0.05 < np.mean([not record.document.tags for record in weak]) < 0.2
    assert 0.25 < np.mean([not record.document.description for record in weak]) < 0.5
    informative, wrong = [], []
    for record in weak:
        shown = {labelled.label for labelled in record.boxes}
        named = [KINDS_BY_NOUN[tag] for tag in record.document.tags if tag in KINDS_BY_NOUN and tag != "home"]
        informative.append(any(kinds & shown for kinds in named))
        wrong.append(any(not kinds & shown for kinds in named))
    assert 0.3 < np.mean(informative) < 0.8
    assert 0.05 < np.mean(wrong) < 0.5


def test_every_document_says_something() -> None:
    facts = Facts("beach", "day", (Thing("dog", "red", "medium", "run", 1, True),))
    documents = [annotate(facts, np.random.default_rng(seed)) for seed in range(1000)]
    assert all(document.title or document.tags or document.description for document in documents)


def test_texts_have_one_row_for_each_thing_said(records: list[SceneRecord]) -> None:
    texts = collection_texts(records)
    tables = {f"{name}.tsv" for name in ("captions", "splits", "weak", "boxes", "names")}
    assert set(texts) == tables | {"trees.conllu", "trees.brackets"}
    assert "dog\tdog, dogs, hound, hounds, puppy, puppies\n" in texts["names.tsv"]
    captions = [line.split("\t") for line in texts["captions.tsv"].splitlines()]
    keys = [f"{name}#{number}" for name, number, _ in captions]
    assert [line.split("\t")[0] for line in texts["trees.brackets"].splitlines()] == keys
    assert re.findall("^# sent_id = (.*)$", texts["trees.conllu"], re.MULTILINE) == keys
    assert re.findall("^# text = (.*)$", texts["trees.conllu"], re.MULTILINE) == [row[2] for row in captions]
    assert len(captions) == 5 * SETTINGS.targets
    assert texts["splits.tsv"].splitlines()[0] == "scene-00000.jpg\ttrain"
    assert [len(texts["splits.tsv"].splitlines()), len(texts["weak.tsv"].splitlines())] == [400, 151]
    assert texts["weak.tsv"].startswith("file\ttitle\ttags\tdescription\n")
    assert all(line.count("\t") == 3 for line in texts["weak.tsv"].splitlines())
    boxes = texts["boxes.tsv"].splitlines()
    assert boxes[0] == "file\tx1\ty1\tx2\ty2\tscore\tlabel"
    assert len(boxes) == 1 + sum(len(record.boxes) for record in records)
    assert all(re.fullmatch(r"(scene|weak)-\d{5}\.jpg(\t\d+){4}\t1\.0\t[a-z]+", line) for line in boxes[1:])
