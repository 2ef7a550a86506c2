"""The rows of CSV, TSV, JSON, JSONL and Parquet tables."""

import csv
import math
import os
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import date
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from pipeline.collections.files import CollectionFolder, is_image
from pipeline.collections.formats import lists
from pipeline.collections.own_columns import Field
from pipeline.errors import InputError, UsageError
from pipeline.foreign.files import MAX_LINE_BYTES, each_line
from pipeline.foreign.parquet import stored_type
from pipeline.foreign.trial import try_first
from pipeline.printable import is_unicode

LOOKED_AT = 10_000
"""Rows that are read to learn the columns of a table, and what is in them."""
BATCH = 1 << 13  # rows of a Parquet file in memory at once
LARGEST_GROUP = 1 << 32  # bytes that a row group may claim to unpack to
FEW_ROWS, ROWS_PER_BYTE = 1_000_000, 8
"""Rows that a Parquet file may claim at any size, plus those for each byte: names and sentences take over a bit."""
LARGEST_BATCH = 1 << 28
"""Bytes of text in one column of a batch: a dictionary can hold a long text once and refer to it in every row."""
MOST_VALUES = 1 << 22  # values in one column of a batch, whose rows may hold lists
FEW_PHOTOS = 32
"""Rows whose photos are in memory together."""
LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
DAYS = (date.min.toordinal() - date(1970, 1, 1).toordinal(), date.max.toordinal() - date(1970, 1, 1).toordinal() + 1)
"""The first day that Python has and the one after the last, from 1970 on."""
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Of a timestamp, in a second."""
DELIMITERS, UNQUOTED = ",;\t|", "\t|"
NUMBER = re.compile(r"(?<=[^\W\d_])[ _.-]?\d+$")
"""What tells columns of one stem apart: caption1, caption_2, caption 3."""
EITHER = " | "
"""The text between the names of columns in `A | B`. The first column that is not empty counts."""
SEPARATOR = re.compile(r'"?sep=.{0,2}"?\s*')
Names = Collection[str]


class TableRow(NamedTuple):
    """A row by its number from 1 (in text files, that of its first line): values by column, or none and the fault."""

    number: int
    values: Mapping[str, Any]
    fault: str = ""


def read_rows(
    folder: CollectionFolder, path: Path, columns: Names, needed: Names, own: Names | None = ()
) -> Iterator[TableRow]:
    """The rows of the table `path`, with at least those of `columns` that it has, and of all others of plain values
    at least those of `own` (None: all). A column `caption#` stands for all of that stem, such as caption1 and caption2,
    and is a list of what is in them. A column `A | B` stands for A, or for B in rows in which A is empty.

    Raises InputError if it lacks a `needed` column or cannot be read, and UsageError for another kind of file.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise UsageError(f"{path} is not a table that can be read here; known kinds are {', '.join(READERS)}")
    if any(name.endswith("#") or EITHER in name for name in columns):
        present = column_names(folder, path)
        parts = {name: name.split(EITHER) for name in columns if EITHER in name}
        parts |= {name: of for name in columns if (of := [column for column in present if f"{stem(column)}#" == name])}
        if parts := {name: of for name, of in parts.items() if name not in present}:
            flat = ([*chain(*(parts.get(name, [name]) for name in names))] for names in (columns, needed))
            return (_gather(row, parts, columns) for row in read_rows(folder, path, *flat, own))
    if (own is None or own) and reader is _read_parquet:
        fields = schema(folder, path)
        _check_columns(path, fields.names, ())
        chosen = [field for field in fields if own is None or field.name in own]
        plain = [field.name for field in chosen if _is_plain(stored_type(field.type))]
        read = {*plain, *columns, *(name.removesuffix(".path") for name in columns)}
        if lost := [field.name for field in chosen if field.name not in read]:
            note = f"of the columns not kept, being lists, structs or bytes: {', '.join(lost)}"
            folder.tally.notes[note] = len(lost)
        columns = dict.fromkeys([*columns, *plain])
    return reader(folder, path, columns, needed)


