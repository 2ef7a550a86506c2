"""Strict reading of the lists of a collection: lines, tab-separated fields, JSON, and lists of sentences within a
text."""

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
    **dict.fromkeys(("restval", "training", "trn"), "train"),
    **dict.fromkeys(("testing", "tests", "tst"), "test"),
    **dict.fromkeys(("unlabelled", "unlabeled"), "gallery"),
}
"""Other name for a split -> jointspace's name."""
YEAR = re.compile(r"[-_ ]?\d+$")
"""A number at the end of the name of a split's folder, such as 2017 in `train2017`."""
SENTENCE_KEYS = ("raw", "caption", "sentence", "text")
"""Keys of the text of a caption that is a JSON object."""
LISTED = "texts that are lists of sentences (['a dog', 'a hound']) are read as several sentences"
SEPARATORS = {" ": "a space", ",": "a comma", ";": "a semicolon", "|": "a vertical bar"}
"""Characters that users write in place of a tab, with their names."""
AFTER_FILE_NAME = re.compile(r"""\.\w{2,5}["']?(?: *([,;|])| )""")
"""The end of a file name, and the separator after it that is not a tab."""
MAX_JSON_BYTES = 1 << 30
"""Largest size of a JSON file in bytes. A larger file is an error."""
MAX_TEXT_BYTES = 1 << 24
"""Largest size of the text file of a photo in bytes. A larger file is rejected."""
DOCUMENT = ("title", "tags", "description")
"""The fields of weak text."""
MAX_NUMBER_DIGITS = 18
"""Largest number of digits in the number of a sentence. A longer text is not the number of a sentence."""
STRING = re.compile(r"""[\s,]*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""", re.DOTALL)
"""A quoted string of JSON or Python, with the spaces and commas before it. Lists that numpy writes have no commas."""
ACCENT = re.compile(rb"(?<![\x80-\xff])([\x80-\xff])(?:\1|\xdf)?(?![\x80-\xff])")
"""A single byte beyond ASCII between ASCII characters, or between an ASCII character and the start or end of the text.
Letters of Western Europe in Windows-1252 are such bytes, and texts in other encodings have few of them. The byte may be
doubled, as in Finnish, or precede the German sharp s."""

LIST_MARK = re.compile(r"[ \t\r\n]*([\[,\]]?)[ \t\r\n]*")
"""A bracket or comma of a JSON list, with spaces. The bracket or comma may be missing, so the pattern always
matches."""

MakeRecord = Callable[[list[str], str, int], Record]
"""A function that makes a record from the fields of a line, the name of the file, and the number of the row."""


def split_name(name: str) -> str:
    """Return jointspace's name for a split, whose `name` may be in any case.

    An unknown name is returned in lower case and without spaces around it, and is rejected later.
    """
    plain = name.strip().lower()
    return SPLIT_NAMES.get(plain, plain)


def split_in(name: str) -> str | None:
    """Find the split in the name of a file or of its folder, such as `cc3m-train-*.tar` or `val/metadata.jsonl`.

    If the name has several splits, the last counts. Return None if it has none.
    """
    parts = map(split_name, re.split(r"[-_./ ]|(?<=[a-z])(?=\d)", name.lower()))
    return next((part for part in reversed([*parts]) if part in SPLITS), None)


def by_split(names: list[str]) -> dict[str, str]:
    """Return the `names` of files, or patterns of files, by the split in each name.

    Return {} unless there are several names, each with another split.
    """
    splits = {split: name for name in names if (split := split_in(name))}
    return splits if 1 < len(splits) == len(names) else {}


def split_folders(folders: Collection[str]) -> dict[str, str]:
    """Return the split of each folder with the name of a split, such as `Validation` or `val2017`, by its path.

    Only folders directly below the deepest folder that contains all `folders` are returned. So if all `folders` are in
    one folder, the name of this folder is not read as a split.
    """
    common = posixpath.commonpath(folders) if folders else ""
    inside = {folder.removeprefix(common).lstrip("/").split("/")[0] for folder in folders}
    named = {posixpath.join(common, name): split_name(YEAR.sub("", name)) for name in inside}
    return {folder: split for folder, split in named.items() if split in SPLITS}


