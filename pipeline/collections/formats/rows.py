"""The rows of CSV, TSV, JSON, JSONL and Parquet tables."""

import csv
import math
import os
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from pipeline.collections.files import CollectionFolder, is_image
from pipeline.collections.formats import lists
from pipeline.collections.own_columns import Field
from pipeline.errors import InputError, UsageError
from pipeline.foreign.files import MAX_LINE_BYTES, each_line, try_first
from pipeline.foreign.parquet import BATCH_PHOTOS, pc, plain_column, stored_type
from pipeline.printable import is_unicode

MAX_SAMPLED_ROWS = 10_000
"""Largest number of rows that are read to find the columns of a table and their meaning."""
MIN_ACCENTED_LINES = 3
"""Smallest number of lines with accented letters of Windows-1252 for which a table is read in this encoding. The header
of such a table must be in ASCII."""
BATCH_ROWS = 1 << 13
"""Largest number of rows of a Parquet file that are in memory at once."""
FREE_ROWS = 1_000_000
"""Number of rows that a Parquet file of any size may declare."""
ROWS_PER_BYTE = 8
"""Number of rows beyond FREE_ROWS that a Parquet file may declare for each byte of its size. A row with a name or a
sentence takes more than one bit. A file that declares more rows is refused."""
NOT_AN_OBJECT = 'not a JSON object: each row must be one, such as {"file": "a.jpg"}'
"""The reason for rejecting a row of JSON that is not an object."""
DELIMITERS = ",;\t|"
UNQUOTED_DELIMITERS = "\t|"
"""Delimiters of tables that are often written without quoting."""
NUMBER = re.compile(r"(?<=[^\W\d_])[ _.-]?\d+$")
"""A number at the end of the name of a column, with the separator before it. Columns that differ only in this number,
such as caption1, caption_2 and caption 3, have the same stem."""
EITHER = " | "
"""The separator in a list of columns `A | B`, of which the first column that is not empty is used."""
SEPARATOR = re.compile(r'"?sep=.{0,2}"?\s*')
Names = Collection[str]


class TableRow(NamedTuple):
    """A row of a table.

    `number` counts from 1. In CSV, TSV and JSONL files, it is the number of the first line of the row. `values` has the
    values by column. If the row cannot be read, `fault` says why, and `values` is empty.
    """

    number: int
    values: Mapping[str, Any]
    fault: str = ""


