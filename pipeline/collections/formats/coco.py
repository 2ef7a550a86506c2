"""COCO's `captions_*.json`: one file a split, with `images` (id, file_name) and `annotations` (image_id, caption).

The images of captions_train2014.json are in `images/` or in `train2014/`.
"""

import posixpath
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.collections.files import CollectionFolder
from pipeline.collections.formats import lists
from pipeline.collections.records import ImageRecord, Options, Record, Reject, SentenceRecord
from pipeline.collections.remote_files import open_collection
from pipeline.config.section import SPLITS
from pipeline.errors import InputError

FILES = {
    "train": ("captions_train*.json", "annotations/captions_train*.json"),
    "dev": ("captions_val*.json", "annotations/captions_val*.json"),
    "test": ("captions_test*.json", "annotations/captions_test*.json"),
    "weak": (),
    "gallery": (),
    "images": ("images",),
}


def read(root: Path, options: Options) -> Iterator[Record]:
    """The records of one file after another; `row` is the position in `images` or `annotations`, from 1."""
    folder = open_collection(root, options)
    where = folder.locate(FILES)
    found = {split: where[split] for split in SPLITS if where[split]}
    if not found:
        folder.require(None, "train", FILES["train"])
    for split, path in found.items():
        yield from _read_file(folder, path, split, where["images"])


def _read_file(folder: CollectionFolder, path: Path, split: str, images: Path | None) -> Iterator[Record]:
    usual = folder.root / path.stem.removeprefix("captions_")
    prefix = folder.image_prefix(images or (usual if folder.is_dir(usual) else None))
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
