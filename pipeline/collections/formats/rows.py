"""The rows of CSV, TSV, JSONL and Parquet tables, whatever they mean."""

import csv
import io
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.collections.formats import files
from pipeline.collections.records import NOT_UTF8
from pipeline.errors import InputError, UsageError

LARGEST_FIELD = 1 << 30


class Row(NamedTuple):
    """A row by its number from 1 (the first line, in text): its values by column, or none and the fault."""

    number: int
    values: Mapping[str, Any]
    fault: str = ""


def read_rows(path: Path, columns: Collection[str], needed: Collection[str]) -> Iterator[Row]:
    """The rows of the table `path`, at least with those of `columns` that it has.

    Raises InputError where it lacks one that is `needed` or cannot be read, UsageError for another kind of file.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise UsageError(f"{path} is not a table that can be read: there are {', '.join(READERS)}")
    return reader(path, columns, needed)


def _check_columns(path: Path, present: Collection[str], needed: Collection[str]) -> None:
    if missing := sorted(set(needed) - set(present)):
        raise InputError(f"{path} has no column {missing[0]}; name one of {', '.join(present)} in collection.columns")


def _read_csv(path: Path, columns: Collection[str], needed: Collection[str]) -> Iterator[Row]:
    csv.field_size_limit(LARGEST_FIELD)  # of the process; the usual one would end the file at its first long field
    # Bytes that are not UTF-8 become lone surrogates, for which intake refuses their own row and no other.
    with io.TextIOWrapper(files.open_binary(path), "utf-8-sig", "surrogateescape", newline="\n") as file:
        lines = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
        header: list[str] = []
        while True:
            number = lines.line_num + 1
            try:
                values = next(lines)
            except StopIteration:
                return
            except csv.Error as error:
                if "unexpected end of data" in str(error):
                    raise InputError(f"{path}: the quotation mark opened in row {number} is never closed") from None
                yield Row(number, {}, f"not CSV: {error}")
                continue
            if not header:
                _check_columns(path, header := values, needed)
            elif len(values) == len(header):
                yield Row(number, dict(zip(header, values, strict=True)))
            elif values:
                yield Row(number, {}, f"{len(values)} fields, not {len(header)}")


def _read_jsonl(path: Path, columns: Collection[str], needed: Collection[str]) -> Iterator[Row]:
    for number, line in files.lines(path):
        try:
            value = None if line is None else files.parse_json(line)
        except ValueError as error:
            yield Row(number, {}, f"not JSON: {error}")
            continue
        if isinstance(value, dict):
            yield Row(number, value)
        else:
            yield Row(number, {}, NOT_UTF8 if line is None else "not a JSON object")


def _read_parquet(path: Path, columns: Collection[str], needed: Collection[str]) -> Iterator[Row]:
    try:
        with pq.ParquetFile(path) as table:
            present = table.schema_arrow.names
            _check_columns(path, present, needed)
            number = 0
            for batch in table.iter_batches(columns=[name for name in columns if name in present]):
                # Text is taken as bytes, so that one bad sentence does not make a whole batch unreadable.
                values = [c.cast(pa.large_binary()) if _is_text(c.type) else c for c in batch.columns]
                for row in zip(*(column.to_pylist() for column in values), strict=True):
                    number += 1
                    yield _decoded(number, dict(zip(batch.schema.names, row, strict=True)))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {error}") from error


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _decoded(number: int, values: Mapping[str, Any]) -> Row:
    try:
        return Row(number, {name: v.decode() if isinstance(v, bytes) else v for name, v in values.items()})
    except UnicodeDecodeError:
        return Row(number, {}, NOT_UTF8)


READERS: Mapping[str, Callable[..., Iterator[Row]]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}
