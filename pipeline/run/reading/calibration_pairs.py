"""Calibrates an index with captions that a user has written for its photos (see pipeline.index.calibration)."""

import csv
import io
import logging
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors.numpy

from pipeline.collections.files import CollectionFolder
from pipeline.collections.formats import lists, rows, table
from pipeline.collections.records import Options
from pipeline.compute.multivectors import one_vector_each
from pipeline.config.results import IndexSettings
from pipeline.errors import InputError, UsageError
from pipeline.foreign.image_names import StoredPhoto, match_stored
from pipeline.index.calibration import BACKGROUND, MIN_DEV_IMAGES, Calibration, count_photos
from pipeline.index.search import NO_DIRECTION, Searcher
from pipeline.printable import counted
from pipeline.storage.index_changes import Change, photos_of
from pipeline.storage.index_shard import IndexWriter
from pipeline.storage.json_files import Json, fingerprint
from pipeline.storage.stored_index import StoredIndex

BACKGROUND_IMAGES = 1000
"""Number of images in the background of a calibration with a user's captions, if the index has as many."""
HEADER = ("file", "caption")
"""The columns of a table of pairs that `record_pair` writes."""
log = logging.getLogger(__name__)


class Pair(NamedTuple):
    """A caption with the name of its photo, and the number of the row in the user's table."""

    row: int
    name: str
    caption: str


def read_pairs(path: Path) -> list[Pair]:
    """Read a table of photos and captions, in any of the formats of pipeline.collections.formats.rows.

    A row whose column of captions is a list has one pair for each item. Raises UsageError if there is no such table,
    and InputError, which names the row, for a row without a photo or a caption.
    """
    if not path.is_file():
        raise UsageError(
            f"{path} does not exist. Write a table with the columns {' and '.join(HEADER)}, or add --ask to write it"
            " while photos are shown."
        )
    options = Options({}, {}, "gallery")
    folder = CollectionFolder(path.parent, options)
    columns = table.usual_columns(folder, path)
    if missing := [name for name in ("file", "sentence") if name not in columns]:
        usual = ", ".join(table.USUAL_COLUMNS[missing[0]])
        what = "photos" if missing[0] == "file" else "captions"
        raise InputError(f"{path} has no column of {what}. Give this column one of these names: {usual}.")
    pairs = []
    for number, values, fault in rows.read_rows(folder, path, (columns["file"], columns["sentence"]), ()):
        if fault:
            raise InputError(f"{path} row {number}: {fault}. Correct the row.")
        name = str(values.get(columns["file"]) or "").strip()
        captions = [str(text).strip() for text in lists.sentences(values.get(columns["sentence"]), options.tally)]
        if not name or not captions or not all(captions):
            empty = "caption" if name else "name of the photo"
            raise InputError(f"{path} row {number}: the {empty} is empty. Write it, or remove the row.")
        pairs += [Pair(number, name, caption) for caption in captions]
    return pairs


def match_pairs(index: StoredIndex, path: Path, pairs: Sequence[Pair]) -> list[StoredPhoto]:
    """Return the photo of each pair.

    Raises InputError, which names the row, if a name does not match exactly one photo of the index, and if two rows
    have the same photo and caption.
    """
    found, reasons = match_stored([pair.name for pair in pairs], partial(photos_of, index))
    rows_by_pair: dict[tuple[StoredPhoto, str], int] = {}
    for row, name, caption in pairs:
        photos = found.get(name, [])
        if len(photos) != 1:
            fault = f" names {len(photos)} photos" if photos else reasons.get(name) or " is not the name of a photo"
            raise InputError(
                f"{path} row {row}: {name!r}{fault} of {index.folder}. Correct the name, or remove the row."
            )
        first = rows_by_pair.setdefault((photos[0], " ".join(caption.split()).casefold()), row)
        if first != row:
            raise InputError(f"{path} row {row}: row {first} has the same photo and caption. Remove one of these rows.")
    return [found[pair.name][0] for pair in pairs]


def require_calibratable(searcher: Searcher) -> None:
    """Raise UsageError if an index cannot be calibrated with captions."""
    index = searcher.index
    count = sum(count_photos(index))
    if searcher.multi_vector:
        raise UsageError(
            f"{index.folder} cannot be calibrated, because its model compares regions of photos. Use the index of a"
            " model with one vector per photo, such as ncca."
        )
    if count < MIN_DEV_IMAGES:
        raise UsageError(
            f"{index.folder} has {counted(count, 'photo')}, but a calibration needs captions of {MIN_DEV_IMAGES}"
            " photos. Calibrate an index of more photos."
        )
    searcher.count_words("")  # raises UsageError if the index has no text encoder


