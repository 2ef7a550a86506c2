"""Detection of the format of a folder or file of photos from the names of files and the first rows of tables."""

import glob
import os
import posixpath
import shlex
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

from pipeline.collections.files import ARCHIVES, LIST_SUFFIXES, CollectionFolder, is_image
from pipeline.collections.formats import FORMATS, NAMED, lists, rows, table, vectors
from pipeline.collections.formats.folder import FOLDER, described_by
from pipeline.collections.formats.published import find_captions
from pipeline.collections.formats.webdataset import DIGITS
from pipeline.collections.records import DIVIDED, ImageRecord, Options
from pipeline.errors import InputError, JointspaceError, UsageError
from pipeline.foreign.image_names import MAX_NAMES_PER_PASS, Reading
from pipeline.foreign.parquet import photograph_column

KNOWN_LISTS = {
    "folder": ("captions", "weak"),
    "flickr-token": ("sentences",),
    "karpathy": ("dataset",),
    "coco": ("train", "dev", "test"),
}
"""Format -> keys of collection.files. A folder has a format if it contains a file with a usual name for one of these
keys. The formats are tried in this order."""
NO_OPTIONS = Options({}, {}, "gallery")
MAX_SAMPLES = 20
"""Largest number of Parquet files, and of JSON files, that are opened to detect a format. It is also the number of
photos at the beginning of a list for which detection checks whether they exist at exactly the listed path."""
SAMPLE_STEP = 500
"""Number of photos, after the first MAX_SAMPLES photos of a list, that are searched for in the folders without a gap.
From then on, only one photo in SAMPLE_STEP is searched for."""
ONLY_FOLDER_LISTS = ("splits", "boxes")
"""Keys of lists that only the format `folder` reads. If one of them exists, captions.tsv is a list of this format, and
not a table. A list with the usual name of one of these keys is only a table if it has a column of captions."""
NAMES_OF_FOLDER_LISTS = frozenset(name for key in ONLY_FOLDER_LISTS for name in FOLDER[key])
"""Usual names of the lists of ONLY_FOLDER_LISTS."""
AMBIGUOUS_SUFFIXES = (".txt", ".json")
"""Suffixes of tables that other files have too. A file with such a suffix is only a table if it is in the folder
itself, does not have the name of a photo next to it, has a header that names images, and names photos of the folder.
Tables with other suffixes are tried first."""
SAVED_TO_DISK = (
    "convert the output of `save_to_disk`: datasets.load_from_disk(FOLDER)['train'].to_parquet('train.parquet')"
)
NOTHING_FOUND = "give the folder of photos, or name files of vectors images.npy and captions.npy"
MAX_NAMED_LISTS = 3
"""Largest number of unused lists that the notes for the user name. Further lists are only counted."""


@dataclass(frozen=True)
class Detected:
    """A detected collection in the folder `root`.

    `files` and `columns` have the keys of collection.files and collection.columns that differ from the defaults of the
    format. `described` is false if the photos have no texts. `notes` are lines for the user about the columns of a
    table and about unused lists.
    """

    root: Path
    format: str
    files: dict[str, str] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    described: bool = True
    notes: tuple[str, ...] = field(default=(), compare=False)

    def settings(self) -> dict[str, object]:
        """Return the keys of the section `collection` of a configuration that are not empty."""
        values = {"format": self.format, "files": self.files, "columns": self.columns}
        return {key: value for key, value in values.items() if value}


def detect(path: Path) -> Detected:
    """Detect the format of the collection at `path`.

    `path` is a folder, a tar shard, a table of photos, a Parquet file of photos or vectors, or a JSON file of captions.
    Raises UsageError for any other file, for a folder in which no format is recognised, and if it is ambiguous in which
    folder the photos of a table are. Raises InputError for a table that cannot be read.
    """
    detected = _detect_folder(CollectionFolder(path, NO_OPTIONS)) if path.is_dir() else _detect_file(path)
    return _with_folder_of_images(detected)


