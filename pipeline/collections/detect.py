"""Which of our formats a folder or a file of photographs is in, as far as it can be told from the outside."""

import glob
import os
import posixpath
import re
import shlex
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from pipeline.collections.files import ARCHIVES, LIST_SUFFIXES, CollectionFolder, is_image
from pipeline.collections.formats import FORMATS, NAMED, lists, rows, vectors
from pipeline.collections.formats.folder import FOLDER, KEYS, described_by, usual_names
from pipeline.collections.formats.table import METADATA
from pipeline.collections.formats.webdataset import DIGITS, DOCUMENT
from pipeline.collections.records import DIVIDED, ImageRecord, Options
from pipeline.errors import InputError, JointspaceError, UsageError
from pipeline.foreign.image_names import MAX_NAMES_PER_PASS, Reading, without_zeros
from pipeline.foreign.parquet import photograph_column
from pipeline.foreign.vectors import CLIP_RETRIEVAL, columns_of_vectors, marked

LISTS = {
    "folder": ("captions", "weak"),
    "flickr-token": ("sentences",),
    "karpathy": ("dataset",),
    "coco": ("train", "dev", "test"),
}
"""Format -> the keys of collection.files of which one file makes a folder that format's, in the order of the search."""
COLUMNS = {
    "file": KEYS,
    "sentence": ("sentence", "caption", "sentences", "captions", "text", "alt", "alt_text")
    + ("comment", "raw", "raw_caption", "sentence_text", "caption_text"),
    "split": ("split",),
    **{name: (name,) for name in DOCUMENT},
}
"""Column of a table -> its usual names, in lower case; the first is ours."""
IN_PLACE_OF_SENTENCES = ("description", "title")
"""Columns that are read as sentences where there are none, the first that there is."""
OF_VECTORS = {"images": "images", "sentences": "texts"}
"""What vectors are of -> its key of collection.files."""
VECTOR_SUFFIXES = (".npy", ".npz", ".safetensors", ".pt", ".pth", ".h5", ".hdf5")
PLAIN = Options({}, {}, "gallery")
LOOKED_AT = 20
"""Photographs that are looked for, and rows of a table that are looked at."""
SAMPLED = 500
"""Photos of a list that are all looked for. Of the photos after them, one in SAMPLED is looked for."""
LEAST_WORDS = 3
"""Words of a text that may be a caption, on average."""
LEAST_TITLE_WORDS = 1.5
"""Words of a title that may be a caption, on average: file names and numbers have one."""
SPACELESS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
"""A character of a script without spaces between words, of which a word has about two."""
BESIDE = ("splits", "boxes")
"""Lists beside captions.tsv that only the format `folder` reads."""
MAY_BE_TABLES = (".txt", ".json")
"""Endings of tables that other files have, too: only one with a header that names images, and photographs of the folder
below it, counts, and after all other tables."""
SAVED_TO_DISK = "export what `save_to_disk` wrote: datasets.load_from_disk(FOLDER)['train'].to_parquet('train.parquet')"
LACKING = "give the folder of photos, or name files of vectors images.npy and captions.npy"
MOST_NAMED = 3
"""Lists that are named as not used."""


@dataclass(frozen=True)
class Detected:
    """The collection in the folder `root`: its `format`, and the keys of collection.files and collection.columns that
    differ from what the format expects. `described` is false of photographs beside which no text was found. `notes` are
    lines for the user: how a table is read, and what is not used."""

    root: Path
    format: str
    files: dict[str, str] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    described: bool = True
    notes: tuple[str, ...] = field(default=(), compare=False)

    def settings(self) -> dict[str, object]:
        """Its section `collection` of a configuration."""
        values = {"format": self.format, "files": self.files, "columns": self.columns}
        return {key: value for key, value in values.items() if value}