def calibrate_index(change: Change, path: Path, seed: int = 0) -> Calibration:
    """Calibrate an index with the table of photos and captions at `path`, and write the calibration to its first shard.

    The background is the photos of the table and a sample of other photos. Raises UsageError as `require_calibratable`
    does, and if the index cannot return its vectors. Raises InputError, which names the table and the row, as
    `read_pairs` and `match_pairs` do, for a caption without a known word, and for captions of too few photos.
    """
    index = change.index
    searcher = Searcher(index)
    require_calibratable(searcher)
    pairs = read_pairs(path)
    photos = match_pairs(index, path, pairs)
    if (count := len(set(photos))) < MIN_DEV_IMAGES:
        raise InputError(
            f"{path} has captions of {counted(count, 'photo')}, but a calibration needs {MIN_DEV_IMAGES}. Add rows, for"
            f" example with: jointspace calibrate {index.folder} {path} --ask"
        )
    captions = _embed_captions(searcher, path, pairs)
    images, owners = _read_images(searcher, [photo.image_id for photo in photos], np.random.default_rng(seed))
    card = index.first.card
    coverage = card.calibration.coverage if card.calibration else IndexSettings().coverage
    calibration = Calibration.fit(images, captions, owners, card.metric, coverage)
    if trained := len(training_photos(index).intersection(photo.image_id for photo in photos)):
        log.warning(
            "%s: %d of %s were used to train the model, so the line may promise too much. Use photos of other splits.",
            path, trained, counted(count, "photo"),
        )  # fmt: skip
    facts: dict[str, Json] = {**calibration.card(), "photos": count_photos(index)}
    writer = IndexWriter(change.folder(index.first))
    writer.add(BACKGROUND, safetensors.numpy.save({"images": calibration.background}))
    settings = {**facts, "background": writer.files[BACKGROUND]["sha256"]}
    writer.link(index.first, but={BACKGROUND})
    inputs = {**card.inputs, "bundle": card.fingerprint}
    digest = fingerprint("calibrated", 1, settings, {"bundle": card.fingerprint})
    writer.commit(source=card, calibration=facts, inputs=inputs, fingerprint=digest)
    return calibration


def _embed_captions(searcher: Searcher, path: Path, pairs: Sequence[Pair]) -> np.ndarray:
    """Embed the captions as (m, c). Raises InputError for a caption that a search would refuse."""
    for pair in pairs:
        try:
            searcher.require_known(pair.caption)
        except InputError as error:
            raise InputError(f"{path} row {pair.row}: {error}") from error
    vectors = one_vector_each(searcher.embed_sentences([pair.caption for pair in pairs]))
    if len(zero := np.flatnonzero(~vectors.any(axis=1))):
        raise InputError(f"{path} row {pairs[zero[0]].row}: {NO_DIRECTION}")
    return vectors


def _read_images(
    searcher: Searcher, image_ids: Sequence[int], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Read the vectors (n, c) of the images with captions and of other images, which are the background.

    Return them with the row (m,) of the image of each of the `image_ids` (m,). Raises UsageError if the type of the
    index cannot return its vectors.
    """
    images = searcher.rows("images")
    unique, owners = np.unique(image_ids, return_inverse=True)
    own = images.find("image_id", unique)
    present = np.concatenate([group["path"].is_valid().to_numpy() for group in images.groups(["path"])])
    background = choose_background(own, np.flatnonzero(present), rng)
    try:
        return searcher.gallery("images").reconstruct(background), owners
    except RuntimeError as error:
        raise UsageError(
            f"{searcher.index.folder} cannot be calibrated, because its type of index does not return its vectors. Set"
            " index.candidates to other types, and run `jointspace run CONFIG`."
        ) from error


def choose_background(own: np.ndarray, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the rows of the background: `own`, followed by a sample of the other `rows`, BACKGROUND_IMAGES in all."""
    others = np.setdiff1d(rows, own)
    count = min(len(others), max(0, BACKGROUND_IMAGES - len(own)))
    return np.concatenate([own, rng.choice(others, count, replace=False)])


def training_photos(index: StoredIndex) -> set[int]:
    """Return the ids of the photos of an index with which its model was trained."""
    trained = index.card.trained_on
    if trained is None or trained.run != index.card.name:
        return set()
    groups = (group.to_pydict() for group in index.packed_table("images").groups(["image_id", "split"]))
    rows_of_groups = (zip(group["image_id"], group["split"], strict=True) for group in groups)
    return {image_id for group in rows_of_groups for image_id, split in group if split in trained.splits}


def photos_without_captions(index: StoredIndex, paired: Iterable[StoredPhoto], seed: int) -> list[StoredPhoto]:
    """Return the photos for which the user may be asked, in a random order.

    These are all photos except those that are `paired` with a caption, that trained the model, or that have the name of
    another photo.
    """
    photos = list(photos_of(index))
    counts = Counter(photo.name for photo in photos)
    excluded = training_photos(index) | {photo.image_id for photo in paired}
    order = np.random.default_rng(seed).permutation(len(photos))
    shuffled = (photos[number] for number in order.tolist())
    return [photo for photo in shuffled if photo.image_id not in excluded and counts[photo.name] == 1]


def record_pair(path: Path, name: str, caption: str) -> None:
    """Append a pair to the CSV table at `path`, which is created if it does not exist, and wait until it is stored."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    before = path.read_bytes()[-1:] if path.exists() else b""
    text.write("\n" if before not in (b"", b"\n") else "")
    writer.writerows([*([] if before else [HEADER]), (name, caption)])
    with open(path, "a", encoding="utf-8", newline="") as file:
        file.write(text.getvalue())
        file.flush()
        os.fsync(file.fileno())