def _detect_file(path: Path) -> Detected:
    suffix = path.suffix.lower()
    if not path.is_file() or suffix not in (".tar", *rows.READERS):
        kinds = f"a folder of photos, a .tar shard or a table ({', '.join(rows.READERS)})"
        end = "does not exist. Name" if not path.exists() else "cannot be read. Unpack it if it is an archive, or name"
        raise UsageError(f"{path} {end} {kinds}.")
    if suffix == ".tar":
        return Detected(path.parent, "webdataset", {DIVIDED: glob.escape(path.name)})
    folder = CollectionFolder(path.parent, NO_OPTIONS)
    if suffix == ".parquet" and (column := photograph_column(rows.schema(folder, path))):
        return _as_parquet_photos(folder, path, column, {DIVIDED: glob.escape(path.name)})
    if suffix == ".parquet" and "images" in (sides := vectors.sides_of(folder, path)) and _table_fault(folder, path):
        return Detected(folder.root, vectors.FORMAT, {vectors.KEYS[side]: path.name for side in sides})
    if suffix == ".json" and (files := find_captions(folder, [path.name])):
        return Detected(folder.root, "coco", files)
    if path.name.lower() in (*FOLDER["captions"], *FOLDER["splits"]) and _table_fault(folder, path):
        command = shlex.join(["jointspace", "init", str(path.parent)])
        raise UsageError(f"{path} is not a table. It is read together with its folder. Give the folder: `{command}`.")
    return _as_table(folder, {"table": path.name}, table.find_columns(folder, path))


class Survey:
    """The contents of a folder, which are counted from `contents`: pairs of the folder itself ("") or a subfolder, and
    the names of the files in it.

    `photos_inside` is the number of photos in and below the folder `images`, and `photos_outside` the number of other
    photos. `texts` is the number of text files, and of JSON files of Google Takeout, that have the name of a photo in
    their folder. `lists` are the paths, relative to the folder, of the files that could be lists, and `separate` are
    the lists that do not have the name of a photo next to them. Detectors add unused lists to `unused`.
    """

    def __init__(self, folder: CollectionFolder, contents: Iterable[tuple[str, list[str]]]) -> None:
        self.folder = folder
        self.photos_inside = 0
        self.photos_outside = 0
        self.texts = 0
        self.lists: list[str] = []
        self.separate: set[str] = set()
        for below, names in contents:
            self._add(below, names)

    def _add(self, below: str, names: list[str]) -> None:
        """Count the photos and texts of one folder, and collect its lists."""
        photos = [name for name in names if is_image(name)]
        if below.split("/")[0] == "images":
            self.photos_inside += len(photos)
        else:
            self.photos_outside += len(photos)
        stems = {stem for name in photos for stem in (name, posixpath.splitext(name)[0])}
        takeout = {name for name in names if described_by(name) in stems}
        beside = {name for name in names if posixpath.splitext(name)[0] in stems} | takeout
        self.texts += sum(name.lower().endswith(".txt") or name in takeout for name in beside)
        lists_here = [name for name in names if name.lower().endswith(LIST_SUFFIXES)]
        self.lists += [posixpath.join(below, name) for name in lists_here]
        self.separate |= {posixpath.join(below, name) for name in lists_here if name not in beside}

    @property
    def photos(self) -> int:
        return self.photos_inside + self.photos_outside

    def path(self, name: str) -> Path:
        return self.folder.root / name

    def lists_ending(self, suffix: str) -> list[str]:
        return [name for name in self.lists if name.lower().endswith(suffix)]

    @cached_property
    def possible_tables(self) -> dict[str, str]:
        """The lists in the folder itself that may be tables although their suffix does not show it, and that do not
        have the name of a photo.

        The value of each list is the reason why it is not a table, or "" if it is a table.
        """
        names = (name for name in self.lists if not _is_table(name) and name in self.separate and "/" not in name)
        return {name: _table_fault(self.folder, self.path(name)) for name in names}

    @cached_property
    def tables(self) -> list[str]:
        """The tables in the folder and its subfolders. Tables with ambiguous suffixes are last."""
        return [*filter(_is_table, self.lists), *(name for name, fault in self.possible_tables.items() if not fault)]

    @cached_property
    def tables_by_split(self) -> dict[str, str]:
        """The keys of collection.files for one table per split, with the name of each table, or {} if there are no such
        tables."""
        names = (name for name in self.tables if "/" not in name or Path(name).stem.lower() == table.METADATA)
        return table.tables_by_split(self.folder, [name for name in names if lists.split_in(name)])

    @cached_property
    def files_of_vectors(self) -> dict[str, str]:
        """The keys of collection.files for files of vectors, or {} if there are none or if the folder has photos."""
        return {} if self.photos else vectors.find_files(self.folder)

    @cached_property
    def unused(self) -> dict[str, str]:
        """The tables in subfolders of the collection, which are not read, each with the reason.

        The reason is an empty text for all but the first MAX_NAMED_LISTS tables. Detectors add other unused lists.
        """
        below = [name for name in self.tables if "/" in name]
        reasons = dict.fromkeys(below, "")
        for name in below[:MAX_NAMED_LISTS]:
            path = self.path(name)
            command = shlex.join(["jointspace", "init", str(path.parent)])
            fault = _table_fault(CollectionFolder(path.parent, NO_OPTIONS), path)
            reasons[name] = fault or f"only a table in the folder itself is read. To read this table, run: {command}"
        return reasons