def read_rows(
    folder: CollectionFolder, path: Path, columns: Names, needed: Names, own: Names | None = ()
) -> Iterator[TableRow]:
    """Yield the rows of the table `path`.

    A row has the values of the `columns`, as far as the table has them, and of the user's `own` columns (None: all
    columns). Own columns of Parquet files are left out if they have lists, structs or bytes. A row may also have values
    of further columns. A column `caption#` stands for all columns of that stem, such as caption1 and caption2, and is a
    list of their values. A column `A | B` stands for A, or for B in rows in which A is empty. Raises InputError if a
    table other than JSON or JSONL lacks a `needed` column, or if a table cannot be read. Raises UsageError for another
    kind of file.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise UsageError(f"{path} is not a table of a known type. Use one of the types {', '.join(READERS)}.")
    if any(name.endswith("#") or EITHER in name for name in columns):
        present = column_names(folder, path)
        parts = {name: name.split(EITHER) for name in columns if EITHER in name}
        parts |= {name: of for name in columns if (of := [column for column in present if f"{stem(column)}#" == name])}
        if parts := {name: of for name, of in parts.items() if name not in present}:
            flat_columns = [part for name in columns for part in parts.get(name, [name])]
            flat_needed = [part for name in needed for part in parts.get(name, [name])]
            return (_gather(row, parts, columns) for row in read_rows(folder, path, flat_columns, flat_needed, own))
    if (own is None or own) and reader is _read_parquet:
        fields = schema(folder, path)
        _check_columns(path, fields.names, ())
        chosen = [field for field in fields if own is None or field.name in own]
        kinds = {field.name: stored_type(field.type) for field in chosen}
        plain = [name for name, kind in kinds.items() if not (pa.types.is_nested(kind) or "binary" in str(kind))]
        read = {*plain, *columns, *(name.removesuffix(".path") for name in columns)}
        if lost := [field.name for field in chosen if field.name not in read]:
            note = f"of the columns not kept, being lists, structs or bytes: {', '.join(lost)}"
            folder.tally.notes[note] = len(lost)
        columns = dict.fromkeys([*columns, *plain])
    return reader(folder, path, columns, needed)


def stem(column: str) -> str:
    """Return the name of a column without a number at its end."""
    return NUMBER.sub("", column)


def _gather(row: TableRow, parts: Mapping[str, Names], columns: Names) -> TableRow:
    """Return the row with columns that are put together from other columns. `parts` has the names of these other
    columns by the name of each new column. The other columns are dropped, unless they are among the `columns`."""
    used = set(chain(*parts.values())).difference(columns)
    values = {name: value for name, value in row.values.items() if name not in used}
    for name, of in parts.items():
        texts = [text for column in of if (text := row.values.get(column)) is not None and str(text).strip()]
        values[name] = texts if name.endswith("#") else next(iter(texts), None)
    return row._replace(values=values) if row.values else row


def other_values(values: Mapping[str, object], path: Path, ours: Names) -> dict[str, object]:
    """Return the values of a row of the table `path` in the user's own columns, which are all columns except `ours`.

    A value of a table without types, such as a CSV, becomes a Field.
    """
    typed = not is_text(path)
    return {
        name: value if typed or value is None else Field(str(value))
        for name, value in values.items()
        if name not in ours
    }


def column_names(folder: CollectionFolder, path: Path) -> list[str]:
    """Return the columns of the table `path`, or for JSON and JSONL the keys of its first MAX_SAMPLED_ROWS rows. A
    table without rows has none, unless it is a Parquet file.

    Raises InputError if the table cannot be read, has two columns of the same name, or has rows of which none is
    usable. Raises UsageError for another kind of file.
    """
    if path.suffix.lower() == ".parquet":
        names = schema(folder, path).names
        _check_columns(path, names, ())
        return names
    first = list(islice(read_rows(folder, path, (), ()), MAX_SAMPLED_ROWS))
    names = list(dict.fromkeys(chain.from_iterable(row.values for row in first)))
    if first and not names:
        fault = first[0].fault or "empty object: it has no keys"
        raise InputError(f"{path} cannot be read. Its row {first[0].number} is rejected: {fault}. Correct this row.")
    return names


def is_text(path: Path) -> bool:
    """Return whether the table is read as CSV or TSV: its suffix is .csv, .tsv or .txt. The fields of such a table have
    no type, and blanks around the names of its columns are removed."""
    return READERS.get(path.suffix.lower()) is _read_csv


def schema(folder: CollectionFolder, path: Path) -> pa.Schema:
    """Return the columns of a Parquet file and their types, after `try_first` has read the file for trial.

    Raises InputError if the file is damaged.
    """
    try_first(path, _read_schema, folder, path)
    return _read_schema(folder, path)


def _read_schema(folder: CollectionFolder, path: Path) -> pa.Schema:
    with _refusing(path), folder.open(path, math.inf) as file:
        return pq.read_metadata(file).schema.to_arrow_schema()


def _check_columns(path: Path, present: Names, needed: Names) -> None:
    if repeated := lists.repeated_name(present):
        raise InputError(f"{path} has two columns named {repeated}. Rename one of the two.")
    if missing := sorted(set(needed) - set(present)):
        raise InputError(
            f"{path} has no column {missing[0]}. Set collection.columns to columns that the table has:"
            f" {', '.join(present)}."
        )


def _read_csv(folder: CollectionFolder, path: Path, columns: Names, needed: Names) -> Iterator[TableRow]:
    # The default limit would make the reader fail at a long field. The limit is set for the whole process.
    csv.field_size_limit(MAX_LINE_BYTES)
    with folder.open(path) as file:
        first = next(filter(str.strip, _texts(file, path)), "")
        if lists.is_utf16(first.encode("utf-8", "surrogateescape")):
            raise InputError(f"{path} is UTF-16. Save the file as UTF-8.")
        if not is_unicode(first) and lists.encoding_of(first) != "WINDOWS-1252":
            raise InputError(f"{path} has a header that is {lists.not_utf8(first)}.")
        encoding = "utf-8"
        file.seek(0)
        if not is_unicode(first) or _has_windows_1252(_texts(file, path)):
            encoding = "cp1252"
            folder.tally.notes[f"table is read as WINDOWS-1252, by its accented letters: {folder.label(path)}"] = 1
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
                    raise InputError(
                        f"{path} has a quotation mark in row {number} that is never closed. Close it, or double it"
                        " if it is a part of the text."
                    ) from None
                yield TableRow(number, {}, f"not CSV: the row cannot be read ({error})")
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
                remedy = f". Put each field with {delimiter!r} in it into double quotes" * (len(values) > len(header))
                counts = f"the row has {len(values)}, but the header has {len(header)}"
                yield TableRow(number, {}, f"wrong number of fields: {counts}{remedy}")


def _has_windows_1252(lines: Iterator[str]) -> bool:
    """Return whether the first lines of a table have letters of Windows-1252, and no other letters beyond ASCII.

    Bytes that are not UTF-8 are lone surrogates in the `lines`. A single such line may be a damaged line of UTF-8, so
    MIN_ACCENTED_LINES are needed.
    """
    accented = [line for line in islice(lines, MAX_SAMPLED_ROWS) if not line.isascii()]
    found = (not is_unicode(line) and lists.encoding_of(line) == "WINDOWS-1252" for line in accented)
    return len(accented) >= MIN_ACCENTED_LINES and all(found)


def _join_unquoted(values: list[str], delimiter: str) -> list[str]:
    """Join the fields of a row with too many delimiters into two: the name of a photo, which is the first or the last
    field, and all other fields."""
    first = len(values) - 1 if is_image(values[-1]) and not is_image(values[0]) else 1
    return [delimiter.join(part).rstrip(f"{delimiter} ") for part in (values[:first], values[first:])]


def _texts(file: BinaryIO, path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the lines of a table, each with a line feed. A first line such as `sep=;`, which is for Excel, becomes
    empty.

    Bytes that do not fit the encoding become lone surrogates, so that only their row is rejected.
    """
    lines = (line.decode(encoding, "surrogateescape") + "\n" for line in each_line(file, path))
    yield from ("\n" if SEPARATOR.fullmatch(line) else line for line in islice(lines, 1))
    yield from lines