def _is_plain(kind: pa.DataType) -> bool:
    return not (pa.types.is_nested(kind) or "binary" in str(kind))


def stem(column: str) -> str:
    """The name of a column without a number at its end."""
    return NUMBER.sub("", column)


def _gather(row: TableRow, parts: Mapping[str, Names], columns: Names) -> TableRow:
    """Put the `parts` of columns together, and drop each part that `columns` does not name itself."""
    used = set(chain(*parts.values())).difference(columns)
    values = {name: value for name, value in row.values.items() if name not in used}
    for name, of in parts.items():
        texts = [text for column in of if (text := row.values.get(column)) is not None and str(text).strip()]
        values[name] = texts if name.endswith("#") else next(iter(texts), None)
    return row._replace(values=values) if row.values else row


def further(values: Mapping[str, Any], path: Path, ours: Names) -> dict[str, Any]:
    """The values of a row of the table `path` in other columns than `ours`."""
    typed = not is_text(path)
    return {
        name: value if typed or value is None else Field(value) for name, value in values.items() if name not in ours
    }


def column_names(folder: CollectionFolder, path: Path) -> list[str]:
    """List the columns of the table `path`, for JSON the keys of its first LOOKED_AT rows. Raises as `read_rows`."""
    if path.suffix.lower() == ".parquet":
        names = schema(folder, path).names
        _check_columns(path, names, ())
        return names
    first = list(islice(read_rows(folder, path, (), ()), LOOKED_AT))
    names = list(dict.fromkeys(chain.from_iterable(row.values for row in first)))
    if first and not names:
        raise InputError(f"{path}: row {first[0].number}: {first[0].fault or 'an object without keys'}")
    return names


def is_text(path: Path) -> bool:
    """Whether the table is a CSV or TSV, whose fields have no type, and whose header is read without spaces around
    names."""
    return READERS.get(path.suffix.lower()) is _read_csv


def schema(folder: CollectionFolder, path: Path) -> pa.Schema:
    """The columns of a Parquet file, after a trial. Raises InputError."""
    try_first(path, _read_schema, folder, path)
    return _read_schema(folder, path)


def _read_schema(folder: CollectionFolder, path: Path) -> pa.Schema:
    with _refusing(path), folder.open(path, math.inf) as file:
        return pq.read_metadata(file).schema.to_arrow_schema()


def _check_columns(path: Path, present: Names, needed: Names) -> None:
    if repeated := lists.repeated_name(present):
        raise InputError(f"{path} has two columns named {repeated}; rename one of them")
    if missing := sorted(set(needed) - set(present)):
        raise InputError(f"{path} has no column {missing[0]}; name one of {', '.join(present)} in collection.columns")