def _detect_known_list(folder: CollectionFolder) -> Detected | None:
    """Detect a format by a list whose name only this format has, such as dataset_flickr8k.json.

    The result names only the format and not the lists, because the reader of the format finds the lists by their usual
    names. A captions.tsv that is a table with a header does not count, unless there is a list of ONLY_FOLDER_LISTS.
    Return None if no list decides the format.
    """
    has_other_lists = any(folder.glob(pattern) for key in ONLY_FOLDER_LISTS for pattern in FOLDER[key])
    for form, keys in KNOWN_LISTS.items():
        for path in (path for key in keys for pattern in NAMED[form][key] for path in folder.glob(pattern)):
            # A captions.tsv with a header that names images is a table.
            if has_other_lists or path.name.lower() not in FOLDER["captions"] or _table_fault(folder, path):
                return Detected(folder.root, form)
    return None


def _detect_parquet_photos(survey: Survey) -> Detected | None:
    """Detect photos inside Parquet files. The first file that can be read decides. Return None if this file has no
    photos, or if no Parquet file can be read."""
    for shard in survey.lists_ending(".parquet")[:MAX_SAMPLES]:
        path = survey.path(shard)
        # A file that cannot be read is skipped here. The reader of tables reports the error.
        with suppress(InputError):
            column = photograph_column(rows.schema(survey.folder, path))
            return _as_parquet_photos(survey.folder, path, column, {}) if column else None
    return None


def _detect_table(survey: Survey) -> Detected | None:
    """Detect a table of photos, one table per split, or several numbered tables. Return None if there is no such table,
    or if there are several numbered tables and most photos have a text file, which is read in place of the tables."""
    by_split = survey.tables_by_split
    names = [by_split["table"]] if by_split else [name for name in survey.tables if "/" not in name]
    for name in names:
        try:
            columns = table.find_columns(survey.folder, survey.path(name))
        except InputError as error:
            survey.unused[name] = str(error).removeprefix(str(survey.path(name))).lstrip(": ")
            continue
        if is_folder_list := name.lower() in NAMES_OF_FOLDER_LISTS and "sentence" not in columns:
            survey.unused[name] = "only the format folder reads this list"
        has_captions = "sentence" in columns or name not in FOLDER["metadata"]
        if survey.files_of_vectors or is_folder_list or not has_captions:
            continue
        files = by_split or {"table": name}
        used = list(files.values())
        pattern = DIGITS.sub("[0-9]*", glob.escape(name))
        alike = list(map(survey.folder.label, survey.folder.glob(pattern)))
        if not by_split and len(alike) > 1:
            # img2dataset writes captions to tables and to text files. If most photos have a text file, the text files
            # are read.
            if 2 * survey.texts > survey.photos:
                survey.unused |= dict.fromkeys(alike, "captions are read from the text files next to the photos")
                return None
            if _are_one_table(survey.folder, alike, pattern, columns):
                files = {"table": pattern}
                used = alike
        others = {other: survey.unused.get(other, "one table is read") for other in survey.tables if other not in used}
        return _as_table(survey.folder, files, columns, _name_unused(others))
    return None


