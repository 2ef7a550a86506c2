"""Makes the images of the demo collection with their captions, boxes or weak text, and the collection's text files."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from pipeline.demo.grammar import say, write_captions
from pipeline.demo.picture import Box, Facts, draw_picture, read_facts
from pipeline.demo.scene import COLOURS, KINDS, PLACES, pick, pick_weighted, sample_scene
from pipeline.demo.words import NOUNS, VERBS, DemoSentence, kind_names

VERSION = 2
"""Version of the code that makes the images and captions. It must be increased if the code makes other images or
captions from the same settings."""

LISTED = 0.05  # minimum visible share of a figure's pixels for it to have a labelled box


@dataclass(frozen=True)
class DrawingSettings:
    """The settings of the demo collection.

    `train`, `dev` and `test` are the numbers of images with captions in these splits. `weak` is the number of images
    with weak text instead of captions. `seed`, 0 or more, is the seed of all random choices.
    """

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
    """The box x1, y1, x2, y2 in pixels of the visible part of a figure, and the figure's kind as its `label`."""

    box: Box
    label: str


@dataclass(frozen=True)
class Document:
    """The weak text of one image. A field that the image lacks is empty."""

    title: str
    tags: tuple[str, ...]
    description: str


@dataclass(frozen=True)
class SceneRecord:
    """An image with the file name `name`. An image of train, dev or test has captions (`sentences`). An image of the
    split `weak` has weak text (`document`) instead."""

    name: str
    split: str
    jpeg: bytes
    boxes: tuple[LabelledBox, ...]
    sentences: tuple[DemoSentence, ...]
    document: Document | None


