"""Reads untrusted Parquet files: the types, sizes and values of columns, and photos, which are read row by row."""

import os
import threading
from collections.abc import Iterator
from datetime import date
from importlib import import_module

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import InputError

pc = import_module("pyarrow.compute")
"""The functions of pyarrow.compute. They are generated at import time, so a type checker does not know them."""

VALUE_BYTES = {"BOOLEAN": 0.125, "INT32": 4, "FLOAT": 4, "BYTE_ARRAY": 4}
"""Smallest number of bytes of a value in memory, by physical type. All other types have 8 bytes, except
FIXED_LEN_BYTE_ARRAY, whose length is in the schema."""
PHOTO_COLUMNS = ("image", "img", "photo", "photograph", "picture", "jpg", "jpeg", "png", "webp", "image_bytes")
"""Usual names of the column of photos, in lower case."""
BATCH_PHOTOS = 32
"""Number of photos that are in memory at once."""
MAX_BATCH_VALUES = 1 << 22
"""Largest number of values in a column of a batch. A row may contain a list of values. More values are an error."""
MAX_BATCH_BYTES = 1 << 28
"""Largest number of bytes of a column of a batch, after texts from a dictionary are repeated in each row. More bytes
are an error."""
LIST_TYPES = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
TEXT_TYPES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
FIRST_DAY = date.min.toordinal() - date(1970, 1, 1).toordinal()
"""The first day that Python can represent, as a number of days after 1 January 1970. It is negative."""
END_DAY = date.max.toordinal() - date(1970, 1, 1).toordinal() + 1
"""The day after the last day that Python can represent, as a number of days after 1 January 1970."""
UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def plain_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type to which the values of a column of the type `kind` are converted, or None if Python or JSON
    cannot express them."""
    types = pa.types
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if is_string(kind):
        return pa.string()
    if types.is_decimal(kind) or types.is_float16(kind):
        return pa.float64()
    if types.is_date(kind):
        return pa.date32()
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    if types.is_nested(kind) and not types.is_map(kind) and not types.is_union(kind):
        inner_types = [kind.field(number).type for number in range(kind.num_fields)]
        return (
            kind if all(plain_type(inner) == inner and not types.is_temporal(inner) for inner in inner_types) else None
        )
    plain = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_null(kind)
    return kind if plain else None


def is_string(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def unpacked_bytes(about: pq.FileMetaData) -> int:
    """Return the smallest possible unpacked size of a Parquet file in bytes, according to its metadata."""
    columns = [
        (group.column(number), _width_of(about.schema.column(number)))
        for group in map(about.row_group, range(about.num_row_groups))
        for number in range(group.num_columns)
    ]
    values = sum(int(column.num_values * width) for column, width in columns)
    return max(values, sum(column.total_uncompressed_size for column, _ in columns))


def _width_of(field: pq.ColumnSchema) -> float:
    """Return the smallest number of bytes that a value of a column needs in memory."""
    return field.length if field.physical_type == "FIXED_LEN_BYTE_ARRAY" else VALUE_BYTES.get(field.physical_type, 8)


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which the values of a column are stored.

    It is the list type for an extension type such as a tensor, the type of the values for a dictionary (a category),
    and `kind` itself for any other type.
    """
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def dictionary_bytes(column: pa.Array) -> int:
    """Return the number of bytes of an array after its dictionary codes are replaced by their values."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _dictionary_values_bytes(column)
    if pa.types.is_struct(kind):
        return sum(map(dictionary_bytes, column.flatten()))
    if pa.types.is_nested(kind):
        return column.nbytes + dictionary_bytes(column.flatten())
    return column.nbytes


def _dictionary_values_bytes(column: pa.DictionaryArray) -> int:
    texts = column.dictionary
    if not (len(texts) and len(column)):
        return 0
    large = pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type)
    offsets = np.frombuffer(texts.buffers()[1], np.int64 if large else np.int32)
    lengths = np.diff(offsets[texts.offset : texts.offset + len(texts) + 1]).astype(np.int64)
    rows = column.indices.to_numpy(zero_copy_only=False)
    if column.null_count:  # numpy converts integers with nulls to floating-point numbers
        rows = rows[~np.isnan(rows)].astype(np.int64)
    return int(lengths[rows].sum()) + 4 * len(column)


def plain_column(column: pa.Array, rows: str) -> pa.Array:
    """Convert a column to values that Python can represent. Texts, which are read as a dictionary, become bytes, so
    that a text that is not UTF-8 affects only its row.

    `rows` describes the rows for messages. Raises InputError if the rows have lists of too many values, or too much
    text.
    """
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if (count := _count_values(column)) > MAX_BATCH_VALUES:
        raise InputError(
            f"{rows} have lists with {count} values in total, but only {MAX_BATCH_VALUES} are allowed. Shorten the"
            " lists."
        )
    if (size := dictionary_bytes(column)) > MAX_BATCH_BYTES:
        raise InputError(
            f"{rows} have {size} bytes in one column, but only {MAX_BATCH_BYTES} are allowed. Shorten the texts."
        )
    if not pa.types.is_dictionary(column.type):
        return _representable(column)
    values = column.dictionary
    if any(is_text(values.type) for is_text in TEXT_TYPES):
        return values.cast(pa.large_binary()).take(column.indices)
    return _representable(values.take(column.indices))


def _count_values(column: pa.Array) -> int:
    """Return the largest number of values in a column or within its lists and structs."""
    if any(is_list(column.type) for is_list in LIST_TYPES):
        return _count_values(column.flatten())
    if pa.types.is_struct(column.type):
        return max(map(_count_values, column.flatten()), default=0)
    return len(column)


def _representable(column: pa.Array) -> pa.Array:
    """Convert dates and times to values that Python can represent, and return other columns unchanged.

    Dates are in days, and times are in microseconds, in UTC if they have a zone. Values outside the years 1 to 9999
    become null. Times of day become text, and durations seconds.
    """
    kind = column.type
    if pa.types.is_time(kind):
        return pc.replace_substring_regex(column.cast(pa.string()), r"\.0+$", "")
    if pa.types.is_duration(kind):
        return pc.divide(column.view(pa.int64()).cast(pa.float64(), safe=False), UNITS_PER_SECOND[kind.unit])
    if pa.types.is_date(kind):
        per_day = 1 if kind == pa.date32() else 86_400_000
        wanted = pa.date32()
    elif pa.types.is_timestamp(kind):
        zone = "UTC" if kind.tz else None
        per_day = 86_400 * UNITS_PER_SECOND[kind.unit]
        wanted = pa.timestamp("us", zone)
        kind = pa.timestamp(kind.unit, zone)
    else:
        return column
    integer = pa.int32() if kind == pa.date32() else pa.int64()
    counts = column.view(integer)
    first = max(FIRST_DAY * per_day, -(2**63))
    last = min(END_DAY * per_day, 2**63) - 1
    known = pc.and_(pc.greater_equal(counts, first), pc.less_equal(counts, last))
    return pc.if_else(known, counts, pa.scalar(None, integer)).view(kind).cast(wanted, safe=False)


def photograph_column(schema: pa.Schema) -> str | None:
    """Return the column that holds encoded photos, or None if there is no such column.

    A column of photos has structs with a field `bytes` (and `path`), or it has bytes and one of the names in
    PHOTO_COLUMNS. Among several such columns, the column whose name comes first in PHOTO_COLUMNS counts, or else the
    first column.
    """
    candidates = []
    for field in schema:
        inner = field.type if pa.types.is_struct(field.type) else ()
        has_bytes = any(part.name == "bytes" and _is_binary(part.type) for part in inner)
        if has_bytes or (_is_binary(field.type) and field.name.lower() in PHOTO_COLUMNS):
            candidates.append(field.name)
    named = {name.lower(): name for name in reversed(candidates)}
    return next((named[name] for name in PHOTO_COLUMNS if name in named), next(iter(candidates), None))


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)


class ParquetPhotographs:
    """A reader of the photos of one Parquet file after another.

    Photos that are read in ascending order of the rows are unpacked once. To read a row before the batch that is in
    memory, all rows before it in its row group are unpacked again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state: tuple[int, ...] = ()
        self._column = ""
        self._struct = False
        self._file: pq.ParquetFile | None = None
        self._group_ends = np.zeros(0, int)  # number of rows up to the end of each row group
        self._group = -1
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._first = 0
        self._values: pa.Array = pa.nulls(0)

    def read(self, descriptor: int, row: int) -> bytes:
        """Return the encoded photo in the `row` (from 0) of an open file. Raises InputError if the row has no photo, or
        if the file cannot be read."""
        with self._lock:
            try:
                status = os.fstat(descriptor)
                state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
                if state != self._state:
                    self._open(os.dup(descriptor))
                    self._state = state
                value = self._find(row)
            except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError, LookupError) as error:
                self._state = ()
                raise InputError(
                    f"unreadable: row {row + 1} of the Parquet file cannot be read ({error}). Write the file again"
                ) from error
        if not value:
            raise InputError(
                f"missing: row {row + 1} of the Parquet file has no photo in the column {self._column}. Remove the row"
            )
        return value

    def _open(self, descriptor: int) -> None:
        file = os.fdopen(descriptor, "rb")
        schema = pq.read_schema(file)
        self._column = photograph_column(schema) or ""
        self._struct = bool(self._column) and pa.types.is_struct(schema.field(self._column).type)
        if not self._column:
            raise ValueError("the file has no column of photos")
        self._file = pq.ParquetFile(file, read_dictionary=[self._leaf])  # A repeated value is in memory only once.
        groups = range(self._file.metadata.num_row_groups)
        self._group_ends = np.cumsum([self._file.metadata.row_group(number).num_rows for number in groups], dtype=int)
        self._group = -1
        self._values = pa.nulls(0)

    @property
    def _leaf(self) -> str:
        return f"{self._column}.bytes" if self._struct else self._column

    def _find(self, row: int) -> bytes | None:
        assert self._file is not None
        count = self._group_ends[-1] if len(self._group_ends) else 0
        if not 0 <= row < count:
            raise LookupError(f"the file has only {count} rows")
        group = int(np.searchsorted(self._group_ends, row, "right"))
        if group != self._group or row < self._first:
            self._group = group
            self._batches = self._file.iter_batches(BATCH_PHOTOS, row_groups=[group], columns=[self._leaf])
            self._first = int(self._group_ends[group - 1]) if group else 0
            self._values = pa.nulls(0)
        while row >= self._first + len(self._values):
            self._first += len(self._values)
            if (batch := next(self._batches, None)) is None:
                raise LookupError(f"row group {group} ends before its last row")
            self._values = batch.column(0)
        value = self._values[row - self._first].as_py()
        return value["bytes"] if self._struct and value is not None else value