def detect(path: Path) -> Detected:
    """The format of the photographs in `path`: a folder, a tar shard, or a table of names.

    Raises UsageError for anything else, and for a folder with no photograph that could be read; InputError as the
    reader of a table does.
    """
    detected = _detect_folder(CollectionFolder(path, PLAIN)) if path.is_dir() else _detect_file(path)
    return _with_place_of_images(detected)


def _detect_file(path: Path) -> Detected:
    suffix = path.suffix.lower()
    if not path.is_file() or suffix not in (".tar", *rows.READERS):
        kinds = f"a folder of photos, a .tar shard or a table ({', '.join(rows.READERS)})"
        end = f"is not {kinds}; unpack an archive first" if path.exists() else f"does not exist; give {kinds}"
        raise UsageError(f"{path} {end}")
    if suffix == ".tar":
        return Detected(path.parent, "webdataset", {DIVIDED: glob.escape(path.name)})
    folder = CollectionFolder(path.parent, PLAIN)
    if suffix == ".parquet" and (column := photograph_column(rows.schema(folder, path))):
        return _with_photographs(folder, path, column, {DIVIDED: glob.escape(path.name)})
    if suffix == ".parquet" and "images" in (of := _vectors_in(folder, path)) and _fault_of_table(folder, path):
        return Detected(folder.root, vectors.FORMAT, {OF_VECTORS[side]: path.name for side in of})
    if suffix == ".json" and (files := _captions_of_coco(folder, [path.name])):
        return Detected(folder.root, "coco", files)
    return _as_table(folder, {"table": path.name}, _columns(folder, path))


def _with_photographs(folder: CollectionFolder, path: Path, column: str, files: dict[str, str]) -> Detected:
    """Parquet files like the one at `path`, whose `column` holds photographs."""
    usual = _usual_columns(folder, path)
    usual.pop("file", None)
    columns, notes = _with_sentences(_with_texts(usual, _texts(folder, path)))
    note = f"{folder.label(path)} has its photos in the column {column}"
    if "sentence" in columns:
        note += f", its sentences in {columns['sentence']}"
    return Detected(folder.root, "parquet", files, _renamed(columns), "sentence" in columns, notes=(note, *notes))