def lines(file: BinaryIO, path: Path | str) -> Iterator[tuple[int, str | bytes]]:
    """Yield the number, from 1, and the text of each line that is not empty. A line that is not UTF-8 remains bytes.

    `path` is the name of the file for messages. Raises InputError for a line longer than MAX_LINE_BYTES, for damaged
    UTF-16, and for UTF-16 without a byte order mark.
    """
    for row, line in enumerate(each_line(file, path), 1):
        if row == 1 and is_utf16(line):
            raise InputError(f"{path} is UTF-16. Save the file as UTF-8.")
        if line:
            yield row, decode_text(line, "utf-8")


def is_utf16(line: bytes) -> bool:
    """Return whether every second byte is NUL, as in ASCII text that is stored as UTF-16."""
    return len(line) > 3 and (not any(line[1:-1:2]) or not any(line[0:-1:2]))


def decode_text(data: bytes, encoding: str | None = None) -> str | bytes:
    """Decode data in UTF-8, or a whole file in UTF-16 with a byte order mark. Other data are returned as bytes.

    If an `encoding` is given, only this encoding is tried.
    """
    try:
        return data.decode(encoding or ("utf-16" if data.startswith(UTF16_MARKS) else "utf-8"))
    except UnicodeDecodeError:
        return data


def encoding_of(data: bytes | str) -> str | None:
    """Guess the encoding of bytes that are not UTF-8, or of a text with lone surrogates in place of such bytes.

    Return UTF-16, WINDOWS-1252, or None for any other encoding.
    """
    data = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
    if data.startswith(UTF16_MARKS) or is_utf16(data):
        return "UTF-16"
    single_bytes = len(ACCENT.findall(data))
    high_bytes = sum(byte > 127 for byte in data)
    return "WINDOWS-1252" if 2 * single_bytes >= high_bytes else None  # Latin-1 is a part of Windows-1252


def not_utf8(data: bytes | str) -> str:
    """Return the reason for rejecting bytes that are not UTF-8, or a text with lone surrogates in place of such bytes.

    The reason names the probable encoding and the command that converts the file. If no encoding is probable, it names
    two examples of encodings instead, and asks for UTF-8.
    """
    if (name := encoding_of(data)) is None:
        return f"{NOT_UTF8}: the text has another encoding, such as GB18030 or WINDOWS-1251. Save the file as UTF-8"
    also = " (Latin-1)" if name == "WINDOWS-1252" else ""
    return f"{NOT_UTF8}: the text is probably {name}{also}. Convert the file with `iconv -f {name} -t UTF-8 OLD > NEW`"


def sentences(value: object, tally: Tally) -> list[Any]:
    """Return the sentences in the `value` of a field. Some of them may be values other than texts, which are rejected
    later.

    The `tally` counts texts that are read as lists. The value None has no sentences. A list has one sentence per item,
    an object has its sentences under one of SENTENCE_KEYS, and a text is a sentence. A text may also be a list in the
    form of JSON, Python or numpy (`['a dog', "a hound"]`), and then its items are the sentences.
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
    """Read the number of a sentence from `text`. Return None if the text is not a whole number of at most
    MAX_NUMBER_DIGITS digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_NUMBER_DIGITS else None


def document(
    key: str, values: Mapping[str, object], names: Iterable[str | None], file: str, row: int | None = None,
    implied: bool = False,
) -> Iterator[DocumentRecord]:  # fmt: skip
    """Yield the weak text of an image, unless all of its fields are empty.

    `values` has the values of a row by name, and `names` are the names of the title, tags and description among them,
    or None for a missing field. Lists are joined with commas. The other arguments are fields of the DocumentRecord.
    """
    title, tags, description = (_joined(values.get(name)) if name else "" for name in names)
    if title or tags or description:
        yield DocumentRecord(key, title, tags, description, file, row, implied)


