"""Karpathy's `dataset_*.json`: the images of Flickr8k, Flickr30K or COCO with their splits and sentences."""

import posixpath
from collections.abc import Iterator
from pathlib import Path

from pipeline.collections.formats import lists
from pipeline.collections.records import ImageRecord, Options, Record, Reject, SentenceRecord
from pipeline.collections.remote_files import open_collection
from pipeline.errors import InputError

FILES = {
    "images": ("images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k-images", "."),
    "dataset": ("dataset.json", "dataset_*.json"),
}


def read(root: Path, options: Options) -> Iterator[Record]:
    """The records of a dataset file in its order; `row` is the image's position in it, from 1."""
    folder = open_collection(root, options)
    where = folder.locate(FILES)
    path = folder.require(where["dataset"], "dataset", FILES["dataset"])
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
