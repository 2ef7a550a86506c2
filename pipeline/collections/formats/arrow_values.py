"""The values of an Arrow column as Python has them."""

from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import InputError

LARGEST_BATCH = 1 << 28
"""Bytes of text in one column of a batch: a dictionary can hold a long text once and refer to it in every row."""
MOST_VALUES = 1 << 22  # values in one column of a batch, whose rows may hold lists
LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
DAYS = (date.min.toordinal() - date(1970, 1, 1).toordinal(), date.max.toordinal() - date(1970, 1, 1).toordinal() + 1)
"""The first day that Python has and the one after the last, from 1970 on."""
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Of a timestamp, in a second."""


def plain_column(path: Path, before: int, column: pa.Array) -> pa.Array:
    """A column of the rows after the first `before`, with values that Python has; text as bytes, so that a bad sentence
    costs only its own row. Raises InputError if its texts are too long to be unpacked."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    flat = column
    while any(is_list(flat.type) for is_list in LISTS):
        flat = flat.flatten()
    rows = f"{path}: rows {before + 1} to {before + len(column)}"
    if len(flat) > MOST_VALUES:
        raise InputError(f"{rows} have lists of {len(flat)} values, more than {MOST_VALUES}")
    texts = pa.types.is_dictionary(flat.type) and any(is_text(flat.type.value_type) for is_text in TEXTS)
    if texts:
        total = pc.sum(pc.binary_length(flat.dictionary).take(flat.indices)).as_py() or 0
        if total > LARGEST_BATCH:
            raise InputError(f"{rows} have {total} bytes of text, more than {LARGEST_BATCH}")
    if pa.types.is_dictionary(column.type):
        values = column.dictionary.take(column.indices)
        return values.cast(pa.large_binary()) if texts else _as_python_has(values)
    return _as_python_has(column)


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type of a column's values: of a tensor that of its lists, of a dictionary (a category) of its entries."""
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _as_python_has(column: pa.Array) -> pa.Array:
    """Dates in days, and times in microseconds, of UTC where they have a zone: as Python has them, and null what lies
    outside the years 1 to 9999. Other columns as they are."""
    kind = column.type
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
