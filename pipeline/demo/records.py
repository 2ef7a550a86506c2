"""The demo collection, one image at a time, and the text files that describe all of them."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pipeline.demo.facts import read_facts
from pipeline.demo.grammar import describe
from pipeline.demo.picture import Box, draw_picture
from pipeline.demo.scene import sample_scene
from pipeline.demo.trees import DemoSentence
from pipeline.demo.weak import Document, annotate
from pipeline.demo.words import kind_names

VERSION = 2
"""Of what is drawn and said for given settings: a change to either needs the next number."""

LISTED = 0.05  # share of a figure's pixels without which it has no box


@dataclass(frozen=True)
class DrawingSettings:
    """How many images each split has; `seed` (0 or more) decides what they show."""

    train: int
    dev: int
    test: int
    weak: int
    seed: int

    @property
    def targets(self) -> int:
        return self.train + self.dev + self.test

    @property
    def images(self) -> int:
        return self.targets + self.weak


@dataclass(frozen=True)
class LabelledBox:
    """Where a thing can be seen: x1, y1, x2, y2 in pixels of the image, and its kind."""

    box: Box
    label: str


@dataclass(frozen=True)
class SceneRecord:
    """All that the collection holds of one image: sentences where it is a target image, else a weak document."""

    name: str
    split: str
    jpeg: bytes
    boxes: tuple[LabelledBox, ...]
    sentences: tuple[DemoSentence, ...]
    document: Document | None


def scene_record(settings: DrawingSettings, index: int) -> SceneRecord:
    """Image `index` of `settings.images`, the target images first. Depends on nothing but its arguments.

    What image k of its set shows depends on the seed and k only, so that a larger collection begins with the
    images of a smaller one.
    """
    weak = index >= settings.targets
    number = index - settings.targets if weak else index
    rng = np.random.default_rng([settings.seed, int(weak), number])
    scene = sample_scene(rng)
    jpeg, outlines = draw_picture(scene, rng)
    facts = read_facts(scene, outlines)
    boxes = tuple(
        LabelledBox(outline.box, scene.things[figure.thing].kind)
        for figure, outline in zip(scene.figures, outlines, strict=True)
        if outline.box and outline.visible >= LISTED
    )
    if weak:
        return SceneRecord(f"weak-{number:05d}.jpg", "weak", jpeg, boxes, (), annotate(facts, rng))
    split = _split(settings, index)
    return SceneRecord(f"scene-{number:05d}.jpg", split, jpeg, boxes, describe(facts, rng), None)


def _split(settings: DrawingSettings, index: int) -> str:
    if index < settings.train:
        return "train"
    return "dev" if index < settings.train + settings.dev else "test"


def collection_texts(records: Iterable[SceneRecord]) -> dict[str, str]:
    """The contents of the collection's text files by name; rows stand in the order of `records`."""
    captions, splits, conllu, brackets = [], [], [], []
    weak = ["file\ttitle\ttags\tdescription\n"]
    boxes = ["file\tx1\ty1\tx2\ty2\tscore\tlabel\n"]
    for record in records:
        splits.append(f"{record.name}\t{record.split}\n")
        for labelled in record.boxes:
            boxes.append("\t".join(map(str, (record.name, *labelled.box, 1.0, labelled.label))) + "\n")
        for number, sentence in enumerate(record.sentences):
            captions.append(f"{record.name}\t{number}\t{sentence.text}\n")
            sent_id = f"{record.name}#{number}"
            conllu.append(f"# sent_id = {sent_id}\n# text = {sentence.text}\n{sentence.conllu}\n")
            brackets.append(f"{sent_id}\t{sentence.brackets}\n")
        if record.document is not None:
            document = record.document
            weak.append(f"{record.name}\t{document.title}\t{','.join(document.tags)}\t{document.description}\n")
    return {
        "captions.tsv": "".join(captions),
        "splits.tsv": "".join(splits),
        "weak.tsv": "".join(weak),
        "boxes.tsv": "".join(boxes),
        "trees.conllu": "".join(conllu),
        "trees.brackets": "".join(brackets),
        "names.tsv": "".join(f"{kind}\t{', '.join(names)}\n" for kind, names in kind_names().items()),
    }
