"""Calibrating an index with captions that a user has written for its photos (see pipeline.index.calibration)."""

import csv
import io
import logging
import os
import shlex
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import safetensors.numpy

from pipeline.collections.files import CollectionFolder
from pipeline.collections.formats import lists, rows, table
from pipeline.collections.records import Options, SentenceRecord
from pipeline.compute.multivectors import one_vector_each
from pipeline.config.results import IndexSettings
from pipeline.errors import InputError, UsageError
from pipeline.foreign.image_names import StoredPhoto, find_stored
from pipeline.index.calibration import BACKGROUND, MIN_DEV_IMAGES, Calibration, count_photos, find_obstacle
from pipeline.index.search import Searcher
from pipeline.printable import counted
from pipeline.storage.index_changes import Change, photos_of
from pipeline.storage.index_shard import IndexWriter
from pipeline.storage.json_files import fingerprint
from pipeline.storage.stored_index import StoredIndex

BACKGROUND_IMAGES = 1000
"""Number of images in the background of a calibration with a user's captions. The background is smaller if the index
has fewer images, and greater if the user has written captions for more images."""
HEADER = "file,caption\n"
"""The first line of a table that `record_pair` writes."""
log = logging.getLogger(__name__)


def read_pairs(path: Path) -> list[SentenceRecord]:
    """Read a table of photos and captions, in any of the formats of pipeline.collections.formats.rows.

    Return one record per caption, with the name of the photo and the number of the row. Raises UsageError if the file
    does not exist. Raises InputError if the table has no column of captions, or has a row without a photo or a caption.
    """
    if not path.is_file():
        raise UsageError(
            f"{path} does not exist. Write this table with the columns file and caption, or add --ask, which asks you"
            " for captions and writes this table."
        )
    options = Options({}, {}, "gallery")
    folder = CollectionFolder(path.parent, options)
    columns, _ = table.with_sentences(table.find_columns(folder, path))
    if "sentence" not in columns:
        raise InputError(f"{path} has no column of captions. Name this column caption.")
    pairs = []
    for row, values, fault in rows.read_rows(folder, path, (columns["file"], columns["sentence"]), ()):
        name = str(values.get(columns["file"]) or "").strip()
        captions = [str(text).strip() for text in lists.sentences(values.get(columns["sentence"]), options.tally)]
        if not name or not captions or not all(captions):
            fault = fault or f"the {'caption' if name else 'name of the photo'} is empty"
            raise InputError(f"{path} row {row}: {fault}. Correct the row, or remove it.")
        pairs += [SentenceRecord(name, None, caption, str(path), row) for caption in captions]
    return pairs


def match_pairs(index: StoredIndex, pairs: Sequence[SentenceRecord]) -> list[StoredPhoto]:
    """Return the photo of the index for each of the `pairs`. A pair names its photo in the key `key`.

    Raises InputError if a name does not match exactly one photo, and if two pairs have the same photo and caption.
    """
    found, reasons = find_stored([pair.key for pair in pairs], partial(photos_of, index))
    first_rows: dict[tuple[StoredPhoto, str], int | None] = {}
    for name, _, caption, file, row in pairs:
        photos = found.get(name, [])
        if len(photos) != 1:
            fault = reasons.get(name) or f" is not the name of one photo of {index.folder}"
            raise InputError(f"{file} row {row}: {name!r}{fault}. Correct the name, or remove the row.")
        first = first_rows.setdefault((photos[0], " ".join(caption.split()).casefold()), row)
        if first != row:
            raise InputError(f"{file} row {row}: row {first} has the same photo and caption. Remove one of these rows.")
    return [found[pair.key][0] for pair in pairs]


def open_text_searcher(index: StoredIndex) -> Searcher:
    """Return a searcher of the index. Raises UsageError if captions cannot calibrate the index."""
    if obstacle := find_obstacle(index):
        raise UsageError(f"{index.folder} cannot be calibrated, because {obstacle}. Use another index.")
    searcher = Searcher(index)
    searcher.count_words("")  # This raises UsageError if the index has no text encoder.
    return searcher