def _are_one_table(folder: CollectionFolder, names: list[str], pattern: str, columns: dict[str, str]) -> bool:
    """Return whether tables whose names differ only in numbers are parts of one table with the same columns.

    If there is a table 1-2.csv besides 1.csv and 2.csv, it probably repeats their captions, so the three tables are not
    parts of one table.
    """
    with suppress(InputError):
        return all(DIGITS.sub("[0-9]*", glob.escape(name)) == pattern for name in names) and all(
            table.find_columns(folder, folder.root / name) == columns for name in names
        )
    return False


def _detect_folder(folder: CollectionFolder) -> Detected:
    if known := _detect_known_list(folder):
        return known
    survey = Survey(folder, folder.walk())
    if recognised := recognise(survey):
        return recognised
    arrow = [SAVED_TO_DISK] if folder.glob("**/*.arrow") else []
    steps = [*arrow, NOTHING_FOUND, *_name_unused(survey.unused)]
    raise folder.lacks("tar shard or table of them", ". ".join(f"{step[:1].upper()}{step[1:]}" for step in steps))


def recognise(survey: Survey) -> Detected | None:
    """Return the collection in a folder, or None if no format recognises it.

    The first kind that is found decides: Parquet files of photos, tables, tar shards, vectors, JSON files of captions,
    text files next to photos, and photos without texts. Tar shards and vectors only count in a folder without photos.
    """
    root = survey.folder.root
    if table_or_photos := _detect_parquet_photos(survey) or _detect_table(survey):
        return table_or_photos
    if not survey.photos and (shards := survey.lists_ending(".tar")):
        patterns = [DIGITS.sub("*", glob.escape(name)) for name in shards]
        return Detected(root, "webdataset", lists.by_split(list(dict.fromkeys(patterns))))
    if survey.files_of_vectors:
        return Detected(root, vectors.FORMAT, survey.files_of_vectors)
    separate = [name for name in survey.lists_ending(".json") if name in survey.separate]
    if survey.photos and (captions := find_captions(survey.folder, separate[:MAX_SAMPLES])):
        return Detected(root, "coco", captions, notes=_name_unused(survey.unused))
    if survey.photos and survey.texts:
        return Detected(root, "text-files", notes=_name_unused(survey.unused))
    # No photo has a text.
    if survey.photos:
        files = {"images": "."} if survey.photos_outside and survey.photos_inside else {}
        unused = {**survey.possible_tables, **survey.unused}
        # The format `folder`, unlike the other formats, reads splits.tsv and boxes.tsv.
        notes = _name_unused({name: why for name, why in unused.items() if name.lower() not in NAMES_OF_FOLDER_LISTS})
        return Detected(root, "folder", files, {}, False, notes)
    return None


def _as_parquet_photos(folder: CollectionFolder, path: Path, column: str, files: dict[str, str]) -> Detected:
    """Return the collection of Parquet files that have their photos in the column `column`.

    `path` is one of these files, and `files` has the keys of collection.files for all of them.
    """
    usual = table.usual_columns(folder, path)
    usual.pop("file", None)
    columns, notes = table.with_sentences(table.with_text_columns(usual, table.sample_texts(folder, path)))
    note = f"{folder.label(path)} has its photos in the column {column}"
    if "sentence" in columns:
        note += f", its captions in {columns['sentence']}"
    return Detected(folder.root, "parquet", files, table.renamed(columns), "sentence" in columns, notes=(note, *notes))


def _as_table(
    folder: CollectionFolder, files: dict[str, str], columns: dict[str, str], notes: tuple[str, ...] = ()
) -> Detected:
    """Return the collection of one or several tables.

    `files` has the tables by their keys of collection.files. `columns` has the names of their columns by the names that
    jointspace uses. `notes` are lines for the user that follow the lines about the tables.
    """
    columns, of_sentences = table.with_sentences(columns)
    used = ", ".join(f"column {theirs} as {ours}" for ours, theirs in columns.items())
    further = [f"{name} is read as the table of {split}" for split, name in files.items() if split != "table"]
    notes = (f"{files['table']} is read as a table: {used}", *further, *of_sentences, *notes)
    return Detected(folder.root, "table", files, table.renamed(columns), notes=notes)


def _name_unused(unused: dict[str, str]) -> tuple[str, ...]:
    """Return lines for the user about unused lists. `unused` has the reason for each list."""
    more = (f"not used: {len(unused) - MAX_NAMED_LISTS:,} more",) if len(unused) > MAX_NAMED_LISTS else ()
    return (*(f"not used: {name} ({reason})" for name, reason in islice(unused.items(), MAX_NAMED_LISTS)), *more)