def _joined(value: object) -> str:
    """Return the value of a field of weak text as a text: the items of a list joined with commas, and "" for None."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


def with_images(records: Iterable[Record], image: Callable[[KeyedRecord], ImageRecord]) -> Iterator[Record]:
    """Yield the `records`, and add the records of their images, which `image(record)` makes.

    The record of an image precedes the first of several successive records that belong to this image. A Reject belongs
    to no image.
    """
    last = None
    for record in records:
        if not isinstance(record, Reject) and record.key != last:
            yield image(record)
            last = record.key
        yield record


def tab_records(
    folder: CollectionFolder, path: Path, what: str, widths: tuple[int, ...], make: MakeRecord
) -> Iterator[Record]:
    """Yield `make(fields, file, row)` for each line of a file with tab-separated fields that is not empty.

    `widths` are the numbers of fields that a line may have. For a line with another number of fields, and for a line
    for which `make` raises ValueError, a Reject of the kind `what` is yielded.
    """
    with folder.open(path) as file:
        yield from _records(lines(file, path), folder.label(path), what, widths, make)


def headed_records(
    folder: CollectionFolder, path: Path, what: str, names: tuple[str, ...], make: MakeRecord
) -> Iterator[Record]:
    """Yield records like `tab_records`, for a table with a header. `make` gets the fields of the columns `names`.

    Raises InputError if one of these columns is missing, or if the header names a column twice.
    """
    with folder.open(path) as file:
        rows = lines(file, path)
        _, first = next(rows, (1, ""))
        header = first.split("\t") if isinstance(first, str) else []
        if repeated := repeated_name(header):
            raise InputError(f"{path} names the column {repeated} twice in its first row. Rename one of the two.")
        if missing := [name for name in names if name not in header]:
            raise InputError(
                f"{path} lacks the column {missing[0]}. Its first row must name the columns {', '.join(names)},"
                " separated by tabs. Add the column."
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
                raise ValueError(_wrong_width(line, fields, widths) if isinstance(line, str) else not_utf8(line))
            yield make(fields, file, row)
        except ValueError as error:
            yield Reject(file, row, what, str(error))


def _wrong_width(line: str, fields: list[str], widths: tuple[int, ...]) -> str:
    """Return the reason for rejecting a line, which does not have one of the numbers of fields in `widths`."""
    if len(fields) == 1 and (found := AFTER_FILE_NAME.search(line)):
        separator = SEPARATORS[found[1] or " "]
        return f"wrong separator: the file name is followed by {separator}, and not by a tab. Write tabs between fields"
    wanted = " or ".join(map(str, widths))
    return f"wrong number of fields: the row has {len(fields)} fields between tabs, but must have {wanted}. Correct it"


def repeated_name(header: Iterable[str]) -> str | None:
    """Return the first column that a header names twice, or None if there is no such column. Several columns may be
    without a name."""
    seen: set[str] = set()
    return next((name for name in header if name and (name in seen or seen.add(name))), None)


def read_json(folder: CollectionFolder, path: Path) -> Any:
    """Return the value in a JSON file, which `parse_json` parses.

    Raises InputError if the file cannot be read, is not JSON, or is larger than MAX_JSON_BYTES.
    """
    with _refusing(path):
        return parse_json(_json_text(folder, path))


def json_items(folder: CollectionFolder, path: Path) -> Iterator[Any]:
    """Yield the rows in a JSON file, which is parsed by `parse_json` step by step.

    The rows are the items of a list, the items of the only list of objects in an object (`{"data": [...]}`), or one row
    for each name in an object of photos (`{"a.jpg": "a dog"}` or `{"a.jpg": {"caption": "a dog"}}`). Raises InputError
    for other values, and if the file cannot be read, is not JSON, or is larger than MAX_JSON_BYTES.
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
            raise ValueError(f"a comma, an item or the end of the list is missing before character {position}")


def _list_mark(text: str, position: int) -> tuple[str, int]:
    """Return the bracket or comma at a `position` of a text, or "" if there is none, and the position after this mark
    and the spaces that follow it."""
    match = LIST_MARK.match(text, position)
    assert match is not None
    return match[1], match.end()


def _object_items(value: Any, path: Path) -> Iterator[Any]:
    """Yield the rows in an object of JSON, as `json_items` describes. Raises InputError if the object has none of these
    forms."""
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
        raise InputError(
            f"{path} is not usable JSON ({error or 'the file is too large'}). Correct the file, or write it again."
        ) from error


def _json_text(folder: CollectionFolder, path: Path) -> str:
    with folder.open(path, MAX_JSON_BYTES) as file:
        data = file.read()
    try:
        return data.decode(json.detect_encoding(data))
    except UnicodeDecodeError:
        raise ValueError(not_utf8(data)) from None


def parse_json(data: bytes | str) -> Any:
    """Parse JSON like `json.loads`, but also raise ValueError for repeated keys and for too deep nesting.

    NaN and Infinity, which Python writes for missing values, are read as null.
    """
    try:
        return DECODER.decode(
            data if isinstance(data, str) else data.decode(json.detect_encoding(data), "surrogatepass")
        )
    except RecursionError:
        raise ValueError("the lists and objects in the JSON are nested too deeply") from None


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        repeated = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"the key {repeated!r} is repeated in an object")
    return result


DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=lambda name: None)
