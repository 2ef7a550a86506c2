"""What the readers share: finding a format's files, and taking lines and JSON from them strictly."""

import codecs
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.collections.records import NOT_UTF8, Reject
from pipeline.errors import InputError, UsageError

SPLIT_NAMES = {"restval": "train", "val": "dev", "valid": "dev", "validation": "dev"}
"""Other collections' names of our splits."""
IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".avif", ".jp2"}
)


def locate(root: Path, given: Mapping[str, str], usual: Mapping[str, tuple[str, ...]]) -> dict[str, Path | None]:
    """The file or folder of each key of `usual`: what `given` (collection.files) says, else the first of its usual
    names (patterns under `root`) that is there, else None.

    Raises UsageError for an unknown key, a name that is not there, and a pattern that several files match.
    """
    if unknown := set(given) - set(usual):
        raise UsageError(f"collection.files: unknown key {min(unknown)}; this format has {', '.join(usual)}")
    if not root.is_dir():
        raise UsageError(f"{root} is not a folder; set data_root to that of your collection")
    return {key: _locate_one(root, key, given.get(key), names) for key, names in usual.items()}


def _locate_one(root: Path, key: str, given: str | None, usual: tuple[str, ...]) -> Path | None:
    if given is not None:
        if not (root / given).exists():
            raise UsageError(f"{root / given} does not exist; correct collection.files.{key}")
        return root / given
    for pattern in usual:
        found = sorted(root.glob(pattern)) if pattern != "." else [root]
        if len(found) > 1:
            names = ", ".join(path.name for path in found[:5])
            raise UsageError(f"{root} has several files {pattern} ({names}): name one as collection.files.{key}")
        if found:
            return found[0]
    return None


def require(root: Path, key: str, path: Path | None, usual: tuple[str, ...]) -> Path:
    """`path` of `locate`; UsageError where the format cannot do without it."""
    if path is None:
        raise UsageError(f"{root} has no {' or '.join(usual)}; name the file as collection.files.{key}")
    return path


def label(root: Path, path: Path) -> str:
    """How rejects name a file: relative to the data root, with forward slashes."""
    return Path(os.path.relpath(path, root)).as_posix()


def image_prefix(root: Path, folder: Path | None) -> str:
    """What to join before the names of images in `folder` (None: the root) to make them relative to the root."""
    prefix = "" if folder is None else label(root, folder)
    if prefix.startswith(".."):
        raise UsageError(f"the images' folder {folder} lies outside {root}; set data_root to a folder above both")
    return "" if prefix == "." else prefix


def split_name(name: str) -> str:
    """Our word for a split that a collection calls `name`; unknown names are left for intake to refuse."""
    return SPLIT_NAMES.get(name, name)


def walk(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Each folder under `folder`, relative to it ("" for itself), with the names of its files; both sorted, and
    without those that are hidden. Raises InputError for a folder that cannot be read."""

    def fail(error: OSError) -> None:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}") from error

    for parent, folders, names in os.walk(folder, onerror=fail):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        below = label(folder, Path(parent))
        yield "" if below == "." else below, sorted(name for name in names if not name.startswith("."))


def is_image(name: str) -> bool:
    """Whether a file of this name should be an image."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def open_binary(path: Path) -> BinaryIO:
    """`path` for reading; InputError where it cannot be opened."""
    try:
        return open(path, "rb")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def lines(path: Path) -> Iterator[tuple[int, str | None]]:
    """Row numbers from 1 and lines, without their end and not if empty; None for a line that is not UTF-8.

    Lines end with LF or CRLF and nothing else: U+2028 and form feeds belong to sentences.
    """
    with open_binary(path) as file:
        for row, line in enumerate(file, 1):
            line = line.removesuffix(b"\n").removesuffix(b"\r")
            line = line.removeprefix(codecs.BOM_UTF8) if row == 1 else line
            if line:
                yield row, decode_text(line)


def decode_text(data: bytes) -> str | None:
    """`data` as text, or None where it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def sentence_number(text: str) -> int | None:
    """The number that `text` spells, or None."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def joined(value: Any) -> str:
    """A field of a document: a list (of tags) with commas, nothing as the empty text."""
    return ",".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def tab_rows(path: Path, file: str, what: str, width: int) -> Iterator[tuple[int, list[str]] | Reject]:
    """The fields of each line with exactly `width` of them; a Reject of `what` for every other line."""
    for row, line in lines(path):
        values = [] if line is None else line.split("\t")
        if len(values) == width:
            yield row, values
        else:
            reason = f"{len(values)} fields between tabs, not {width}" if values else NOT_UTF8
            yield Reject(file, row, what, reason)


def headed_rows(
    path: Path, file: str, what: str, names: tuple[str, ...]
) -> Iterator[tuple[int, tuple[str, ...]] | Reject]:
    """The columns `names` of a table between tabs, found by its header; a Reject for a row of another width.

    Raises InputError where the header lacks one of `names`.
    """
    _, header = next(lines(path), (1, None))
    header = header.split("\t") if header else []
    if missing := [name for name in names if name not in header]:
        raise InputError(f"{path}: its first row must name the columns {', '.join(names)}; {missing[0]} is missing")
    places = [header.index(name) for name in names]
    rows = tab_rows(path, file, what, len(header))
    next(rows)
    for item in rows:
        yield item if isinstance(item, Reject) else (item[0], tuple(item[1][place] for place in places))


def read_json(path: Path) -> Any:
    """The value in a JSON file. Raises InputError for anything doubtful; see `parse_json`."""
    with open_binary(path) as file:
        data = file.read()
    try:
        return parse_json(data)
    except ValueError as error:
        raise InputError(f"{path} is not usable JSON: {error}") from error


def parse_json(data: bytes | str) -> Any:
    """`json.loads`, but ValueError also for a repeated key, NaN or Infinity, and nesting that is too deep."""
    try:
        return json.loads(data, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} is repeated")
    return result


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
