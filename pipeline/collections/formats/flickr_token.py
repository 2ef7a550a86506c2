"""Flickr8k and Flickr30K as their authors distribute them: lines `name.jpg#0 TAB sentence`, and lists of names."""

import posixpath
from collections.abc import Iterator
from pathlib import Path

from pipeline.collections.formats import lists
from pipeline.collections.records import ImageRecord, Options, Record, SentenceRecord
from pipeline.collections.remote_files import open_collection

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
    folder = open_collection(root, options)
    where = folder.locate(FILES)
    sentences = folder.require(where["sentences"], "sentences", TOKENS)
    prefix = folder.image_prefix(where["images"])

    def image(name: str, file: str, row: int, split: str, implied: bool = False) -> ImageRecord:
        return ImageRecord(name, posixpath.join(prefix, name), split, file, row, implied=implied)

    for split in ("train", "dev", "test"):
        if where[split]:
            yield from lists.tab_records(folder, where[split], "images", 1, lambda *line, s=split: image(*line, s))
    yield from lists.with_images(
        lists.tab_records(folder, sentences, "sentences", 2, _sentence),
        lambda record: image(record.key, record.file, record.row, options.default_split, implied=True),
    )


def _sentence(head: str, text: str, file: str, row: int) -> SentenceRecord:
    name, _, tail = head.rpartition("#")
    if not name or (number := lists.sentence_number(tail)) is None:
        raise ValueError(f"{head[:99]!r} is not the name of an image, # and a number")
    return SentenceRecord(name, number, text, file, row)
