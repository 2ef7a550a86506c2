"""Strict reading of a collection's lists: lines, fields between tabs, JSON, and lists of sentences within a text."""

import ast
import json
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.collections.files import CollectionFolder, is_image
from pipeline.collections.records import NOT_UTF8, DocumentRecord, ImageRecord, KeyedRecord, Record, Reject, Tally
from pipeline.config.section import SPLITS
from pipeline.errors import InputError
from pipeline.foreign.files import UTF16_MARKS, each_line

SPLIT_NAMES = {
    **dict.fromkeys(("val", "valid", "validation", "validate", "development", "eval", "evaluation"), "dev"),
    **dict.fromkeys(("restval", "training"), "train"),
    **dict.fromkeys(("testing", "tests"), "test"),
}
"""Other collections' names for our splits."""
YEAR = re.compile(r"[-_ ]?\d+$")
"""The end of the name of a split's folder: `train2017`."""
SENTENCE_KEYS = ("raw", "caption", "sentence", "text")
"""Keys of the words of a caption that is an object."""
LISTED = "texts that are lists of sentences (['a dog', 'a hound']) are read as several sentences"
MAX_JSON_BYTES = 1 << 30
"""Size of the largest JSON file."""
MAX_TEXT_BYTES = 1 << 24
"""Size of the texts of one photo."""
DOCUMENT = ("title", "tags", "description")
"""The fields of weak text."""
MAX_NUMBER_DIGITS = 18
"""Number of digits of the largest sentence number."""
STRING = re.compile(r"""[\s,]*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""", re.DOTALL)
"""A string of JSON or Python, and the separator before it. numpy prints no commas."""
ACCENT = re.compile(rb"(?<![\x80-\xff])([\x80-\xff])(?:\1|\xdf)?(?![\x80-\xff])")
"""A single byte among ASCII. Windows-1252 has letters of Western Europe as such bytes, and other encodings have few. It
may be doubled, as in Finnish, or precede the German sharp s."""

LIST_MARK = re.compile(r"[ \t\r\n]*([\[,\]]?)[ \t\r\n]*")
"""A mark that opens, divides or closes a list of JSON. It may be empty, and so it matches everywhere."""

MakeRecord = Callable[[list[str], str, int], Record]
"""A function that makes a record of the fields of a line, the name of its file and its row."""


def split_name(name: str) -> str:
    """Return our name for a collection's split `name`, in any case. Intake rejects unknown names."""
    plain = name.strip().lower()
    return SPLIT_NAMES.get(plain, plain)


def split_in(name: str) -> str | None:
    """Find the split that is part of the name of a file or of its folder: `cc3m-train-*.tar`, `val/metadata.jsonl`."""
    parts = map(split_name, re.split(r"[-_./ ]|(?<=[a-z])(?=\d)", name.lower()))
    return next((part for part in reversed([*parts]) if part in SPLITS), None)


def by_split(names: list[str]) -> dict[str, str]:
    """Return files, or patterns of files, by split. Returns nothing unless there are several and each has a split of
    its own."""
    splits = {split: name for name in names if (split := split_in(name))}
    return splits if 1 < len(splits) == len(names) else {}


def split_folders(folders: Collection[str]) -> dict[str, str]:
    """Find the folders that are called after splits, such as `Validation` or `val2017`, below the folder that has all
    `folders`. One such folder that has all of them is not a split."""
    common = posixpath.commonpath(folders) if folders else ""
    inside = {folder.removeprefix(common).lstrip("/").split("/")[0] for folder in folders}
    named = {posixpath.join(common, name): split_name(YEAR.sub("", name)) for name in inside}
    return {folder: split for folder, split in named.items() if split in SPLITS}


def lines(file: BinaryIO, path: Path | str) -> Iterator[tuple[int, str | bytes]]:
    """Yield row numbers from 1 and lines without their ends, except empty lines. A line that is not UTF-8 stays bytes.

    Raises InputError as `each_line`, and for UTF-16 without a byte order mark.
    """
    for row, line in enumerate(each_line(file, path), 1):
        if row == 1 and is_utf16(line):
            raise InputError(f"{path} is UTF-16. Save the file as UTF-8.")
        if line:
            yield row, decode_text(line, "utf-8")


def is_utf16(line: bytes) -> bool:
    """Return whether every other byte is NUL, as in ASCII in UTF-16."""
    return len(line) > 3 and (not any(line[1:-1:2]) or not any(line[0:-1:2]))


