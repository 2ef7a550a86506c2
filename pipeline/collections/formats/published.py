"""Collections as their authors publish them: Flickr8k, Flickr30K, Karpathy's splits, COCO, Pascal sentences."""

import posixpath
import re
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import groupby
from pathlib import Path
from typing import Any

from pipeline.collections.files import CollectionFolder
from pipeline.collections.formats import lists
from pipeline.collections.records import DIVIDED, ImageRecord, Options, Record, Reject, SentenceRecord
from pipeline.config.section import SPLITS
from pipeline.errors import InputError

IMAGES = ("images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k-images")
TOKENS = ("Flickr8k.token.txt", "results_20130124.token")
FLICKR_TOKEN = {
    "images": IMAGES,
    "sentences": (*TOKENS, *(f"*/{name}" for name in TOKENS)),
    **{split: (f"Flickr_8k.{split}Images.txt", f"*/Flickr_8k.{split}Images.txt") for split in ("train", "dev", "test")},
}
KARPATHY = {"images": (*IMAGES, "."), "dataset": ("dataset.json", "dataset_*.json")}
COCO = {
    "train": ("captions_train*.json", "annotations/captions_train*.json"),
    "dev": ("captions_val*.json", "annotations/captions_val*.json"),
    "test": ("captions_test*.json", "annotations/captions_test*.json"),
    **dict.fromkeys(("weak", "gallery", DIVIDED), ()),
    "images": ("images",),
}
PAGES = ("index.html", "pascal-sentences.html")
PASCAL1K = {"page": PAGES, "images": ("images", "dataset")}
LARGEST_PAGE = 1 << 26  # bytes; the published one has half a million
PASCAL_SPLITS = (*["train"] * 8, "dev", "test")
"""Of every ten images of a category, by their ids: 800, 100 and 100, as many as Socher et al. 2014 have (section 6)."""


def read_flickr_token(root: Path, options: Options) -> Iterator[Record]:
    """Lines `name.jpg#0 TAB sentence`, and lists of names; images in the order of the lists, then of the token file."""
    folder = CollectionFolder(root, options)
    where = folder.locate(FLICKR_TOKEN)
    sentences = folder.require(where["sentences"], "sentences", TOKENS)
    prefix = folder.image_prefix(where["images"])

    def image(name: str, file: str, row: int, split: str, implied: bool = False) -> ImageRecord:
        return ImageRecord(name, posixpath.join(prefix, name), split, file, row, implied=implied)

    for split in ("train", "dev", "test"):
        if where[split]:
            yield from lists.tab_records(folder, where[split], "images", (1,), lambda *line, s=split: image(*line, s))
    yield from lists.with_images(
        lists.tab_records(folder, sentences, "sentences", (2,), _token_sentence),
        lambda record: image(record.key, record.file, record.row, options.default_split, implied=True),
    )


def _token_sentence(head: str, text: str, file: str, row: int) -> SentenceRecord:
    name, _, tail = head.rpartition("#")
    if not name or (number := lists.sentence_number(tail)) is None:
        raise ValueError(f"{head[:99]!r} is not the name of an image, # and a number")
    return SentenceRecord(name, number, text, file, row)


def read_karpathy(root: Path, options: Options) -> Iterator[Record]:
    """Karpathy's `dataset_*.json` in its order: images with their splits and sentences; `row` is the image's position
    in it, from 1."""
    folder = CollectionFolder(root, options)
    where = folder.locate(KARPATHY)
    path = folder.require(where["dataset"], "dataset", KARPATHY["dataset"])
    file, prefix = folder.label(path), folder.image_prefix(where["images"])
    value = lists.read_json(folder, path)
    if not isinstance(value, dict) or not isinstance(value.get("images"), list):
        raise InputError(f"{path}: expected an object with a list `images`; is it one of Karpathy's dataset files?")
    for row, image in enumerate(value["images"], 1):
        try:
            name = posixpath.join(image.get("filepath", ""), image["filename"])
            split = lists.split_name(image.get("split", options.default_split))
            texts = [sentence["raw"] for sentence in image["sentences"]]
        except (KeyError, TypeError, AttributeError) as error:
            yield Reject(file, row, "images", f"no image with filename and sentences ({type(error).__name__}: {error})")
            continue
        yield ImageRecord(name, posixpath.join(prefix, name), split, file, row)
        for number, text in enumerate(texts):
            yield SentenceRecord(name, number, text, file, row)


