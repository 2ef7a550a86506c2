"""Published collections: Flickr8k, Flickr30K, Karpathy's splits, COCO, and the Pascal sentences."""

import posixpath
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
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
MAX_PAGE_BYTES = 1 << 26
"""Largest size of a page in bytes. The published page has half a million bytes. A larger page is an error."""
MAX_SHOWN_CHARACTERS = 99
"""Largest number of characters of a field in a message."""
PASCAL_SPLITS = (*["train"] * 8, "dev", "test")
"""Splits of ten successive images of a category, in the order of their names. In total, train has 800 images, and dev
and test have 100 each, as in Socher et al. 2014 (section 6)."""


def read_flickr_token(root: Path, options: Options) -> Iterator[Record]:
    """Yield the records of a token file, which has lines `name.jpg#0 TAB sentence`, and of the lists of images for each
    split.

    Images are in the order of these lists, and then of the token file. An image that only the token file names is in
    the default split. Raises UsageError if there is no token file.
    """
    folder = CollectionFolder(root, options)
    where = folder.locate(FLICKR_TOKEN)
    sentences = folder.require(where["sentences"], "sentences", TOKENS)
    prefix = folder.image_prefix(where["images"])

    def image(name: str, file: str, row: int | None, split: str, implied: bool = False) -> ImageRecord:
        return ImageRecord(name, posixpath.join(prefix, name), split, file, row, implied=implied)

    for split in ("train", "dev", "test"):
        if path := where[split]:
            yield from lists.tab_records(
                folder, path, "images", (1,), lambda fields, file, row, split=split: image(fields[0], file, row, split)
            )
    yield from lists.with_images(
        lists.tab_records(folder, sentences, "sentences", (2,), _token_sentence),
        lambda record: image(record.key, record.file, record.row, options.default_split, implied=True),
    )


def _token_sentence(fields: list[str], file: str, row: int) -> SentenceRecord:
    head, text = fields
    name, _, tail = head.rpartition("#")
    if not name or (number := lists.sentence_number(tail)) is None:
        raise ValueError(
            "wrong name: the first field must be the name of a photo, # and a number, such as a.jpg#0, but is"
            f" {head[:MAX_SHOWN_CHARACTERS]!r}"
        )
    return SentenceRecord(name, number, text, file, row)


def read_karpathy(root: Path, options: Options) -> Iterator[Record]:
    """Yield the images of Karpathy's `dataset_*.json` with their splits and sentences, in the order of this file.

    `row` is the position of the image in the file, from 1. Raises UsageError if there is no such file, and InputError
    if the file is not a dataset of Karpathy.
    """
    folder = CollectionFolder(root, options)
    where = folder.locate(KARPATHY)
    path = folder.require(where["dataset"], "dataset", KARPATHY["dataset"])
    file = folder.label(path)
    prefix = folder.image_prefix(where["images"])
    value = lists.read_json(folder, path)
    if not isinstance(value, dict) or not isinstance(value.get("images"), list):
        raise InputError(
            f"{path} is not a JSON object with a list `images`. Name a dataset file of Karpathy, such as"
            " dataset_coco.json, in collection.files.dataset."
        )
    for row, image in enumerate(value["images"], 1):
        try:
            name = posixpath.join(image.get("filepath", ""), image["filename"])
            split = lists.split_name(image.get("split", options.default_split))
            texts = [sentence["raw"] for sentence in image["sentences"]]
        except (KeyError, TypeError, AttributeError) as error:
            reason = "missing key: an image needs the keys filename and sentences, and each sentence the key raw"
            yield Reject(file, row, "images", f"{reason} ({type(error).__name__}: {error})")
            continue
        yield ImageRecord(name, posixpath.join(prefix, name), split, file, row)
        for number, text in enumerate(texts):
            yield SentenceRecord(name, number, text, file, row)


def read_coco(root: Path, options: Options) -> Iterator[Record]:
    """Yield the records of COCO's `captions_*.json`.

    There is one file per split, with the lists `images` (id, file_name) and `annotations` (image_id, caption). `row` is
    the position in one of these lists, from 1. The images of captions_train2014.json are in `images/` or in
    `train2014/`. If there is only one file, and collection.files does not name it, its images have the default split.
    Raises UsageError if there is no file, and InputError if a file does not have the two lists.
    """
    folder = CollectionFolder(root, options)
    where = folder.locate(COCO)
    captions = {split: path for split in (*SPLITS, DIVIDED) if (path := where[split])}
    if not captions:
        folder.require(None, "train", COCO["train"])
    if len(captions) == 1 and options.files.keys().isdisjoint(captions):
        captions = dict.fromkeys([options.default_split], *captions.values())
    for split, path in captions.items():
        yield from _read_captions(folder, path, split, where["images"])