def _with_folder_of_images(detected: Detected) -> Detected:
    """Return the collection with the folder that contains the listed photos as collection.files.images.

    A collection is returned unchanged if its photos are found without this key, or if no single folder contains all of
    the photos. Raises UsageError if there is one table per split, and folders of different splits have a photo of the
    same name.
    """
    if "images" not in NAMED.get(detected.format, {}) or "images" in detected.files:
        return detected
    listed = _missing_images(detected)
    if not listed:
        return detected
    named: dict[str, set[str]] = {}
    for below, names in CollectionFolder(detected.root, NO_OPTIONS).walk():
        stems = {posixpath.splitext(name)[0] for name in names if is_image(name)}
        named[below] = {key for key in listed if key in stems or os.path.isfile(detected.root / below / key)}
    folder, *others = sorted(named, key=lambda below: len(named[below]), reverse=True)
    if not named[folder] or named[folder] < set().union(*named.values()):
        # No folder has all of the photos. Without the key collection.files.images, `ingest` looks for each photo in all
        # folders.
        return detected
    also = [other for other in others if named[other]][:1]
    splits = {lists.split_in(below) for below in named if named[below]} - {None}
    # The table of each split may name the photos in the folder of this split.
    if len(splits) > 1 and not splits.isdisjoint(detected.files):
        shared = min(named[also[0]])
        example = f"{posixpath.join(folder, shared)} in place of {shared}"
        raise UsageError(
            f"The folders {folder or '.'} and {also[0] or '.'} in {detected.root} both have a photo named {shared!r},"
            f" so the photos that {', '.join(detected.files.values())} name are ambiguous. Put the folder before each"
            f" of these names, such as {example}."
        )
    notes = [f"the photos are read from {folder}, since {other} has files of the same names" for other in also]
    files = {**detected.files, "images": folder or "."}
    return replace(detected, files=files, notes=(*detected.notes, *notes))


def _missing_images(detected: Detected) -> set[str]:
    """Return the keys (see ImageRecord) of a sample of the photos that the lists name, to find the folder of these
    photos.

    The set is empty if one of the first MAX_SAMPLES photos exists at its listed path, or if the lists name no photo.
    """
    records = FORMATS[detected.format](detected.root, Options(detected.files, detected.columns, "gallery"))
    images: Iterator[ImageRecord] = (
        record for record in records if isinstance(record, ImageRecord) and record.row is not None
    )
    sample: list[ImageRecord] = []
    with suppress(JointspaceError):  # `ingest` reports the error
        sample += islice(images, MAX_SAMPLES)
    # Path.exists would raise an error for a name that is too long. os.path.exists returns false.
    if any(os.path.exists(detected.root / image.path) for image in sample):
        return set()
    with suppress(JointspaceError):
        sample += (image for number, image in enumerate(images) if number < SAMPLE_STEP or number % SAMPLE_STEP == 0)
    return {image.key for image in sample}


def _is_table(name: str) -> bool:
    suffix = posixpath.splitext(name)[1].lower()
    return suffix in rows.READERS and suffix not in AMBIGUOUS_SUFFIXES


def _table_fault(folder: CollectionFolder, path: Path) -> str:
    """Return why a file is not a table with a header and with names of photos in `folder`, or "" if it is such a
    table."""
    if (suffix := path.suffix.lower()) not in rows.READERS:
        return "an archive: unpack it first" if suffix in ARCHIVES else f"save it as {', '.join(rows.READERS)}"
    try:
        column = table.find_columns(folder, path)["file"]
        values = (row.values.get(column) for row in rows.read_rows(folder, path, (column,), ()))
        names = {str(value): None for value in islice(values, MAX_NAMES_PER_PASS) if value not in (None, "")}
    except InputError as error:
        return str(error).removeprefix(str(path)).lstrip(": ")
    if any(map(folder.has, names)) or any(folder.matcher.match(names, folder.spellings, Reading.OTHER_FOLDER)):
        return ""
    return f"none of the names in its column {column}, such as {next(iter(names), '')!r}, is a photo of this folder"
