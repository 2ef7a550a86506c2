"""Strict reading of a collection's lists: lines, fields between tabs, JSON, and lists of sentences in a text."""

import ast
import json
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.collections.files import CollectionFolder, is_image
from pipeline.collections.records import NOT_UTF8, DocumentRecord, ImageRecord, Record, Reject, Tally
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
"""What follows the split in the name of a folder: `train2017`."""
WORDS = ("raw", "caption", "sentence", "text")
"""What a caption that is an object has its words under."""
LISTED = "texts that are lists of sentences (['a dog', 'a hound']) are read as several sentences"
LARGEST_JSON = 1 << 30
STRING = re.compile(r"""[\s,]*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""", re.DOTALL)
"""A string of JSON or Python, with what divides it from the one before: numpy prints no commas."""
ACCENT = re.compile(rb"(?<![\x80-\xff])([\x80-\xff])(?:\1|\xdf)?(?![\x80-\xff])")
"""A single byte among ASCII, as letters of Western Europe are in Windows-1252, and few in other encodings. It may be
doubled, as in Finnish, or stand before the German sharp s."""

MARK = re.compile(r"[ \t\r\n]*([\[,\]]?)[ \t\r\n]*")
"""What opens, divides or closes a list of JSON."""


def split_name(name: str) -> str:
    """Our name for a collection's split `name`, in any case; intake rejects unknown names."""
    plain = name.strip().lower()
    return SPLIT_NAMES.get(plain, plain)


def split_in(name: str) -> str | None:
    """Find the split that is part of the name of a file or of its folder: `cc3m-train-*.tar`, `val/metadata.jsonl`."""
    parts = map(split_name, re.split(r"[-_./ ]|(?<=[a-z])(?=\d)", name.lower()))
    return next((part for part in reversed([*parts]) if part in SPLITS), None)


def split_folders(folders: Collection[str]) -> dict[str, str]:
    """Find the folders that are called after splits, such as `Validation` or `val2017`, below the folder that has all
    `folders`. One such folder that has all of them is not a split."""
    common = posixpath.commonpath(folders) if folders else ""
    inside = {folder.removeprefix(common).lstrip("/").split("/")[0] for folder in folders}
    named = {posixpath.join(common, name): split_name(YEAR.sub("", name)) for name in inside}
    return {folder: split for folder, split in named.items() if split in SPLITS}


def lines(file: BinaryIO, path: Path | str) -> Iterator[tuple[int, str | bytes]]:
    """Row numbers from 1 and lines without their end, except empty lines; one that is not UTF-8 stays bytes.

    Raises InputError as `each_line`, and for UTF-16 without a byte order mark.
    """
    for row, line in enumerate(each_line(file, path), 1):
        if row == 1 and is_utf16(line):
            raise InputError(f"{path} is UTF-16; save it as UTF-8")
        if line:
            yield row, decode_text(line, "utf-8")


def is_utf16(line: bytes) -> bool:
    """Whether every other byte is NUL, as in ASCII in UTF-16."""
    return len(line) > 3 and (not any(line[1:-1:2]) or not any(line[0:-1:2]))


def decode_text(data: bytes, encoding: str | None = None) -> str | bytes:
    """The text in `data`; what is not UTF-8, or, of a whole file, UTF-16 with a byte order mark, stays bytes."""
    try:
        return data.decode(encoding or ("utf-16" if data.startswith(UTF16_MARKS) else "utf-8"))
    except UnicodeDecodeError:
        return data


def encoding_of(data: bytes | str) -> str | None:
    """Name the encoding that bytes which are not UTF-8 look like, or a text with lone surrogates in their place."""
    data = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
    single, high = len(ACCENT.findall(data)), sum(byte > 127 for byte in data)
    if data.startswith(UTF16_MARKS) or is_utf16(data):
        return "UTF-16"
    return "WINDOWS-1252" if 2 * single >= high else None  # Latin-1 is a part of it


def not_utf8(data: bytes | str) -> str:
    """The reason to reject bytes that are not UTF-8, or a text with lone surrogates in their place: which encoding they
    look like, and how the file is converted."""
    if (name := encoding_of(data)) is None:
        return f"{NOT_UTF8} but another encoding (such as GB18030 or WINDOWS-1251); save the file as UTF-8"
    also = " (Latin-1)" if name == "WINDOWS-1252" else ""
    return f"{NOT_UTF8} but, by its looks, {name}{also}; convert the file by `iconv -f {name} -t UTF-8 OLD > NEW`"


