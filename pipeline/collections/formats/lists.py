"""Lines, fields and JSON, taken strictly from the lists of a collection."""

import codecs
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.collections.formats.files import CollectionFolder
from pipeline.collections.records import NOT_UTF8, Reject
from pipeline.errors import InputError

SPLIT_NAMES = {"restval": "train", "val": "dev", "valid": "dev", "validation": "dev"}
"""Other collections' names of our splits."""
LARGEST_JSON = 1 << 30
LARGEST_LINE = 1 << 24
"""Bytes. What is longer is no line of text, and would be read into memory all at once."""


def split_name(name: str) -> str:
    """Our word for a split that a collection calls `name`; unknown names are left for intake to refuse."""
    return SPLIT_NAMES.get(name, name)


def lines(file: BinaryIO, path: Path | str) -> Iterator[tuple[int, str | None]]:
    """Row numbers from 1 and lines, without their end and not if empty; None for a line that is not UTF-8.

    Lines end with LF or CRLF and nothing else: U+2028 and form feeds belong to sentences. Raises InputError for a line
    of more than LARGEST_LINE bytes.
    """
    for row, line in enumerate(iter(partial(file.readline, LARGEST_LINE), b""), 1):
        if len(line) == LARGEST_LINE:
            raise InputError(f"{path}: row {row} has {LARGEST_LINE} bytes or more; is it a text?")
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


def tab_rows(folder: CollectionFolder, path: Path, what: str, width: int) -> Iterator[tuple[int, list[str]] | Reject]:
    """The fields of each line with exactly `width` of them; a Reject of `what` for every other line."""
    with folder.open(path) as file:
        yield from _fields(lines(file, path), folder.label(path), what, width)


def headed_rows(
    folder: CollectionFolder, path: Path, what: str, names: tuple[str, ...]
) -> Iterator[tuple[int, tuple[str, ...]] | Reject]:
    """The columns `names` of a table between tabs, found by its header; a Reject for a row of another width.

    Raises InputError where the header lacks one of `names`.
    """
    with folder.open(path) as file:
        rows = lines(file, path)
        _, header = next(rows, (1, None))
        header = header.split("\t") if header else []
        if missing := [name for name in names if name not in header]:
            raise InputError(f"{path}: its first row must name the columns {', '.join(names)}; {missing[0]} is missing")
        places = [header.index(name) for name in names]
        for item in _fields(rows, folder.label(path), what, len(header)):
            yield item if isinstance(item, Reject) else (item[0], tuple(item[1][place] for place in places))


def _fields(
    rows: Iterator[tuple[int, str | None]], file: str, what: str, width: int
) -> Iterator[tuple[int, list[str]] | Reject]:
    for row, line in rows:
        values = [] if line is None else line.split("\t")
        if len(values) == width:
            yield row, values
        else:
            reason = f"{len(values)} fields between tabs, not {width}" if values else NOT_UTF8
            yield Reject(file, row, what, reason)


def read_json(folder: CollectionFolder, path: Path) -> Any:
    """The value in a JSON file. Raises InputError for anything doubtful; see `parse_json`."""
    with folder.open(path, LARGEST_JSON) as file:
        try:
            return parse_json(file.read())
        except (ValueError, MemoryError) as error:
            raise InputError(f"{path} is not usable JSON: {error or 'too large'}") from error


def parse_json(data: bytes | str) -> Any:
    """`json.loads`, but ValueError also for a repeated key, NaN or Infinity, and nesting that is too deep."""
    try:
        return json.loads(data, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        repeated = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"the key {repeated!r} is repeated")
    return result


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
