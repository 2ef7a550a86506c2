"""Flickr8k and Flickr30K as their authors distribute them: lines `name.jpg#0 TAB sentence`, and lists of names."""

import posixpath
from collections.abc import Iterator
from pathlib import Path

from pipeline.collections.formats import lists
from pipeline.collections.formats.files import CollectionFolder
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
    folder = CollectionFolder(root, options)
    where = folder.locate(FILES)
    remedy = "put it there, or name yours as collection.files.sentences"
    sentences = folder.require(where["sentences"], TOKENS, remedy)
    prefix = folder.image_prefix(where["images"])
    seen: set[str] = set()
    for split in ("train", "dev", "test"):
        for record in _listed(folder, where[split], split, prefix) if where[split] else ():
            if isinstance(record, ImageRecord):
                seen.add(record.key)
            yield record
    file = folder.label(sentences)
    for item in lists.tab_rows(folder, sentences, "sentences", 2):
        if isinstance(item, Reject):
            yield item
            continue
        row, (head, text) = item
        name, _, tail = head.rpartition("#")
        if not name or (number := lists.sentence_number(tail)) is None:
            yield Reject(file, row, "sentences", f"{head[:99]!r} is not the name of an image, # and a number")
            continue
        if name not in seen:
            seen.add(name)
            yield ImageRecord(name, posixpath.join(prefix, name), options.default_split, file, row)
        yield SentenceRecord(name, number, text, file, row)


def _listed(folder: CollectionFolder, path: Path, split: str, prefix: str) -> Iterator[ImageRecord | Reject]:
    file = folder.label(path)
    for item in lists.tab_rows(folder, path, "images", 1):
        if isinstance(item, Reject):
            yield item
        else:
            row, (name,) = item
            yield ImageRecord(name, posixpath.join(prefix, name), split, file, row)