def _with_sentences(columns: dict[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The columns of a table, one of IN_PLACE_OF_SENTENCES as sentences where they have none; and a note on that."""
    if "sentence" in columns or (ours := next(filter(columns.get, IN_PLACE_OF_SENTENCES), None)) is None:
        return columns, ()
    theirs = columns.pop(ours)
    note = f"no column of captions: {theirs} is used as the caption (collection.columns.sentence names another)"
    return {**columns, "sentence": theirs}, (note,)


def _as_table(
    folder: CollectionFolder, files: dict[str, str], columns: dict[str, str], notes: tuple[str, ...] = ()
) -> Detected:
    columns, of_sentences = _with_sentences(columns)
    used = ", ".join(f"column {theirs} as {ours}" for ours, theirs in columns.items())
    further = [f"{name} is read as the table of {split}" for split, name in files.items() if split != "table"]
    notes = (f"{files['table']} is read as a table: {used}", *further, *of_sentences, *notes)
    return Detected(folder.root, "table", files, _renamed(columns), notes=notes)


def _detect_folder(folder: CollectionFolder) -> Detected:
    more = any(folder.glob(pattern) for key in BESIDE for pattern in FOLDER[key])
    for form, keys in LISTS.items():
        paths = [path for key in keys for pattern in NAMED[form][key] for path in folder.glob(pattern)]
        if any(more or path.name.lower() not in FOLDER["captions"] or _fault_of_table(folder, path) for path in paths):
            return Detected(folder.root, form)
    kinds: Counter[str] = Counter()
    found: list[str] = []
    alone: set[str] = set()
    for below, names in folder.walk():
        images = {stem for name in names if is_image(name) for stem in (name, posixpath.splitext(name)[0])}
        kinds["inside" if below.split("/")[0] == "images" else "outside"] += sum(map(is_image, names))
        of_takeout = {name for name in names if described_by(name) in images}
        beside = {name for name in names if posixpath.splitext(name)[0] in images} | of_takeout
        kinds["texts"] += sum(name.lower().endswith(".txt") or name in of_takeout for name in beside)
        found += [posixpath.join(below, name) for name in names if name.lower().endswith(LIST_SUFFIXES)]
        alone |= {posixpath.join(below, name) for name in names if name not in beside}
    photographs = kinds["inside"] + kinds["outside"]
    shards = [folder.root / name for name in found if name.lower().endswith(".parquet")]
    for shard in islice(shards, LOOKED_AT):
        with suppress(InputError):  # which is said where it is read as a table, or rejected
            if column := photograph_column(rows.schema(folder, shard)):
                return _with_photographs(folder, shard, column, {})
            break
    maybe = (name for name in found if not _is_table(name) and name in alone and "/" not in name)
    faults = {name: _fault_of_table(folder, folder.root / name) for name in maybe}
    tables = [*filter(_is_table, found), *(name for name, fault in faults.items() if not fault)]
    below = [folder.root / name for name in tables if "/" in name]
    unused = {folder.label(path): _why_not_below(path) if path in below[:MOST_NAMED] else "" for path in below}
    may_be_of_split = (name for name in tables if "/" not in name or Path(name).stem.lower() == METADATA)
    by_split = _tables_by_split(folder, [name for name in may_be_of_split if lists.split_in(name)])
    files_of_vectors: dict[str, str] = {}
    for name in [by_split["table"]] if by_split else [name for name in tables if "/" not in name]:
        try:
            columns = _columns(folder, folder.root / name)
        except InputError as error:
            unused[name] = str(error).removeprefix(str(folder.root / name)).lstrip(": ")
            continue
        if not photographs and (files_of_vectors := files_of_vectors or _files_of_vectors(folder)):
            continue
        if "sentence" in columns or name not in FOLDER["metadata"]:
            files, pattern = by_split or {"table": name}, DIGITS.sub("[0-9]*", glob.escape(name))
            alike = list(map(folder.label, folder.glob(pattern)))
            if not by_split and len(alike) > 1:
                if 2 * kinds["texts"] > photographs:  # as img2dataset writes them
                    unused |= dict.fromkeys(alike, "captions are read from the text files beside the photos")
                    break
                with suppress(InputError):
                    # A table 1-2.csv beside 1.csv and 2.csv has their captions, too.
                    numbered = all(DIGITS.sub("[0-9]*", glob.escape(other)) == pattern for other in alike)
                    if numbered and all(_columns(folder, folder.root / other) == columns for other in alike):
                        files = {"table": pattern}
            used = alike if files == {"table": pattern} else files.values()
            others = {other: unused.get(other, "one table is read") for other in tables if other not in used}
            return _as_table(folder, files, columns, _name_unused(others))
    if not photographs:
        if shards := [name for name in found if name.lower().endswith(".tar")]:
            patterns = [DIGITS.sub("*", glob.escape(name)) for name in shards]
            return Detected(folder.root, "webdataset", _by_split(list(dict.fromkeys(patterns))))
        if files := files_of_vectors or _files_of_vectors(folder):
            return Detected(folder.root, vectors.FORMAT, files)
        arrow = [SAVED_TO_DISK] if folder.glob("**/*.arrow") else []
        raise folder.lacks("tar shard or table of them", "; ".join([*arrow, LACKING, *_name_unused(unused)]))
    if files := _captions_of_coco(folder, [name for name in found if name.lower().endswith(".json") and name in alone]):
        return Detected(folder.root, "coco", files, notes=_name_unused(unused))
    if kinds["texts"]:
        return Detected(folder.root, "text-files", notes=_name_unused(unused))
    files = {"images": "."} if kinds["outside"] and kinds["inside"] else {}
    return Detected(folder.root, "folder", files, {}, False, _name_unused({**faults, **unused}))


def _captions_of_coco(folder: CollectionFolder, names: list[str]) -> dict[str, str]:
    """The keys of collection.files for files in the form of COCO's captions: one for each split, or the first alone."""
    files = []
    for name in names[:LOOKED_AT]:
        with suppress(InputError):
            value = lists.read_json(folder, folder.root / name)
            captions = value.get("annotations") if isinstance(value, dict) and "images" in value else None
            if isinstance(captions, list) and captions and isinstance(captions[0], dict) and "caption" in captions[0]:
                files.append(name)
    return _by_split(files) or ({DIVIDED: files[0]} if files else {})


def _tables_by_split(folder: CollectionFolder, names: list[str]) -> dict[str, str]:
    """The keys of collection.files for a table of train that has sentences, and for those of other splits that have all
    its columns that are used. Without one of train, whose images are learned from, there are none."""
    splits, files = _by_split(names), {}
    with suppress(InputError):
        if train := splits.pop("train", None):
            columns, _ = _with_sentences(_columns(folder, folder.root / train))
            if "sentence" in columns:
                files["table"] = train
                used = {columns["file"], columns["sentence"], *_renamed(columns).values()}
                for split, name in splits.items():
                    present = rows.column_names(folder, folder.root / name)
                    if used.issubset([*present, *(f"{rows.stem(column)}#" for column in present)]):
                        files[split] = name
    return files


def _by_split(names: list[str]) -> dict[str, str]:
    """Files, or patterns of them, by split; nothing unless each has one of its own, and there are several."""
    splits = {lists.split_in(name): name for name in names}
    return splits if 1 < len(splits) == len(names) and None not in splits else {}


def _files_of_vectors(folder: CollectionFolder) -> dict[str, str]:
    """The keys of collection.files for vectors without photographs: of a folder that clip-retrieval wrote, of files
    whose names end with what they are of, such as `photo_text.npy`, or of Parquet files, several of which in a folder
    are one table. Raises UsageError for several others of one kind."""
    if (folder.root / CLIP_RETRIEVAL["images"][0]).is_dir():
        return {OF_VECTORS[of]: "." for of, (parts, _) in CLIP_RETRIEVAL.items() if (folder.root / parts).is_dir()}
    named: dict[str, list[str]] = {}
    tables = folder.glob("**/*.parquet")
    for path in [*sorted(path for path in folder.root.iterdir() if path.suffix.lower() in VECTOR_SUFFIXES), *tables]:
        with suppress(InputError):
            for of in _vectors_in(folder, path):
                named.setdefault(OF_VECTORS[of], []).append(folder.label(path))
    if len(tables) > 1 and len(folders := {folder.label(path.parent) for path in tables}) == 1:
        parts = list(map(folder.label, tables))
        named = {key: [*folders] if names == parts else names for key, names in named.items()}
    for key, names in named.items():
        if len(names) > 1:
            raise UsageError(f"{folder.root} has several files of vectors of {key}: {', '.join(names)}; keep one there")
    return {key: name for key, (name,) in named.items()} if "images" in named else {}


def _vectors_in(folder: CollectionFolder, path: Path) -> list[str]:
    """Of what a file has vectors: as its name says; of several columns of a Parquet file, as theirs say."""
    if path.suffix.lower() != ".parquet":
        return [of] if (of := marked(path.stem)) and path.suffix.lower() in VECTOR_SUFFIXES else []
    columns = columns_of_vectors(rows.schema(folder, path))
    if len(columns) == 1:
        return [marked(path.stem) or marked(columns[0]) or "images"]
    return list(filter(None, map(marked, columns)))


def _name_unused(lists: dict[str, str]) -> tuple[str, ...]:
    """The lists that are not read, by name with the reason, in lines for the user."""
    more = (f"not used: {len(lists) - MOST_NAMED:,} more",) if len(lists) > MOST_NAMED else ()
    return (*(f"not used: {name} ({reason})" for name, reason in islice(lists.items(), MOST_NAMED)), *more)


def _with_place_of_images(detected: Detected) -> Detected:
    """With the key of collection.files for the folder that has all photographs which a list names, where the format
    would look for them in vain. Raises UsageError where it is another for each table."""
    if "images" not in NAMED.get(detected.format, {}) or "images" in detected.files:
        return detected
    records = FORMATS[detected.format](detected.root, Options(detected.files, detected.columns, "gallery"))
    images = (record for record in records if isinstance(record, ImageRecord) and record.row is not None)
    first: list[ImageRecord] = []
    with suppress(JointspaceError):  # which `ingest` explains
        first += islice(images, LOOKED_AT)
    # Path's own method fails on too long a name.
    if not first or any(os.path.exists(detected.root / image.path) for image in first):
        return detected
    with suppress(JointspaceError):
        first += (image for number, image in enumerate(images) if number < SAMPLED or number % SAMPLED == 0)
    named: dict[str, set[str]] = {}
    for below, names in CollectionFolder(detected.root, PLAIN).walk():
        stems = {posixpath.splitext(name)[0] for name in names if is_image(name)}
        keys = {image.key for image in first}
        named[below] = {key for key in keys if key in stems or os.path.isfile(detected.root / below / key)}
    folder, *others = sorted(named, key=lambda below: len(named[below]), reverse=True)
    if not named[folder] or named[folder] < set().union(*named.values()):
        return detected  # `ingest` looks for each in all folders
    also = [other for other in others if named[other]][:1]
    splits = {lists.split_in(below) for below in named if named[below]} - {None}
    if len(splits) > 1 and not splits.isdisjoint(detected.files):  # a table of each names 1.jpg of its own folder
        raise UsageError(
            f"{folder} and {also[0]} in {detected.root} have photos of the same names; write the folders into the names"
            " in the tables"
        )
    notes = [f"the photos are taken from {folder}; {other} has files of the same names" for other in also]
    files = {**detected.files, "images": folder or "."}
    return replace(detected, files=files, notes=(*detected.notes, *notes))


def _is_table(name: str) -> bool:
    suffix = posixpath.splitext(name)[1].lower()
    return suffix in rows.READERS and suffix not in MAY_BE_TABLES


def _fault_of_table(folder: CollectionFolder, path: Path) -> str:
    """Say why a file is not a table with a header and names of photos of the folder; "" if it is one."""
    if (suffix := path.suffix.lower()) not in rows.READERS:
        return "an archive: unpack it first" if suffix in ARCHIVES else f"save it as {', '.join(rows.READERS)}"
    try:
        column = _columns(folder, path)["file"]
        values = (row.values.get(column) for row in rows.read_rows(folder, path, (column,), ()))
        names = {str(value): None for value in islice(values, MAX_NAMES_PER_PASS) if value not in (None, "")}
    except InputError as error:
        return str(error).removeprefix(str(path)).lstrip(": ")
    if any(map(folder.has, names)) or any(folder.matcher.match(names, folder.spellings, Reading.OTHER_FOLDER)):
        return ""
    return f"no photo of this folder has a name of its column {column}, such as {next(iter(names), '')!r}"


def _why_not_below(path: Path) -> str:
    """Say what has to be done to have a table in a folder below read."""
    command = shlex.join(["jointspace", "init", str(path.parent)])
    fault = _fault_of_table(CollectionFolder(path.parent, PLAIN), path)
    return fault or f"only a table in the folder itself is read; to read this one: {command}"


def _columns(folder: CollectionFolder, path: Path) -> dict[str, str]:
    """Find the columns of a table that have a use here, by our names.

    They are the columns of usual names, else, as names are in any language, the column whose values are files of photos
    and the column with the texts. Raises InputError if no column holds the names of files, and for a table that cannot
    be read.
    """
    columns, texts = _usual_columns(folder, path), _texts(folder, path)
    stems = set() if "file" in columns else folder.stems.difference(columns.values())
    if name := next((name for name in texts if is_image(name) or without_zeros(name) in stems), None):
        raise InputError(f"{path} has no header: its first line is of {name}; put one above it, such as file,caption")
    if "file" not in columns:
        columns = {"file": _file_column(path, texts, stems), **columns}
    return _with_texts(columns, texts)


def _texts(folder: CollectionFolder, path: Path) -> dict[str, list[str]]:
    """Collect the first values of each column of a table that are not empty, as texts."""
    texts: dict[str, list[str]] = {name: [] for name in rows.column_names(folder, path)}
    for row in islice(rows.read_rows(folder, path, (), (), None), rows.LOOKED_AT):
        for name, value in row.values.items():
            if len(few := texts.setdefault(name, [])) < LOOKED_AT and type(value) in (str, int) and str(value).strip():
                few.append(str(value))
    return texts


def _file_column(path: Path, texts: dict[str, list[str]], stems: set[str]) -> str:
    """Find the column most of whose values are names of files, or else `stems` of photos. Raises InputError."""

    def mostly(fits: Callable[[str], bool]) -> list[str]:
        return [name for name, values in texts.items() if 2 * sum(map(fits, values)) > len(values)]

    links = mostly(lambda value: "://" in value)
    named = [name for name in mostly(is_image) if name not in links]
    found = named or mostly(lambda value: without_zeros(value) in stems)
    if len(found) == 1:
        return found[0]
    remedy = f"has no column of file names ({', '.join(COLUMNS['file'])}); rename the one that has them to file"
    if found:
        remedy = f"has names of files in {' and '.join(found)}; rename the one that is meant to file"
    elif links:
        link = max(links, key=lambda name: sum(map(is_image, texts[name])))
        remedy = f"has no column of file names but links in {link}; download the photos first, as with img2dataset"
    raise InputError(f"{path} {remedy}")


def _with_texts(columns: dict[str, str], texts: dict[str, list[str]]) -> dict[str, str]:
    """Add a column of captions to the `columns`: a column that is called so and has sentences, or else the column with
    the longest texts, as a description, if there is no other. A title of one word is not a caption."""
    words = {name: sum(map(_count_words, values)) / len(values) for name, values in texts.items() if values}
    called = [name for name in words if "caption" in name.lower() and words[name] >= LEAST_WORDS]
    if called and "sentence" not in columns:
        return {**columns, "sentence": called[0]}
    if words.get(columns.get("title", ""), LEAST_WORDS) < LEAST_TITLE_WORDS:
        columns = {ours: theirs for ours, theirs in columns.items() if ours != "title"}
    if columns.keys().isdisjoint(("sentence", *IN_PLACE_OF_SENTENCES)):
        longest = max((name for name in words if name not in columns.values()), key=words.__getitem__, default="")
        if longest and words[longest] >= LEAST_WORDS:
            same = [name for name in texts if rows.stem(name) == rows.stem(longest)]
            are_texts = len(same) > 1 and all(words.get(name, 0) >= LEAST_WORDS for name in same)
            columns = {**columns, "description": f"{rows.stem(longest)}#" if are_texts else longest}
    return columns


def _count_words(text: str) -> int:
    """About how many words there are in a text of any script."""
    return len(text.split()) + len(SPACELESS.findall(text)) // 2


def _usual_columns(folder: CollectionFolder, path: Path) -> dict[str, str]:
    columns = rows.column_names(folder, path)
    present, stems = usual_names(columns), usual_names(list(map(rows.stem, columns)))
    for name in COLUMNS["sentence"]:
        if name in stems and [column for column in columns if rows.stem(column) == stems[name]] != [stems[name]]:
            present[name] = f"{stems[name]}#"
    usual = {ours: next((present[name] for name in names if name in present), None) for ours, names in COLUMNS.items()}
    return {ours: theirs for ours, theirs in usual.items() if theirs is not None}


def _renamed(columns: dict[str, str]) -> dict[str, str]:
    return {ours: theirs for ours, theirs in columns.items() if theirs != ours}