def _delimiter(header: str) -> str:
    """Return the delimiter that divides the header of a CSV into the most columns: a comma, a semicolon, which Excel
    writes in many countries, a tab or a bar."""

    def width(delimiter: str) -> int:
        with suppress(csv.Error, StopIteration):
            return len(next(csv.reader([header], delimiter=delimiter, strict=True)))
        return 0

    return max(DELIMITERS, key=width)


def _is_quoted(lines: Iterator[str], delimiter: str) -> bool:
    """Return whether the fields of a table are quoted, so that quotation marks around a field are not part of the
    field.

    Tables with tabs or bars are often written without quoting. A sentence may then begin with a quotation mark that is
    not closed in its line. If the next line is a whole row, the table is not quoted, because in a quoted table the row
    would continue in the next line.
    """
    if delimiter not in UNQUOTED_DELIMITERS:
        return True
    width = 0
    opened = False
    for line in lines:
        if opened and line.count(delimiter) == width:
            return False
        if not width:
            width = line.count(delimiter)
        fields = line.rstrip("\n").split(delimiter)
        opened = '"' in line and len(fields) == width + 1 and any(map(_is_open, fields))
    return not opened


def _is_open(field: str) -> bool:
    """Return whether a field of a line begins with a quotation mark that is not closed at the end of the field.

    A doubled mark inside the field stands for one mark of the text, and does not close the field. Blanks around the
    field are ignored.
    """
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
                yield TableRow(number, {}, lists.not_utf8(line) if isinstance(line, bytes) else NOT_AN_OBJECT)


def _read_json(folder: CollectionFolder, path: Path, columns: Names, needed: Names) -> Iterator[TableRow]:
    if _is_jsonl(folder, path):
        yield from _read_jsonl(folder, path, columns, needed)
        return
    for number, row in enumerate(lists.json_items(folder, path), 1):
        yield TableRow(number, row) if isinstance(row, dict) else TableRow(number, {}, NOT_AN_OBJECT)


def _is_jsonl(folder: CollectionFolder, path: Path) -> bool:
    """Return whether the first line of a file is a whole JSON object, and another line follows."""
    with suppress(InputError, ValueError), folder.open(path) as file:
        first, _ = islice((line for _, line in lists.lines(file, path) if line.strip()), 2)
        return isinstance(lists.parse_json(first), dict)
    return False