def read_coco(root: Path, options: Options) -> Iterator[Record]:
    """COCO's `captions_*.json`: one file a split, with `images` (id, file_name) and `annotations` (image_id, caption);
    `row` is the position there, from 1. The images of captions_train2014.json are in `images/` or in `train2014/`. A
    file that is there alone, and that collection.files does not name, is of the default split."""
    folder = CollectionFolder(root, options)
    where = folder.locate(COCO)
    captions = {split: where[split] for split in (*SPLITS, DIVIDED) if where[split]}
    if not captions:
        folder.require(None, "train", COCO["train"])
    if len(captions) == 1 and options.files.keys().isdisjoint(captions):
        captions = dict.fromkeys([options.default_split], *captions.values())
    for split, path in captions.items():
        yield from _read_captions(folder, path, split, where["images"])


def _read_captions(folder: CollectionFolder, path: Path, split: str, images: Path | None) -> Iterator[Record]:
    usual = folder.root / path.stem.removeprefix("captions_")
    prefix = folder.image_prefix(images or (usual if usual.is_dir() else None))
    file, value = folder.label(path), lists.read_json(folder, path)
    if not isinstance(value, dict) or not all(isinstance(value.get(key), list) for key in ("images", "annotations")):
        raise InputError(f"{path}: expected an object with lists `images` and `annotations`; is it a captions file?")
    keys: dict[Any, str] = {}
    for row, image in enumerate(value["images"], 1):
        try:
            key = keys[image["id"]] = posixpath.join(prefix, image["file_name"])
            yield ImageRecord(key, key, split, file, row)
        except (KeyError, TypeError) as error:
            yield Reject(file, row, "images", f"no image with id and file_name ({type(error).__name__}: {error})")
    numbers: Counter[str] = Counter()
    for row, annotation in enumerate(value["annotations"], 1):
        try:
            key, text = keys.get(annotation["image_id"]), annotation["caption"]
        except (KeyError, TypeError) as error:
            yield Reject(file, row, "sentences", f"no image_id and caption ({type(error).__name__}: {error})")
            continue
        if key is None:
            yield Reject(file, row, "sentences", f"unknown image: no id {annotation['image_id']!r} among the images")
            continue
        yield SentenceRecord(key, numbers[key], text, file, row)
        numbers[key] += 1


def read_pascal1k(root: Path, options: Options) -> Iterator[Record]:
    """UIUC Pascal sentences (Rashtchian et al. 2010): one HTML page whose rows have an image, `<img
    src="CATEGORY/ID.jpg">`, and a table of its five sentences, and the images in a folder a category. Raises InputError
    for a page without images."""
    folder = CollectionFolder(root, options)
    where = folder.locate(PASCAL1K)
    path = folder.require(where["page"], "page", PAGES)
    prefix, label = folder.image_prefix(where["images"]), folder.label(path)
    with folder.open(path, LARGEST_PAGE) as file:
        text = lists.decode_text(file.read())
    if isinstance(text, bytes):
        raise InputError(f"{path}: {lists.not_utf8(text)}")
    page = _PascalPage()
    page.feed(text)
    if not page.images:
        raise InputError(f"{path} shows no image; is it the page of the Pascal sentences?")
    splits = {}
    sources = sorted({source for source, *_ in page.images}, key=lambda name: (posixpath.dirname(name), name))
    for _, category in groupby(sources, posixpath.dirname):
        splits |= {source: PASCAL_SPLITS[place % len(PASCAL_SPLITS)] for place, source in enumerate(category)}
    for source, row, sentences in page.images:
        yield ImageRecord(source, posixpath.join(prefix, source), splits[source], label, row)
        for number, sentence in enumerate(sentences):
            yield SentenceRecord(source, number, sentence, label, row)


class _PascalPage(HTMLParser):
    """`images`: the source of each with its row and its sentences: the texts of the cells that follow it."""

    def __init__(self) -> None:
        super().__init__()
        self.images: list[tuple[str, int, list[str]]] = []
        self._cell: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "td":
            self._cell = []
        if tag == "img" and (source := dict(attrs).get("src")):
            self.images.append((source, self.getpos()[0], []))

    def handle_data(self, data: str) -> None:
        self._cell.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "td":
            text = re.sub(r"[ \t\r\n]+", " ", "".join(self._cell)).strip(" ")
            if text and self.images:
                self.images[-1][2].append(text)
            self._cell = []