def _read_csv(folder: CollectionFolder, path: Path, columns: Names, needed: Names) -> Iterator[TableRow]:
    csv.field_size_limit(MAX_LINE_BYTES)  # process-wide; the default would end the file at its first long field
    with folder.open(path) as file:
        first = next(filter(str.strip, _texts(file, path)), "")
        if lists.is_utf16(first.encode("utf-8", "surrogateescape")):
            raise InputError(f"{path} is UTF-16; save it as UTF-8")
        encoding = "utf-8"
        if not is_unicode(first):
            if lists.encoding_of(first) != "WINDOWS-1252":
                raise InputError(f"{path}: its header is {lists.not_utf8(first)}")
            encoding = "cp1252"
            folder.tally.notes[f"table is read as WINDOWS-1252, as its header looks: {folder.label(path)}"] = 1
        delimiter = "\t" if path.suffix.lower() == ".tsv" else _delimiter(first)
        file.seek(0)
        quoting = csv.QUOTE_MINIMAL if _is_quoted(_texts(file, path, encoding), delimiter) else csv.QUOTE_NONE
        file.seek(0)
        lines = csv.reader(
            _texts(file, path, encoding), delimiter=delimiter, strict=True, quoting=quoting,
            skipinitialspace=delimiter == "|",
        )  # fmt: skip
        header: list[str] = []
        while True:
            number = lines.line_num + 1
            try:
                values = next(lines)
            except StopIteration:
                return
            except csv.Error as error:
                if "unexpected end of data" in str(error) or "field larger" in str(error):
                    raise InputError(f"{path}: the quotation mark opened in row {number} is never closed") from None
                yield TableRow(number, {}, f"not CSV: {error}")
                continue
            if not header:
                header = [name.strip() for name in values]
                if header:
                    _check_columns(path, header, needed)
                continue
            if len(values) > len(header) == 2:
                values = _join_unquoted(values, delimiter)
                folder.tally.notes[f"rows of {folder.label(path)} have {delimiter!r} in a field without quotes"] += 1
            if len(values) == len(header):
                yield TableRow(number, dict(zip(header, values, strict=True)))
            elif values:
                remedy = f": put each field with {delimiter!r} in it into double quotes" * (len(values) > len(header))
                yield TableRow(number, {}, f"{len(values)} fields, not {len(header)}{remedy}")


def _join_unquoted(values: list[str], delimiter: str) -> list[str]:
    """Join the fields of a row with too many delimiters into two: the name of a photo, and all the rest."""
    first = len(values) - 1 if is_image(values[-1]) and not is_image(values[0]) else 1
    return [delimiter.join(part).rstrip(f"{delimiter} ") for part in (values[:first], values[first:])]


