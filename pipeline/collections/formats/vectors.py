"""Precomputed vectors without photos: each row of a file, or of a folder that clip-retrieval wrote, is an image, and
each row of another file is a sentence."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

from pipeline.collections.files import CollectionFolder
from pipeline.collections.formats import lists
from pipeline.collections.formats.rows import read_rows, schema
from pipeline.collections.records import ColumnsRecord, ImageRecord, Options, Record, Reject, SentenceRecord, Tally
from pipeline.errors import InputError, UsageError
from pipeline.foreign import vectors as foreign
from pipeline.foreign.image_names import relative_name

FORMAT = "vectors"
VECTORS: Mapping[str, tuple[str, ...]] = {"images": (), "texts": ()}
KEYS = {"images": "images", "sentences": "texts"}
"""The key of collection.files for each kind of vectors."""
SUFFIXES = (".npy", ".npz", ".safetensors", ".pt", ".pth", ".h5", ".hdf5")
"""Suffixes of files of vectors, except Parquet."""
SPLIT = "split"
NAME_ROWS = "Name each row like the image and a number, such as a.jpg#0, or list the images in a column `file`"
"""The remedy for vectors of texts whose images are unknown, in reasons of rejects."""
MAX_SHOWN_CHARACTERS = 40
"""Largest number of characters of a name in a message."""


def sources(folder: CollectionFolder) -> tuple[foreign.Source, foreign.Source | None]:
    """Return the location of the vectors of images, and the location of the vectors of texts, or None if there are
    none.

    Raises UsageError if collection.files does not name vectors of images.
    """
    where = folder.locate(VECTORS)
    images = folder.require(where["images"], "images", ("file of vectors",))
    texts = where["texts"]
    return foreign.Source(images, None, None), texts and foreign.Source(texts, None, None, "sentences")


def list_files(folder: CollectionFolder) -> list[Path]:
    """Return all files of vectors that the format reads, and the tables of their names. Raises UsageError if
    collection.files does not name vectors of images."""
    return [file for source in filter(None, sources(folder)) for file in foreign.foreign_files(source)]


def find_files(folder: CollectionFolder) -> dict[str, str]:
    """Return the keys of collection.files for the vectors in a folder, or {} if the folder has no vectors of images.

    The vectors are in a folder that clip-retrieval wrote, in files with descriptive names such as `photo_text.npy`, or
    in Parquet files. If all Parquet files are in one folder, they are one table. In all other cases, raises UsageError
    if several files have vectors of images, or several have vectors of texts.
    """
    if (folder.root / foreign.CLIP_RETRIEVAL["images"][0]).is_dir():
        return {
            KEYS[side]: "." for side, (parts, _) in foreign.CLIP_RETRIEVAL.items() if (folder.root / parts).is_dir()
        }
    named: dict[str, list[str]] = {}
    tables = folder.glob("**/*.parquet")
    for path in [*sorted(path for path in folder.root.iterdir() if path.suffix.lower() in SUFFIXES), *tables]:
        with suppress(InputError):
            for side in sides_of(folder, path):
                named.setdefault(KEYS[side], []).append(folder.label(path))
    if len(tables) > 1 and len(folders := {folder.label(path.parent) for path in tables}) == 1:
        parts = list(map(folder.label, tables))
        named = {key: [*folders] if names == parts else names for key, names in named.items()}
    for key, names in named.items():
        if len(names) > 1:
            raise UsageError(
                f"{folder.root} has several files with vectors for {key}: {', '.join(names)}. Name one of them in"
                f" collection.files.{key}, or keep only one."
            )
    return {key: name for key, (name,) in named.items()} if "images" in named else {}


def sides_of(folder: CollectionFolder, path: Path) -> list[str]:
    """Return the kinds of vectors in a file, `images` or `sentences`, by the name of the file, or by the names of its
    columns if several columns have vectors.

    A Parquet file with one column of vectors has vectors of images, unless a name says otherwise. Return [] if the file
    has no vectors, or if no name says whether they describe images or sentences.
    """
    if path.suffix.lower() != ".parquet":
        return [side] if (side := foreign.marked(path.stem)) and path.suffix.lower() in SUFFIXES else []
    columns = foreign.columns_of_vectors(schema(folder, path))
    if len(columns) == 1:
        return [foreign.marked(path.stem) or foreign.marked(columns[0]) or "images"]
    return list(filter(None, map(foreign.marked, columns)))


def read(root: Path, options: Options) -> Iterator[Record]:
    """Yield the images in the order of the rows of their vectors.

    Each image is followed by the other columns of its row, if the vectors are in a table. Without vectors of texts, the
    caption of the row follows too. With vectors of texts, the sentences follow after all images. Several rows with one
    name are one image, with the captions of all these rows and the other columns of the first row.
    """
    # The reader has a tally of its own, so that the user gets no note that a column of vectors is not kept.
    folder = CollectionFolder(root, replace(options, tally=Tally()))
    images, texts = sources(folder)
    raw_names = foreign.open_foreign(images).names
    assert raw_names is not None  # only sentences can be without names
    names = list(map(relative_name, raw_names))
    file = folder.label(images.path)
    for row, (name, values) in enumerate(zip(names, _metadata(folder, images, options), strict=False), 1):
        split = lists.split_name(str(values.get(SPLIT) or options.default_split))
        yield ImageRecord(name, name, split, file, row, implied=True)
        caption = next((column for column in foreign.NAMES["sentences"] if column in values), None)
        if own := {column: value for column, value in values.items() if column not in (SPLIT, caption)}:
            yield ColumnsRecord(name, own, file, row)
        if texts is None and caption and values[caption]:
            yield SentenceRecord(name, None, values[caption], file, row)
    if texts is None:
        return
    file = folder.label(texts.path)
    vectors = foreign.open_foreign(texts)
    words = vectors.names or nameless(raw_names)
    if vectors.names is None and len(vectors) != len(names):
        yield Reject(
            file, None, "sentences", f"nameless rows: there are {len(vectors)} for {len(names)} images. {NAME_ROWS}"
        )
        return
    given = foreign.owner_names(texts)
    owners = [_owner(name) or relative_name(name) for name in given] if given else list(map(_owner, words))
    if 2 * sum(owner is None for owner in owners) >= len(words):
        owners = [*names] if len(words) == len(names) else [None] * len(words)
    table = next((path for path in foreign.foreign_files(texts) if path.suffix.lower() == ".parquet"), None)
    column = f" in the column {foreign.names_column(texts, table)}" if table else ""
    for row, (text, owner, usable) in enumerate(zip(words, owners, vectors.finite(), strict=True), 1):
        if not usable:
            yield Reject(file, row, "sentences", foreign.NOT_FINITE)
        elif owner is None:
            shown = text[:MAX_SHOWN_CHARACTERS]
            reason = f"image not named: the row is named {shown!r}{column}, and {len(words)} texts are for {len(names)}"
            yield Reject(file, row, "sentences", f"{reason} images. {NAME_ROWS}")
        else:
            yield SentenceRecord(owner, None, text, file, row)


def _owner(name: str) -> str | None:
    """Return the name of the image in the name IMAGE#k of a sentence, or None if the name is the sentence itself, such
    as `we are #1`."""
    image, _, number = name.rpartition("#")
    return relative_name(image) if image and not image[-1].isspace() and number.isdecimal() else None


def nameless(images: Sequence[str]) -> list[str]:
    """Return names IMAGE#k for vectors of sentences without names. Vector i belongs to the image with the name
    `images[i]`, and k counts the vectors of this image from 0."""
    counts: dict[str, int] = {}
    names = []
    for image in images:
        number = counts.get(image, 0)
        counts[image] = number + 1
        names.append(f"{image}#{number}")
    return names


def _metadata(folder: CollectionFolder, images: foreign.Source, options: Options) -> Iterator[Mapping[str, Any]]:
    """Yield the other columns of each row of the vectors of images, from the table that has the vectors or from the
    metadata of clip-retrieval.

    For files without a table, yield empty mappings without end.
    """
    tables = [path for path in foreign.foreign_files(images) if path.suffix.lower() == ".parquet"]
    for path in tables:
        names = foreign.names_column(images, path)
        for row in read_rows(folder, path, (SPLIT, *foreign.NAMES["sentences"]), (), options.own_columns):
            yield {column: value for column, value in row.values.items() if column != names}
    if not tables:
        yield from repeat({})
