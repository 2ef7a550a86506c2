"""Strict reading of a collection's lists: lines, fields between tabs, and JSON."""

import codecs
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.collections.formats.files import CollectionFolder
from pipeline.collections.records import NOT_UTF8, DocumentRecord, ImageRecord, Record, Reject
from pipeline.errors import InputError

SPLIT_NAMES = {"restval": "train", "val": "dev", "valid": "dev", "validation": "dev"}
"""Other collections' names for our splits."""
LARGEST_JSON = 1 << 30
LARGEST_LINE = 1 << 24  # bytes. A longer line is not text, and would be read into memory all at once


def split_name(name: str) -> str:
    """Our name for a collection's split `name`; intake rejects unknown names."""
    return SPLIT_NAMES.get(name, name)


def lines(file: BinaryIO, path: Path | str) -> Iterator[tuple[int, str | None]]:
    """Row numbers from 1 and lines without their end, except empty lines; None for a line that is not UTF-8.

    Only LF and CRLF end a line: U+2028 and form feeds belong to sentences. Raises InputError for a line of LARGEST_LINE
    bytes or more.
    """
    for row, line in enumerate(iter(partial(file.readline, LARGEST_LINE), b""), 1):
        if len(line) == LARGEST_LINE:
            raise InputError(f"{path}: row {row} has {LARGEST_LINE} bytes or more; is it a text?")
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        line = line.removeprefix(codecs.BOM_UTF8) if row == 1 else line
        if line:
            yield row, decode_text(line)


def decode_text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def sentence_number(text: str) -> int | None:
    """`text` as a number; None if it is not one."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def document(
    key: str, fields: Iterable[Any], file: str, row: int | None = None, implied: bool = False
) -> Iterator[DocumentRecord]:
    """The document of these fields (title, tags, description), unless all are empty; lists are joined with commas."""
    texts = [",".join(map(str, f)) if isinstance(f, list) else "" if f is None else str(f) for f in fields]
    if any(texts):
        yield DocumentRecord(key, *texts, file, row, implied)


def with_images(records: Iterable[Record], image: Callable[[Record], ImageRecord]) -> Iterator[Record]:
    """The `records`, each but rejects after its `image`, where that is not the one before."""
    last = None
    for record in records:
        if not isinstance(record, Reject) and record.key != last:
            yield image(record)
            last = record.key
        yield record


def tab_records(
    folder: CollectionFolder, path: Path, what: str, width: int, make: Callable[..., Record]
) -> Iterator[Record]:
    """`make(*fields, file, row)` for each line of exactly `width` fields between tabs. All other lines, and those for
    which `make` raises ValueError, become Rejects of `what`."""
    with folder.open(path) as file:
        yield from _records(lines(file, path), folder.label(path), what, width, make)


def headed_records(
    folder: CollectionFolder, path: Path, what: str, names: tuple[str, ...], make: Callable[..., Record]
) -> Iterator[Record]:
    """As `tab_records`, for the columns `names` of a table with a header. Raises InputError if one is missing."""
    with folder.open(path) as file:
        rows = lines(file, path)
        _, header = next(rows, (1, None))
        header = header.split("\t") if header else []
        if missing := [name for name in names if name not in header]:
            raise InputError(f"{path}: its first row must name the columns {', '.join(names)}; {missing[0]} is missing")
        places = [header.index(name) for name in names]

        def chosen(*line: Any) -> Record:
            return make(*(line[place] for place in places), *line[-2:])

        yield from _records(rows, folder.label(path), what, len(header), chosen)


def _records(
    rows: Iterator[tuple[int, str | None]], file: str, what: str, width: int, make: Callable[..., Record]
) -> Iterator[Record]:
    for row, line in rows:
        fields = [] if line is None else line.split("\t")
        try:
            if len(fields) != width:
                raise ValueError(f"{len(fields)} fields between tabs, not {width}" if fields else NOT_UTF8)
            yield make(*fields, file, row)
        except ValueError as error:
            yield Reject(file, row, what, str(error))


def read_json(folder: CollectionFolder, path: Path) -> Any:
    """The value in a JSON file, read as by `parse_json`. Raises InputError."""
    with folder.open(path, LARGEST_JSON) as file:
        try:
            return parse_json(file.read())
        except (ValueError, MemoryError) as error:
            raise InputError(f"{path} is not usable JSON: {error or 'too large'}") from error


def parse_json(data: bytes | str) -> Any:
    """As `json.loads`, but raises ValueError for repeated keys, NaN, Infinity and too deep nesting, too."""
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