def _read_parquet(folder: CollectionFolder, path: Path, columns: Names, needed: Names) -> Iterator[TableRow]:
    """Yield the rows of a Parquet file, which `try_first` has read for trial.

    Bytes that are not UTF-8 become lone surrogates, as in CSV. In an own column, only the value that has such bytes is
    lost.
    """
    try_first(path, _exhaust, folder, path, columns, needed)
    number = 0
    for names, batch in _batches(folder, path, columns, needed):
        batch_rows = zip(*batch, strict=True)
        # Free the batch before the next batch is read, so that no more memory is needed than in the trial.
        del batch
        for row in batch_rows:
            number += 1
            fields = (v.decode("utf-8", "surrogateescape") if isinstance(v, bytes) else v for v in row)
            yield TableRow(number, dict(zip(names, fields, strict=True)))


def _exhaust(folder: CollectionFolder, path: Path, columns: Names, needed: Names) -> None:
    deque(_batches(folder, path, columns, needed), maxlen=0)


def _batches(
    folder: CollectionFolder, path: Path, columns: Names, needed: Names
) -> Iterator[tuple[list[str], list[list[Any]]]]:
    """Yield the names of the columns and the values of each column, for some rows at a time.

    The numbers of rows, of values in lists and of bytes in a column are checked, because a small file can repeat one
    value any number of times. The trial limits the memory for all columns together.
    """
    with _refusing(path), folder.open(path, math.inf) as file:
        metadata = pq.read_metadata(file)
        size = os.fstat(file.fileno()).st_size
        if metadata.num_rows > FREE_ROWS + ROWS_PER_BYTE * size:
            raise InputError(
                f"{path} declares {metadata.num_rows} rows, but has only {size} bytes, so it is damaged or cannot be"
                " trusted. Write or download the file again."
            )
        present = metadata.schema.to_arrow_schema().names
        _check_columns(path, present, needed)
        names = [name for name in columns if name in present or name.removesuffix(".path") in present]
        table = pq.ParquetFile(file, metadata=metadata, read_dictionary=_text_leaves(metadata, names))
        number = 0
        # Read each row group alone, so that lists of texts with different dictionaries are not joined.
        for group in range(metadata.num_row_groups):
            for batch in table.iter_batches(BATCH_ROWS, row_groups=[group], columns=names):
                rows = f"{path}: rows {number + 1} to {number + batch.num_rows}"
                yield batch.schema.names, [plain_column(column, rows).to_pylist() for column in batch.columns]
                number += batch.num_rows


def _text_leaves(metadata: pq.FileMetaData, names: Names) -> list[str]:
    """Return the paths of the text columns, and of the texts within lists and structs, in the columns `names`."""
    leaves = map(metadata.schema.column, range(len(metadata.schema)))
    return [leaf.path for leaf in leaves if leaf.path.partition(".")[0] in names and leaf.physical_type == "BYTE_ARRAY"]


def rows_without(folder: CollectionFolder, path: Path, leaf: tuple[str, ...]) -> Collection[int]:
    """Find the rows of a Parquet file, from 1, that have null in the column `leaf`, such as (image, bytes).

    The column is read only if the statistics in the file say that the column has nulls. Otherwise the result is ().
    Raises InputError if the file is damaged.
    """
    try_first(path, _rows_without, folder, path, leaf)
    return _rows_without(folder, path, leaf)


def _rows_without(folder: CollectionFolder, path: Path, leaf: tuple[str, ...]) -> Collection[int]:
    with _refusing(path), folder.open(path, math.inf) as file:
        metadata = pq.read_metadata(file)
        leaves = [metadata.schema.column(number).path for number in range(len(metadata.schema))]
        column = leaves.index(".".join(leaf))
        counts = [metadata.row_group(group).column(column).statistics for group in range(metadata.num_row_groups)]
        if not any(count and count.null_count for count in counts):
            return ()
        fragment = ds.ParquetFileFormat().make_fragment(file)
        columns = {"null": pc.is_null(pc.field(*leaf))}
        nulls = fragment.to_table(columns=columns, batch_size=BATCH_PHOTOS, use_threads=False)["null"]
        return {row for row, is_null in enumerate(nulls.to_pylist(), 1) if is_null}


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Convert the exceptions of pyarrow in the block to an InputError."""
    try:
        yield
    except MemoryError:
        raise InputError(
            f"{path} cannot be read as Parquet, because there is not enough memory. Divide it into smaller files."
        ) from None
    except (pa.ArrowException, OSError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as Parquet ({error}). Write or download the file again.") from error


READERS: Mapping[str, Callable[..., Iterator[TableRow]]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
    ".txt": _read_csv,
    ".json": _read_json,
}