def _texts(file: BinaryIO, path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """The lines of a table, each with a line feed; none in place of a first `sep=;`, which is for Excel. Bytes that are
    not of the encoding become lone surrogates, for which only their row is rejected."""
    lines = (line.decode(encoding, "surrogateescape") + "\n" for line in each_line(file, path))
    yield from ("\n" if SEPARATOR.fullmatch(line) else line for line in islice(lines, 1))
    yield from lines


def _delimiter(header: str) -> str:
    """What divides the header of a CSV into most columns: commas, or semicolons, as Excel writes in many countries,
    tabs or bars."""

    def width(delimiter: str) -> int:
        with suppress(csv.Error, StopIteration):
            return len(next(csv.reader([header], delimiter=delimiter, strict=True)))
        return 0

    return max(DELIMITERS, key=width)


def _is_quoted(lines: Iterator[str], delimiter: str) -> bool:
    """Whether quotation marks around a field are not part of it. Tables between tabs or bars are often written without
    quoting: then a sentence may begin with a mark that no other closes, in a line that is a whole row. (Quoted, such a
    row goes on in the next line, which is no whole row.)"""
    if delimiter not in UNQUOTED:
        return True
    width, opened = 0, False
    for line in lines:
        if opened and line.count(delimiter) == width:
            return False
        if not width:
            width = line.count(delimiter)
        fields = line.rstrip("\n").split(delimiter)
        opened = '"' in line and len(fields) == width + 1 and any(map(_is_open, fields))
    return not opened


def _is_open(field: str) -> bool:
    """Whether a field begins with a quotation mark that is not closed at its end."""
    field = field.strip(" ")
    return field.startswith('"') and not (
        len(field) > 1 and field.endswith('"') and '"' not in field[1:-1].replace('""', "")
    )


def _read_jsonl(folder: CollectionFolder, path: Path, columns: Names, needed: Names) -> Iterator[TableRow]:
    with folder.open(path) as file:
        for number, line in lists.lines(file, path):
            try:
                value = None if isinstance(line, bytes) else lists.parse_json(line)
            except ValueError as error:
                yield TableRow(number, {}, f"not JSON: {error}")
                continue
            if isinstance(value, dict):
                yield TableRow(number, value)
            else:
                yield TableRow(number, {}, lists.not_utf8(line) if isinstance(line, bytes) else "not a JSON object")


def _read_json(folder: CollectionFolder, path: Path, columns: Names, needed: Names) -> Iterator[TableRow]:
    if _is_jsonl(folder, path):
        yield from _read_jsonl(folder, path, columns, needed)
        return
    for number, row in enumerate(lists.json_items(folder, path), 1):
        yield TableRow(number, row) if isinstance(row, dict) else TableRow(number, {}, "not a JSON object")


def _is_jsonl(folder: CollectionFolder, path: Path) -> bool:
    """Whether the first line of a file is an object, and not the last line."""
    with suppress(InputError, ValueError), folder.open(path) as file:
        first, _ = islice((line for _, line in lists.lines(file, path) if line.strip()), 2)
        return isinstance(lists.parse_json(first), dict)
    return False


def _read_parquet(folder: CollectionFolder, path: Path, columns: Names, needed: Names) -> Iterator[TableRow]:
    """Bytes that are not UTF-8 become lone surrogates, as in CSV: in a column of the user's they cost the value."""
    arguments = folder, path, columns, needed
    try_first(path, _exhaust, *arguments)
    number = 0
    for names, arrays in _batches(*arguments):
        with _refusing(path):
            values = [array.to_pylist() for array in arrays]
        for row in zip(*values, strict=True):
            number += 1
            fields = (v.decode("utf-8", "surrogateescape") if isinstance(v, bytes) else v for v in row)
            yield TableRow(number, dict(zip(names, fields, strict=True)))


def _exhaust(*arguments: Any) -> None:
    deque(_batches(*arguments), maxlen=0)


def _batches(
    folder: CollectionFolder, path: Path, columns: Names, needed: Names
) -> Iterator[tuple[list[str], list[pa.Array]]]:
    """For some rows at a time, the names of the columns, and each as `plain_column` has it."""
    with _refusing(path), folder.open(path, math.inf) as file:
        metadata = pq.read_metadata(file)
        present = metadata.schema.to_arrow_schema().names
        _check_columns(path, present, needed)
        names = [name for name in columns if name in present or name.removesuffix(".path") in present]
        texts = _check_claims(path, os.fstat(file.fileno()).st_size, metadata, names)
        table = pq.ParquetFile(file, metadata=metadata, read_dictionary=texts)
        number = 0
        for group in range(metadata.num_row_groups):  # lists of texts whose dictionaries differ are not read together
            for batch in table.iter_batches(BATCH, row_groups=[group], columns=names):
                yield batch.schema.names, [plain_column(path, number, column) for column in batch.columns]
                number += batch.num_rows


def rows_without(folder: CollectionFolder, path: Path, leaf: tuple[str, ...]) -> Collection[int]:
    """Find the rows of a Parquet file, from 1, that have null in the column `leaf`, such as (image, bytes).

    The column is read only if the file counts nulls there. Raises InputError.
    """
    try_first(path, _rows_without, folder, path, leaf)
    return _rows_without(folder, path, leaf)


def _rows_without(folder: CollectionFolder, path: Path, leaf: tuple[str, ...]) -> Collection[int]:
    with _refusing(path), folder.open(path, math.inf) as file:
        metadata = pq.read_metadata(file)
        at = [metadata.schema.column(place).path for place in range(len(metadata.schema))].index(".".join(leaf))
        counts = [metadata.row_group(group).column(at).statistics for group in range(metadata.num_row_groups)]
        if not any(count and count.null_count for count in counts):
            return ()
        fragment, null = ds.ParquetFileFormat().make_fragment(file), pc.is_null(pc.field(*leaf))
        found = fragment.to_table(columns={"null": null}, batch_size=FEW_PHOTOS, use_threads=False)["null"]
        return {row for row, is_null in enumerate(found.to_pylist(), 1) if is_null}


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """What pyarrow raises within becomes an InputError."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {error}") from error


def _check_claims(path: Path, size: int, metadata: pq.FileMetaData, names: Names) -> list[str]:
    """The text columns among `names`. Raises InputError if the file claims to hold too much for its `size` in bytes."""
    if metadata.num_rows > FEW_ROWS + ROWS_PER_BYTE * size:
        raise InputError(f"{path} claims {metadata.num_rows} rows in {size} bytes; it is damaged or not to be trusted")
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        # Not for each column: pyarrow ends the process if the metadata of a chunk are damaged.
        if max(group.total_byte_size, group.num_rows) > LARGEST_GROUP:
            raise InputError(f"{path} claims more than {LARGEST_GROUP} bytes in a row group; write smaller row groups")
    leaves = map(metadata.schema.column, range(len(metadata.schema)))
    return [leaf.path for leaf in leaves if leaf.path.partition(".")[0] in names and leaf.physical_type == "BYTE_ARRAY"]


def plain_column(path: Path, before: int, column: pa.Array) -> pa.Array:
    """A column of the rows after the first `before`, with values that Python has; text as bytes, so that a bad sentence
    costs only its own row. Raises InputError if its texts are too long to be unpacked."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    rows, texts = f"{path}: rows {before + 1} to {before + len(column)}", False
    for leaf in _leaves(column):
        if len(leaf) > MOST_VALUES:
            raise InputError(f"{rows} have lists of {len(leaf)} values, more than {MOST_VALUES}")
        texts = pa.types.is_dictionary(leaf.type) and any(is_text(leaf.type.value_type) for is_text in TEXTS)
        total = pc.sum(pc.binary_length(leaf.dictionary).take(leaf.indices)).as_py() if texts else 0
        if total and total > LARGEST_BATCH:
            raise InputError(f"{rows} have {total} bytes of text, more than {LARGEST_BATCH}")
    if pa.types.is_dictionary(column.type):
        values = column.dictionary.take(column.indices)
        return values.cast(pa.large_binary()) if texts else _as_python_has(values)
    return _as_python_has(column)


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    """What a column of lists and structs is made of."""
    if any(is_list(column.type) for is_list in LISTS):
        yield from _leaves(column.flatten())
    elif pa.types.is_struct(column.type):
        for field in column.flatten():
            yield from _leaves(field)
    else:
        yield column


def _as_python_has(column: pa.Array) -> pa.Array:
    """Dates in days, and times in microseconds, of UTC where they have a zone: as Python has them, and null what lies
    outside the years 1 to 9999; times of day as text, and durations in seconds. Other columns as they are."""
    kind = column.type
    if pa.types.is_time(kind):
        return pc.replace_substring_regex(column.cast(pa.string()), r"\.0+$", "")
    if pa.types.is_duration(kind):
        return pc.divide(column.view(pa.int64()).cast(pa.float64(), safe=False), UNITS[kind.unit])
    if pa.types.is_date(kind):
        per_day, zone, wanted = 1 if kind == pa.date32() else 86_400_000, None, pa.date32()
    elif pa.types.is_timestamp(kind):
        zone = "UTC" if kind.tz else None
        per_day, wanted = 86_400 * UNITS[kind.unit], pa.timestamp("us", zone)
        kind = pa.timestamp(kind.unit, zone)
    else:
        return column
    integer = pa.int32() if kind == pa.date32() else pa.int64()
    counts = column.view(integer)
    first, last = max(DAYS[0] * per_day, -(2**63)), min(DAYS[1] * per_day, 2**63) - 1
    known = pc.and_(pc.greater_equal(counts, first), pc.less_equal(counts, last))
    return pc.if_else(known, counts, pa.scalar(None, integer)).view(kind).cast(wanted, safe=False)


READERS: Mapping[str, Callable[..., Iterator[TableRow]]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
    ".txt": _read_csv,
    ".json": _read_json,
}