def decode_text(data: bytes, encoding: str | None = None) -> str | bytes:
    """Decode `data`, which is UTF-8, or a whole file in UTF-16 with a byte order mark. Other data stay bytes."""
    try:
        return data.decode(encoding or ("utf-16" if data.startswith(UTF16_MARKS) else "utf-8"))
    except UnicodeDecodeError:
        return data


def encoding_of(data: bytes | str) -> str | None:
    """Name the encoding that bytes which are not UTF-8 look like, or a text with lone surrogates in their place."""
    data = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
    if data.startswith(UTF16_MARKS) or is_utf16(data):
        return "UTF-16"
    single_bytes = len(ACCENT.findall(data))
    high_bytes = sum(byte > 127 for byte in data)
    return "WINDOWS-1252" if 2 * single_bytes >= high_bytes else None  # Latin-1 is a part of Windows-1252


def not_utf8(data: bytes | str) -> str:
    """Return the reason to reject bytes that are not UTF-8, or a text with lone surrogates in their place.

    It says which encoding they look like, and how to convert the file.
    """
    if (name := encoding_of(data)) is None:
        return f"{NOT_UTF8} but another encoding (such as GB18030 or WINDOWS-1251); save the file as UTF-8"
    also = " (Latin-1)" if name == "WINDOWS-1252" else ""
    return f"{NOT_UTF8} but, by its looks, {name}{also}; convert the file by `iconv -f {name} -t UTF-8 OLD > NEW`"


def sentences(value: object, tally: Tally) -> list[Any]:
    """Return the sentences in a field, which need not be texts.

    They are the sentences of the items of a list, the value of one of SENTENCE_KEYS in an object, or the text itself. A
    text may be a list in the form of JSON, Python or numpy (`['a dog', "a hound"]`), and then they are its items.
    """
    if value is None:
        return []
    if isinstance(value, dict):
        words = [value[key] for key in SENTENCE_KEYS if key in value]
        return sentences(words[0], tally) if words else [value]
    if isinstance(value, list):
        return [text for item in value for text in (sentences(item, tally) if isinstance(item, dict) else [item])]
    items = _listed(value) if isinstance(value, str) else None
    tally.notes[LISTED] += items is not None
    return [value] if items is None else items


def _listed(text: str) -> list[str] | None:
    text = text.strip()
    if not (text.startswith("[") and text.endswith("]") and len(text) > 1):
        return None
    inner = text[1:-1]
    position = 0
    strings = []
    while match := STRING.match(inner, position):
        strings.append(match[1])
        position = match.end()
    if inner[position:].strip(" \t\r\n,"):
        return None
    try:
        return [_unquote(string) for string in strings]
    except (ValueError, SyntaxError):
        return None


def _unquote(string: str) -> str:
    try:
        return json.loads(string)
    except ValueError:
        return ast.literal_eval(string.replace("\n", "\\n").replace("\r", "\\r"))


def sentence_number(text: str) -> int | None:
    """Return the number that a text is, or None."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_NUMBER_DIGITS else None


def document(
    key: str, values: Mapping[str, object], names: Iterable[str | None], file: str, row: int | None = None,
    implied: bool = False,
) -> Iterator[DocumentRecord]:  # fmt: skip
    """Yield the document whose title, tags and description have these `names` among the values, unless all are empty.

    Lists are joined with commas. The name of a missing field is None.
    """
    title, tags, description = (_joined(values.get(name)) if name else "" for name in names)
    if title or tags or description:
        yield DocumentRecord(key, title, tags, description, file, row, implied)


def _joined(value: object) -> str:
    """Return the text of a field of a document."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


def with_images(records: Iterable[Record], image: Callable[[KeyedRecord], ImageRecord]) -> Iterator[Record]:
    """Yield the `records`, with the `image` of a record before it unless the record before has the same image."""
    last = None
    for record in records:
        if not isinstance(record, Reject) and record.key != last:
            yield image(record)
            last = record.key
        yield record


def tab_records(
    folder: CollectionFolder, path: Path, what: str, widths: tuple[int, ...], make: MakeRecord
) -> Iterator[Record]:
    """Yield `make(fields, file, row)` for each line with one of these numbers of fields between tabs.

    All other lines, and lines for which `make` raises ValueError, become Rejects of `what`.
    """
    with folder.open(path) as file:
        yield from _records(lines(file, path), folder.label(path), what, widths, make)


