"""Vectors made elsewhere, without photographs: each row of a file, or of the folder that clip-retrieval wrote, is an
image, and each row of another a sentence."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

from pipeline.collections.files import CollectionFolder
from pipeline.collections.formats import lists
from pipeline.collections.formats.rows import read_rows
from pipeline.collections.records import ColumnsRecord, ImageRecord, Options, Record, Reject, SentenceRecord, Tally
from pipeline.foreign.image_names import relative_name
from pipeline.foreign.vectors import NAMES, NOT_FINITE, Source, foreign_files, names_column, open_foreign, owner_names

FORMAT = "vectors"
VECTORS: Mapping[str, tuple[str, ...]] = {"images": (), "texts": ()}
SPLIT = "split"


def sources(folder: CollectionFolder) -> tuple[Source, Source | None]:
    """Where the vectors of the images are, and those of their texts, if there are any. Raises UsageError where
    collection.files names no images."""
    where = folder.locate(VECTORS)
    images = folder.require(where["images"], "images", ("file of vectors",))
    texts = where["texts"]
    return Source(images, None, None), texts and Source(texts, None, None, "sentences")


def list_files(folder: CollectionFolder) -> list[Path]:
    """All files that the format reads."""
    return [file for source in filter(None, sources(folder)) for file in foreign_files(source)]


def read(root: Path, options: Options) -> Iterator[Record]:
    """The images in the order of their rows, each with the user's own columns that a table has of it, then the
    sentences, which without vectors of texts are the captions of that table. An image whose name has several rows is
    one, with the texts of all of them."""
    folder = CollectionFolder(root, replace(options, tally=Tally()))  # not to say that columns of vectors are lost
    images, texts = sources(folder)
    raw_names = open_foreign(images).names
    names = list(map(relative_name, raw_names))
    file = folder.label(images.path)
    for row, (name, values) in enumerate(zip(names, _metadata(folder, images, options), strict=False), 1):
        split = lists.split_name(str(values.get(SPLIT) or options.default_split))
        yield ImageRecord(name, name, split, file, row, implied=True)
        caption = next((column for column in NAMES["sentences"] if column in values), None)
        if own := {column: value for column, value in values.items() if column not in (SPLIT, caption)}:
            yield ColumnsRecord(name, own, file, row)
        if texts is None and caption and values[caption]:
            yield SentenceRecord(name, None, values[caption], file, row)
    if texts is None:
        return
    file = folder.label(texts.path)
    vectors = open_foreign(texts)
    words = vectors.names or nameless(raw_names)
    if vectors.names is None and len(vectors) != len(names):
        yield Reject(file, None, "sentences", f"{len(vectors)} rows for {len(names)} images; name the rows IMAGE#k")
        return
    given = owner_names(texts)
    owners = [_owner(name) or relative_name(name) for name in given] if given else list(map(_owner, words))
    if 2 * owners.count(None) >= len(words):
        owners = names if len(words) == len(names) else [None] * len(words)
    table = next((path for path in foreign_files(texts) if path.suffix.lower() == ".parquet"), None)
    column = f" in the column {names_column(texts, table)}" if table else ""
    for row, (text, owner, usable) in enumerate(zip(words, owners, vectors.finite(), strict=True), 1):
        if not usable:
            yield Reject(file, row, "sentences", NOT_FINITE)
        elif owner is None:
            reason = f"not named IMAGE#k: {text[:40]!r}{column}, of {len(words)} texts for {len(names)} images"
            remedy = "name all rows so, or give the image of each in a column file"
            yield Reject(file, row, "sentences", f"{reason}; {remedy}")
        else:
            yield SentenceRecord(owner, None, text, file, row)


def _owner(name: str) -> str | None:
    """The IMAGE of a text named IMAGE#k; None where the name is the text's own words, such as `we are #1`."""
    image, _, number = name.rpartition("#")
    return relative_name(image) if image and not image[-1].isspace() and number.isdecimal() else None


def nameless(images: Sequence[str]) -> list[str]:
    """Names for texts without words, of which row i is of the image whose name is `images[i]`: IMAGE#k."""
    counts: dict[str, int] = {}
    names = []
    for image in images:
        number = counts.get(image, 0)
        counts[image] = number + 1
        names.append(f"{image}#{number}")
    return names


def _metadata(folder: CollectionFolder, images: Source, options: Options) -> Iterator[Mapping[str, Any]]:
    """What a table, of clip-retrieval or with the vectors, has in each row beside its name; of other files nothing."""
    tables = [path for path in foreign_files(images) if path.suffix.lower() == ".parquet"]
    for path in tables:
        names = names_column(images, path)
        for row in read_rows(folder, path, (SPLIT, *NAMES["sentences"]), (), options.own_columns):
            yield {column: value for column, value in row.values.items() if column != names}
    if not tables:
        yield from repeat({})