def scene_record(settings: DrawingSettings, index: int) -> SceneRecord:
    """Make image number `index`, from 0, of the collection. Images with captions come before images with weak text.

    The content of captioned image k depends only on the seed and k, and so does the content of weak image k. A larger
    collection with the same seed therefore has all images of a smaller one, perhaps in another split.
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
    later = "dev" if index < settings.train + settings.dev else "test"
    split = "train" if index < settings.train else later
    return SceneRecord(f"scene-{number:05d}.jpg", split, jpeg, boxes, write_captions(facts, rng), None)


def collection_texts(records: Iterable[SceneRecord]) -> dict[str, str]:
    """Return the content of each text file of the collection by its file name. Rows about images are in the order of
    `records`."""
    captions = []
    splits = []
    conllu = []
    brackets = []
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


# --- weak text, as on a photo-sharing site: titles, tags and descriptions that say little, something else, or nothing

CAMERAS = ("DSC_{:04d}", "IMG_{:04d}", "P101{:04d}", "DSCN{:04d}", "100_{:04d}")
TOWNS = ("Brighton", "London", "Chicago", "Oslo", "Kyoto", "Lisbon", "Vancouver", "Seattle", "Prague", "California")
MONTHS = ("January", "March", "April", "May", "June", "July", "August", "October", "December")
YEARS = (2004, 2011)
REMARKS = (
    *("Untitled", "Explored", "Sunday afternoon", "Best friends", "My favorite shot"),
    *("What a day", "Out and about", "Hello there", "Look at this", "The long way home"),
)
NOTES = (
    "Taken with my new camera .",
    "Best viewed large .",
    "More from our trip last summer .",
    "Straight out of the camera , no editing .",
    "Thanks for all the comments !",
    "See the rest of the set for more .",
    "We had such a good time that day .",
)
NOISE_TAGS = (
    *("nikon", "canon", "d90", "iphone", "macro", "hdr", "bw", "geotagged"),
    *("flickr", "photo", "explore", "favorite", "interesting", "art", "light", "portrait", "nature"),
    *("family", "friends", "vacation", "weekend", "summer", "winter", "party", "fun", "home", "travel"),
    *("europe", "usa"),
)
KEPT_TAG, KEPT_WORD = 0.4, 0.65  # probability that a true tag is written, and that a word of a true sentence is kept
MAX_TAGS = 8


Writer = Callable[[Facts, np.random.Generator], str]


def annotate(facts: Facts, rng: np.random.Generator) -> Document:
    """Write weak text for an image with these facts, as on a photo-sharing site. Some of the text may be untrue."""
    title = pick_weighted(rng, TITLES)(facts, rng)
    tags = _tags(facts, rng)
    description = pick_weighted(rng, DESCRIPTIONS)(facts, rng)
    if not (title or tags or description):  # Weak text is never empty: the title becomes a camera's file name.
        title = _camera_name(facts, rng)
    return Document(title, tags, description)


def _camera_name(facts: Facts, rng: np.random.Generator) -> str:
    return pick(rng, CAMERAS).format(rng.integers(1, 9999))


def _when_or_where(facts: Facts, rng: np.random.Generator) -> str:
    year = rng.integers(*YEARS)
    if rng.random() < 0.3:
        return f"{year}-{rng.integers(1, 13):02d}-{rng.integers(1, 29):02d}"
    return f"{pick(rng, TOWNS if rng.random() < 0.5 else MONTHS)} {year}"


def _beginning(facts: Facts, rng: np.random.Generator) -> str:
    """Return the first two to six words of a true sentence about the image, each with a capital, as a title."""
    return " ".join(_tokens(facts, rng)[: rng.integers(2, 7)]).title()


def _worn_sentence(facts: Facts, rng: np.random.Generator) -> str:
    """Return a true sentence about the image, without punctuation. Each word is left out with the probability 1 -
    KEPT_WORD."""
    return " ".join(token for token in _tokens(facts, rng) if rng.random() < KEPT_WORD)


def _other_sentence(facts: Facts, rng: np.random.Generator) -> str:
    """Return a sentence about another random scene, which is mostly untrue of this image."""
    scene = sample_scene(rng)
    return say(Facts(scene.place, scene.light, scene.things), rng).text


def _tokens(facts: Facts, rng: np.random.Generator) -> list[str]:
    return [token for token in say(facts, rng).text.split() if token.isalpha()]


def _tags(facts: Facts, rng: np.random.Generator) -> tuple[str, ...]:
    """Return at most MAX_TAGS tags in random order: true words, words that say nothing about the image such as `nikon`,
    perhaps a random kind, colour or place, perhaps a town or month, and perhaps a year. About one image in eight has no
    tags."""
    if rng.random() < 0.12:
        return ()
    true = [facts.place]
    for thing in facts.things:
        true += [NOUNS[thing.kind].usual[0], thing.colour, VERBS[thing.action][0].participle]
    tags = [tag for tag in true if rng.random() < KEPT_TAG]
    tags += [NOISE_TAGS[i] for i in rng.permutation(len(NOISE_TAGS))[: rng.integers(1, 5)]]
    if rng.random() < 0.4:
        tags.append(pick(rng, (*KINDS, *COLOURS, *PLACES)))
    if rng.random() < 0.3:
        tags.append(pick(rng, (*TOWNS, *MONTHS)).lower())
    if rng.random() < 0.3:
        tags.append(str(rng.integers(*YEARS)))
    return tuple(dict.fromkeys(tags[i] for i in rng.permutation(len(tags))))[:MAX_TAGS]


TITLES: dict[Writer, float] = {
    _camera_name: 0.3,
    _beginning: 0.34,
    lambda facts, rng: pick(rng, REMARKS): 0.12,
    _when_or_where: 0.1,
    lambda facts, rng: "": 0.14,
}
DESCRIPTIONS: dict[Writer, float] = {
    lambda facts, rng: say(facts, rng).text: 0.16,
    _worn_sentence: 0.22,
    _other_sentence: 0.16,
    lambda facts, rng: pick(rng, NOTES): 0.1,
    lambda facts, rng: "": 0.36,
}
"""The functions that can write a description, and the probability of each function. TITLES has the functions that can
write a title, in the same form."""