def headed_records(
    folder: CollectionFolder, path: Path, what: str, names: tuple[str, ...], make: MakeRecord
) -> Iterator[Record]:
    """Yield the same as `tab_records`, for the columns `names` of a table with a header.

    Raises InputError if a column is missing.
    """
    with folder.open(path) as file:
        rows = lines(file, path)
        _, first = next(rows, (1, ""))
        header = first.split("\t") if isinstance(first, str) else []
        if repeated := repeated_name(header):
            raise InputError(f"{path}: its first row names the column {repeated} twice. Rename one of the two.")
        if missing := [name for name in names if name not in header]:
            raise InputError(
                f"{path}: its first row must name the columns {', '.join(names)}, but {missing[0]} is missing. Add it."
            )
        positions = [header.index(name) for name in names]

        def make_of_columns(fields: list[str], file: str, row: int) -> Record:
            return make([fields[position] for position in positions], file, row)

        yield from _records(rows, folder.label(path), what, (len(header),), make_of_columns)


def _records(
    rows: Iterator[tuple[int, str | bytes]], file: str, what: str, widths: tuple[int, ...], make: MakeRecord
) -> Iterator[Record]:
    for row, line in rows:
        fields = [] if isinstance(line, bytes) else line.split("\t")
        try:
            if len(fields) not in widths:
                wanted = " or ".join(map(str, widths))
                raise ValueError(f"{len(fields)} fields between tabs, not {wanted}" if fields else not_utf8(line))
            yield make(fields, file, row)
        except ValueError as error:
            yield Reject(file, row, what, str(error))


def repeated_name(header: Iterable[str]) -> str | None:
    """Return the first column that a header names twice. Several columns may be without a name."""
    seen: set[str] = set()
    return next((name for name in header if name and (name in seen or seen.add(name))), None)


def read_json(folder: CollectionFolder, path: Path) -> Any:
    """Read the value in a JSON file as `parse_json` does. Raises InputError."""
    with _refusing(path):
        return parse_json(_json_text(folder, path))


def json_items(folder: CollectionFolder, path: Path) -> Iterator[Any]:
    """Yield the rows in a JSON file, which are read as `parse_json` does, when they are asked for.

    They are the items of a list, or the items of the only list of objects in an object (`{"data": [...]}`), or an item
    for each name in an object of photos (`{"a.jpg": "a dog"}` or `{"a.jpg": {"caption": "a dog"}}`). Raises InputError
    for other values.
    """
    with _refusing(path):
        text = _json_text(folder, path)
        mark, position = _list_mark(text, 0)
        if mark != "[":
            yield from _object_items(parse_json(text), path)
            return
        if text.startswith("]", position):
            mark, position = _list_mark(text, position)
        expected = "["
        while mark == expected:
            item, end = DECODER.raw_decode(text, position)
            yield item
            mark, position = _list_mark(text, end)
            expected = ","
        if mark != "]" or position < len(text):
            raise ValueError(f"no item, comma or end of the list before character {position}")


def _list_mark(text: str, position: int) -> tuple[str, int]:
    """Return the mark of a list at a position, which may be empty, and the position after the mark and its blanks."""
    match = LIST_MARK.match(text, position)
    assert match is not None
    return match[1], match.end()


def _object_items(value: Any, path: Path) -> Iterator[Any]:
    """Yield the rows in an object of JSON."""
    values = value.values() if isinstance(value, dict) else ()
    record_lists = [items for items in values if isinstance(items, list) and items and isinstance(items[0], dict)]
    if isinstance(value, dict) and any(map(is_image, value)):
        for name, about in value.items():
            yield {"file": name, **(about if isinstance(about, dict) else {"sentence": about})}
    elif len(record_lists) == 1:
        yield from record_lists[0]
    else:
        raise InputError(
            f"{path} is not a list of objects. Write a JSON list with one object per photo or caption, or a .jsonl"
            " file."
        )


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, MemoryError, RecursionError) as error:
        raise InputError(f"{path} is not usable JSON: {error or 'too large'}") from error


def _json_text(folder: CollectionFolder, path: Path) -> str:
    with folder.open(path, MAX_JSON_BYTES) as file:
        data = file.read()
    try:
        return data.decode(json.detect_encoding(data))
    except UnicodeDecodeError:
        raise ValueError(not_utf8(data)) from None


def parse_json(data: bytes | str) -> Any:
    """Parse JSON as `json.loads`, but raise ValueError also for repeated keys and too deep nesting.

    NaN and Infinity, which Python's programs write for missing values, are read as null.
    """
    try:
        return DECODER.decode(
            data if isinstance(data, str) else data.decode(json.detect_encoding(data), "surrogatepass")
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        repeated = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"the key {repeated!r} is repeated")
    return result


DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=lambda name: None)