def sentences(value: Any, tally: Tally) -> list[Any]:
    """The sentences in a field: of a list those of its items, of an object what it has under one of WORDS, of a text
    itself, unless it is a list in the form of JSON, Python or numpy (`['a dog', "a hound"]`): then its items."""
    if value is None:
        return []
    if isinstance(value, dict):
        words = [value[key] for key in WORDS if key in value]
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
    inner, at, strings = text[1:-1], 0, []
    while match := STRING.match(inner, at):
        strings.append(match[1])
        at = match.end()
    if inner[at:].strip(" \t\r\n,"):
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
    folder: CollectionFolder, path: Path, what: str, widths: tuple[int, ...], make: Callable[..., Record]
) -> Iterator[Record]:
    """`make(*fields, file, row)` for each line of as many fields between tabs as one of `widths`. All other lines, and
    those for which `make` raises ValueError, become Rejects of `what`."""
    with folder.open(path) as file:
        yield from _records(lines(file, path), folder.label(path), what, widths, make)


def headed_records(
    folder: CollectionFolder, path: Path, what: str, names: tuple[str, ...], make: Callable[..., Record]
) -> Iterator[Record]:
    """As `tab_records`, for the columns `names` of a table with a header. Raises InputError if one is missing."""
    with folder.open(path) as file:
        rows = lines(file, path)
        _, header = next(rows, (1, ""))
        header = header.split("\t") if isinstance(header, str) else []
        if repeated := repeated_name(header):
            raise InputError(f"{path}: its first row names the column {repeated} twice; rename one of them")
        if missing := [name for name in names if name not in header]:
            raise InputError(f"{path}: its first row must name the columns {', '.join(names)}; {missing[0]} is missing")
        places = [header.index(name) for name in names]

        def chosen(*line: Any) -> Record:
            return make(*(line[place] for place in places), *line[-2:])

        yield from _records(rows, folder.label(path), what, (len(header),), chosen)


def _records(
    rows: Iterator[tuple[int, str | bytes]], file: str, what: str, widths: tuple[int, ...], make: Callable[..., Record]
) -> Iterator[Record]:
    for row, line in rows:
        fields = [] if isinstance(line, bytes) else line.split("\t")
        try:
            if len(fields) not in widths:
                wanted = " or ".join(map(str, widths))
                raise ValueError(f"{len(fields)} fields between tabs, not {wanted}" if fields else not_utf8(line))
            yield make(*fields, file, row)
        except ValueError as error:
            yield Reject(file, row, what, str(error))


def repeated_name(header: Iterable[str]) -> str | None:
    """The first column that a header names twice; columns without a name may be many."""
    seen: set[str] = set()
    return next((name for name in header if name and (name in seen or seen.add(name))), None)


def read_json(folder: CollectionFolder, path: Path) -> Any:
    """The value in a JSON file, read as by `parse_json`. Raises InputError."""
    with _refusing(path):
        return parse_json(_json_text(folder, path))


def json_items(folder: CollectionFolder, path: Path) -> Iterator[Any]:
    """The items of the list in a JSON file, read as by `parse_json`, each when it is asked for; or of an object,
    `{"a.jpg": "a dog"}` or `{"a.jpg": {"caption": "a dog"}}`, a row for each name, or the only list of objects in it,
    as of `{"data": [...]}`. Raises InputError for other values.
    """
    with _refusing(path):
        text = _json_text(folder, path)
        mark = MARK.match(text)
        if mark[1] != "[":
            value = parse_json(text)
            values = value.values() if isinstance(value, dict) else ()
            records = [items for items in values if isinstance(items, list) and items and isinstance(items[0], dict)]
            if values and any(map(is_image, value)):
                for name, about in value.items():
                    yield {"file": name, **(about if isinstance(about, dict) else {"sentence": about})}
            elif len(records) == 1:
                yield from records[0]
            else:
                remedy = "one for each photo or caption; write one, or .jsonl"
                raise InputError(f"{path} is not a list of objects, {remedy}")
            return
        if text.startswith("]", mark.end()):
            mark = MARK.match(text, mark.end())
        before = "["
        while mark[1] == before:
            item, end = DECODER.raw_decode(text, mark.end())
            yield item
            mark, before = MARK.match(text, end), ","
        if mark[1] != "]" or mark.end() < len(text):
            raise ValueError(f"no item, comma or end of the list at character {mark.start()}")


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, MemoryError, RecursionError) as error:
        raise InputError(f"{path} is not usable JSON: {error or 'too large'}") from error


def _json_text(folder: CollectionFolder, path: Path) -> str:
    with folder.open(path, LARGEST_JSON) as file:
        data = file.read()
    try:
        return data.decode(json.detect_encoding(data))
    except UnicodeDecodeError:
        raise ValueError(not_utf8(data)) from None


def parse_json(data: bytes | str) -> Any:
    """As `json.loads`, but raises ValueError for repeated keys and too deep nesting, too, and reads NaN and Infinity,
    as Python's programs write what is missing, as null."""
    try:
        return json.loads(data, **HOOKS)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        repeated = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"the key {repeated!r} is repeated")
    return result


HOOKS: Mapping[str, Callable] = {"object_pairs_hook": _object, "parse_constant": lambda name: None}
DECODER = json.JSONDecoder(**HOOKS)
