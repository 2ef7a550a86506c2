"""Which of our formats a folder or a file of photographs is in, as far as it can be told from the outside."""

import glob
import posixpath
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from pipeline.collections.formats import NAMED, rows
from pipeline.collections.formats.files import CollectionFolder, is_image
from pipeline.collections.formats.folder import KEYS
from pipeline.collections.formats.webdataset import DOCUMENT
from pipeline.collections.records import DIVIDED, Options
from pipeline.errors import InputError, UsageError

LISTS = {
    "folder": ("captions", "weak"),
    "flickr-token": ("sentences",),
    "karpathy": ("dataset",),
    "coco": ("train", "dev", "test"),
}
"""Format -> the keys of collection.files of which one file makes a folder that format's, in the order of the search."""
COLUMNS = {
    "file": KEYS,
    "sentence": ("sentence", "caption", "sentences", "captions", "text", "alt", "alt_text"),
    "split": ("split",),
    **{name: (name,) for name in DOCUMENT},
}
"""Column of a table -> its usual names, in lower case; the first is ours."""


@dataclass(frozen=True)
class Detected:
    """The collection in the folder `root`: its `format`, and the keys of collection.files and collection.columns that
    differ from what the format expects. `described` is false of photographs beside which no text was found."""

    root: Path
    format: str
    files: dict[str, str] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    described: bool = True

    def settings(self) -> dict[str, object]:
        """Its section `collection` of a configuration."""
        values = {"format": self.format, "files": self.files, "columns": self.columns}
        return {key: value for key, value in values.items() if value}


def detect(path: Path) -> Detected:
    """The format of the photographs in `path`: a folder, a tar shard, or a table of names.

    Raises UsageError for anything else, and for a folder with no photograph that could be read; InputError as the
    reader of a table does.
    """
    if path.is_dir():
        return _detect_folder(CollectionFolder(path, Options({}, {}, "gallery")))
    suffix = path.suffix.lower()
    if not path.is_file() or suffix not in (".tar", *rows.READERS):
        kinds = f"a folder of photographs, a .tar shard or a table ({', '.join(rows.READERS)})"
        raise UsageError(f"{path} is not {kinds}" if path.exists() else f"{path} does not exist; give {kinds}")
    if suffix == ".tar":
        return Detected(path.parent, "webdataset", {DIVIDED: glob.escape(path.name)})
    folder = CollectionFolder(path.parent, Options({}, {}, "gallery"))
    columns = _columns(folder, path)
    if columns is None:
        known = ", ".join(COLUMNS["file"])
        raise UsageError(f"{path} has no column of file names ({known}); rename the one that has them to file")
    return Detected(path.parent, "table", {"table": path.name}, _renamed(columns))


def _detect_folder(folder: CollectionFolder) -> Detected:
    for form, keys in LISTS.items():
        usual = {key: NAMED[form][key] for key in keys}
        if any(next(folder.root.glob(pattern), None) for patterns in usual.values() for pattern in patterns):
            return Detected(folder.root, form)
    kinds: Counter[str] = Counter()
    tables = []
    for below, names in folder.walk():
        images = {posixpath.splitext(name)[0] for name in names if is_image(name)}
        kinds["photographs"] += len(images)
        kinds["outside"] += len(images) if below.split("/")[0] != "images" else 0
        kinds["inside"] += len(images) if below.split("/")[0] == "images" else 0
        kinds["texts"] += sum(posixpath.splitext(name)[0] in images for name in names if name.lower().endswith(".txt"))
        kinds["shards"] += sum(name.lower().endswith(".tar") for name in names)
        if not below:
            tables = [folder.root / name for name in names if _is_table(name)]
    for table in tables:
        columns = _columns(folder, table)
        if columns and ("sentence" in columns or table.name not in NAMED["folder"]["metadata"]):
            return Detected(folder.root, "table", {"table": table.name} if len(tables) > 1 else {}, _renamed(columns))
    if not kinds["photographs"]:
        if kinds["shards"]:
            return Detected(folder.root, "webdataset")
        raise folder.lacks("tar shard or table of them", "give the folder that has the photographs")
    if kinds["texts"]:
        return Detected(folder.root, "text-files")
    files = {"images": "."} if kinds["outside"] and kinds["inside"] else {}
    return Detected(folder.root, "folder", files, described=False)


def _is_table(name: str) -> bool:
    return any(fnmatch(name.lower(), f"*{suffix}") for suffix in rows.READERS)


def _columns(folder: CollectionFolder, path: Path) -> dict[str, str] | None:
    """The columns of a table that have a use here, by our names; None where none holds the names of files."""
    try:
        present = {name.lower(): name for name in reversed(rows.column_names(folder, path))}
    except InputError:
        return None
    found = {ours: next((present[one] for one in usual if one in present), None) for ours, usual in COLUMNS.items()}
    return {ours: theirs for ours, theirs in found.items() if theirs is not None} if found["file"] is not None else None


def _renamed(columns: dict[str, str]) -> dict[str, str]:
    """Those whose names are not ours."""
    return {ours: theirs for ours, theirs in columns.items() if theirs != ours}