def calibrate_index(change: Change, path: Path, seed: int = 0) -> Calibration:
    """Calibrate an index with the table of photos and captions at `path`, and write the calibration to its first shard.

    The background consists of the photos of the table and a random sample of other photos. `seed` decides the sample.
    Raises UsageError if there is no table. Raises UsageError if the index is of a multi-vector model, has fewer than
    MIN_DEV_IMAGES photos, has no text encoder, or cannot return its vectors. Raises InputError if the table has
    captions of fewer than MIN_DEV_IMAGES photos. Raises InputError with the number of the row if a caption is empty, if
    a search would refuse a caption, if a name does not match exactly one photo, or if an earlier row has the same photo
    and caption.
    """
    index = change.index
    searcher = open_text_searcher(index)
    pairs = read_pairs(path)
    photos = match_pairs(index, pairs)
    if (count := len(set(photos))) < MIN_DEV_IMAGES:
        command = shlex.join(["jointspace", "calibrate", str(index.folder), str(path), "--ask"])
        said = f"{path} has captions of {counted(count, 'photo')}, but a calibration needs {MIN_DEV_IMAGES}"
        raise InputError(f"{said}. Add rows. If --ask has written the table, you can also run: {command}")
    for pair in pairs:
        try:
            searcher.require_known(pair.text)
        except InputError as error:
            raise InputError(f"{path} row {pair.row}: {error}") from error
    if trained := len(training_photos(index).intersection(photo.image_id for photo in photos)):
        log.warning(
            "%s has %d photos that trained the model, so the threshold of likely matches may be too high for other"
            " photos. Use captions of photos that did not train the model.",
            path, trained,
        )  # fmt: skip
    card = index.first.card
    coverage = card.calibration.coverage if card.calibration else IndexSettings().coverage
    captions = one_vector_each(searcher.embed_sentences([pair.text for pair in pairs]))
    images, owners = _read_images(searcher, [photo.image_id for photo in photos], np.random.default_rng(seed))
    calibration = Calibration.fit(images, captions, owners, card.metric, coverage)
    facts = {**calibration.card(), "photos": count_photos(index)}
    writer = IndexWriter(change.folder(index.first))
    writer.add(BACKGROUND, safetensors.numpy.save({"images": calibration.background}))
    origin = {"bundle": card.fingerprint, BACKGROUND: writer.files[BACKGROUND]["sha256"]}
    writer.link(index.first, but={BACKGROUND})
    digest = fingerprint("calibrated", 1, facts, origin)
    inputs = {**card.inputs, "bundle": card.fingerprint}
    writer.commit(source=card, calibration=facts, inputs=inputs, fingerprint=digest)
    return calibration


def _read_images(searcher: Searcher, ids: Sequence[int], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Read the vectors (n, c) of the background of a calibration. Also return which of these n rows belongs to each of
    the images `ids` (m,), as row numbers (m,).

    The background is chosen with `rng`. Raises UsageError if the type of the index cannot return its vectors.
    """
    images = searcher.rows("images")
    unique, owners = np.unique(ids, return_inverse=True)
    present = np.concatenate([group["path"].is_valid().to_numpy() for group in images.groups(["path"])])
    own = np.concatenate([images.find("image_id", np.array([image_id])) for image_id in unique])
    background = choose_background(own, np.flatnonzero(present), rng)
    try:
        return searcher.gallery("images").reconstruct(background), owners
    except RuntimeError as error:
        folder = searcher.index.folder
        remedy = "Set index.candidates to other types of index, and run `jointspace run CONFIG`."
        raise UsageError(
            f"The index {folder} cannot be calibrated, because its type returns no vectors. {remedy}"
        ) from error


def choose_background(own: np.ndarray, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the rows of an index that form the background of a calibration.

    The first rows are `own`, which are the rows of photos with captions. A sample of the other `rows`, drawn with
    `rng`, follows. The background has BACKGROUND_IMAGES rows, or all `rows` if there are fewer. If `own` has more than
    BACKGROUND_IMAGES rows, there is no sample.
    """
    others = np.setdiff1d(rows, own)
    count = min(len(others), max(0, BACKGROUND_IMAGES - len(own)))
    return np.concatenate([own, rng.choice(others, count, replace=False)])


def training_photos(index: StoredIndex) -> set[int]:
    """Return the ids of the photos of an index with which its model was trained.

    The set is empty if the card of the index does not describe the training data, or says that the model was trained
    in another run than the run that built the index.
    """
    trained = index.card.trained_on
    splits = trained.splits if trained and trained.run == index.card.name else []
    groups = index.packed_table("images").groups(["image_id", "split"])
    photos = (photo for group in groups for photo in group.to_pylist())
    return {photo["image_id"] for photo in photos if photo["split"] in splits}


def photos_to_describe(index: StoredIndex, described: Collection[StoredPhoto], seed: int) -> list[StoredPhoto]:
    """Return the photos that are not `described` and did not train the model, in a random order that `seed` decides.

    `described` are the photos that have captions already. The first returned photo follows the last described photo in
    this order, so that photos that the user has skipped come again only at the end.
    """
    trained = training_photos(index)
    photos = [photo for photo in photos_of(index) if photo.image_id not in trained]
    order = np.random.default_rng(seed).permutation(len(photos)).tolist()
    start = 1 + max((place for place, number in enumerate(order) if photos[number] in described), default=-1)
    return [photos[number] for number in order[start:] + order[:start] if photos[number] not in described]


def record_pair(path: Path, name: str, caption: str) -> None:
    """Append a row with the `name` of a photo and a caption to the CSV table at `path`.

    A missing table is created, with the line HEADER before the row. The function returns when the row is on the disk.
    """
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow((name, caption))
    before = path.read_text("utf-8") if path.exists() else ""
    missing = "" if before.endswith("\n") else "\n" if before else HEADER
    with open(path, "a", encoding="utf-8", newline="") as file:
        file.write(missing + line.getvalue())
        file.flush()
        os.fsync(file.fileno())