def _read_captions(folder: CollectionFolder, path: Path, split: str, images: Path | None) -> Iterator[Record]:
    usual = folder.root / path.stem.removeprefix("captions_")
    prefix = folder.image_prefix(images or (usual if usual.is_dir() else None))
    file = folder.label(path)
    value = lists.read_json(folder, path)
    if not isinstance(value, dict) or not all(isinstance(value.get(key), list) for key in ("images", "annotations")):
        raise InputError(
            f"{path} is not a JSON object with the lists `images` and `annotations`. Name a captions file of COCO, such"
            " as captions_train2017.json, in collection.files."
        )
    keys: dict[Any, str] = {}
    for row, image in enumerate(value["images"], 1):
        try:
            key = keys[image["id"]] = posixpath.join(prefix, image["file_name"])
            yield ImageRecord(key, key, split, file, row)
        except (KeyError, TypeError) as error:
            reason = f"missing key: an image needs the keys id and file_name ({type(error).__name__}: {error})"
            yield Reject(file, row, "images", reason)
    numbers: Counter[str] = Counter()
    for row, annotation in enumerate(value["annotations"], 1):
        try:
            key = keys.get(annotation["image_id"])
            text = annotation["caption"]
        except (KeyError, TypeError) as error:
            reason = f"missing key: an annotation needs image_id and caption ({type(error).__name__}: {error})"
            yield Reject(file, row, "sentences", reason)
            continue
        if key is None:
            yield Reject(
                file, row, "sentences", f"unknown image: the list `images` has no id {annotation['image_id']!r}"
            )
            continue
        yield SentenceRecord(key, numbers[key], text, file, row)
        numbers[key] += 1


def find_captions(folder: CollectionFolder, names: list[str]) -> dict[str, str]:
    """Return the keys of collection.files for the files among `names` that have the form of COCO's captions.

    If there are several of these files and the name of each names another split, each file has the key of its split.
    Otherwise only the first file is returned, with the key `divided`. Return {} if no file has this form.
    """
    files = []
    for name in names:
        with suppress(InputError):
            value = lists.read_json(folder, folder.root / name)
            captions = value.get("annotations") if isinstance(value, dict) and "images" in value else None
            if isinstance(captions, list) and captions and isinstance(captions[0], dict) and "caption" in captions[0]:
                files.append(name)
    return lists.by_split(files) or ({DIVIDED: files[0]} if files else {})


def read_pascal1k(root: Path, options: Options) -> Iterator[Record]:
    """Yield the records of the UIUC Pascal sentences (Rashtchian et al. 2010).

    One HTML page has rows with an image, `<img src="CATEGORY/ID.jpg">`, and a table of its five sentences. The images
    are in one folder per category. The images of a category, sorted by name, get the splits in PASCAL_SPLITS in turn.
    Raises UsageError if there is no page, and InputError for a page without images, and for a page that is neither
    UTF-8 nor UTF-16 with a byte order mark.
    """
    folder = CollectionFolder(root, options)
    where = folder.locate(PASCAL1K)
    path = folder.require(where["page"], "page", PAGES)
    prefix = folder.image_prefix(where["images"])
    label = folder.label(path)
    with folder.open(path, MAX_PAGE_BYTES) as file:
        text = lists.decode_text(file.read())
    if isinstance(text, bytes):
        raise InputError(f"{path} cannot be read, because it is {lists.not_utf8(text)}.")
    page = _PascalPage()
    page.feed(text)
    if not page.images:
        raise InputError(f"{path} does not show any image. Put the web page of the Pascal sentences there.")
    splits = {}
    sources = sorted({source for source, *_ in page.images}, key=lambda name: (posixpath.dirname(name), name))
    for _, category in groupby(sources, posixpath.dirname):
        splits |= {source: PASCAL_SPLITS[number % len(PASCAL_SPLITS)] for number, source in enumerate(category)}
    for source, row, sentences in page.images:
        yield ImageRecord(source, posixpath.join(prefix, source), splits[source], label, row)
        for number, sentence in enumerate(sentences):
            yield SentenceRecord(source, number, sentence, label, row)


class _PascalPage(HTMLParser):
    """A parser of the HTML page that lists the Pascal sentences.

    For each image of the page, `images` has its source, the number of its line in the page, and its sentences, which
    are the texts of the table cells between this image and the next.
    """

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
