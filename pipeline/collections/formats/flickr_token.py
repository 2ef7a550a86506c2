"""Flickr8k and Flickr30K as their authors distribute them: lines `name.jpg#0 TAB sentence`, and lists of names."""

import posixpath
from collections.abc import Iterator
from pathlib import Path

from pipeline.collections.formats import files
from pipeline.collections.records import ImageRecord, Options, Record, Reject, SentenceRecord

TOKENS = ("Flickr8k.token.txt", "results_20130124.token")
FILES = {
    "images": ("images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k-images"),
    "sentences": (*TOKENS, *(f"*/{name}" for name in TOKENS)),
    "train": ("Flickr_8k.trainImages.txt", "*/Flickr_8k.trainImages.txt"),
    "dev": ("Flickr_8k.devImages.txt", "*/Flickr_8k.devImages.txt"),
    "test": ("Flickr_8k.testImages.txt", "*/Flickr_8k.testImages.txt"),
}


def read(root: Path, options: Options) -> Iterator[Record]:
    """The records of a token file; images in the order of the lists, then of the token file."""
    where = files.locate(root, options.files, FILES)
    sentences = files.require(root, "sentences", where["sentences"], FILES["sentences"])
    prefix = files.image_prefix(root, where["images"])
    seen: set[str] = set()
    for split in ("train", "dev", "test"):
        for record in _listed(root, where[split], split, prefix) if where[split] else ():
            if isinstance(record, ImageRecord):
                seen.add(record.key)
            yield record
    file = files.label(root, sentences)
    for item in files.tab_rows(sentences, file, "sentences", 2):
        if isinstance(item, Reject):
            yield item
            continue
        row, (head, text) = item
        name, _, tail = head.rpartition("#")
        if not name or (number := files.sentence_number(tail)) is None:
            yield Reject(file, row, "sentences", f"{head[:99]!r} is not the name of an image, # and a number")
            continue
        if name not in seen:
            seen.add(name)
            yield ImageRecord(name, posixpath.join(prefix, name), options.default_split, file, row)
        yield SentenceRecord(name, number, text, file, row)


def _listed(root: Path, path: Path, split: str, prefix: str) -> Iterator[ImageRecord | Reject]:
    file = files.label(root, path)
    for item in files.tab_rows(path, file, "images", 1):
        if isinstance(item, Reject):
            yield item
        else:
            row, (name,) = item
            yield ImageRecord(name, posixpath.join(prefix, name), split, file, row)
