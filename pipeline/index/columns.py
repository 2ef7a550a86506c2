"""The columns of a table, and values to compare them with."""

import difflib
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple

import pyarrow as pa

from pipeline.errors import UsageError
from pipeline.storage.tables import SHARD

OURS = frozenset(("image_id", "path", "member", "offset", "size", "split", "width", "height", "sha256", SHARD, "box"))
"""The columns of a table of images that are not the user's own."""
ASKED = ("split", "width", "height")
"""Those of OURS that a condition is likely to be about."""
TIME = pa.timestamp("us")
LARGE_INTEGER = pa.decimal128(20, 0)
"""A type for all whole numbers of 64 bits, with a sign or without."""
SEEN, EXAMPLES = 1000, 3
"""Values of a column of text that are looked at for an error, and as many different ones that it shows."""


LIKE = {"numbers": "1234.5", "dates": "2024-01-31", "truth": "true"}


class Column(NamedTuple):
    """The name of a column in a condition."""

    name: str


Value = str | float | bool | None
"""A literal in a condition."""

Operand = Column | Value
"""What a condition compares."""


def values_of(table: pa.Table, column: Column, kind: str | None = None) -> pa.ChunkedArray:
    """The values of a column, which are of the `kind` where one is given."""
    names = table.column_names
    if column.name not in names:
        near = difflib.get_close_matches(column.name, names, 1)
        meant = f"; did you mean {near[0]}" if near else ""
        raise UsageError(f"there is no column {column.name[:80]!r}{meant}; there are {', '.join(names)}")
    values = table[column.name]
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.string()).cast(pa.float64())  # directly, 19.90 would not become 19.9
    if kind_of(values.type) == "text":
        values = values.cast(pa.string())
    if kind and kind_of(values.type) != kind:
        raise _mismatch(column.name, values, kind)
    return values


def asked_columns(table: pa.Table) -> dict[str, str]:
    """What a condition on a table of images can be about: name -> kind, the user's own columns first."""
    users = [name for name in table.column_names if name not in OURS]
    names = [*users, *(name for name in ASKED if name in table.column_names)]
    return {name: kind_of(table.schema.field(name).type) for name in names}


def kind_of(data: pa.DataType) -> str:
    """What a condition compares values of a type with: numbers, truth, dates, text, or nothing."""
    if pa.types.is_dictionary(data):
        return kind_of(data.value_type)
    if pa.types.is_boolean(data):
        return "truth"
    if pa.types.is_integer(data) or pa.types.is_floating(data) or pa.types.is_decimal(data):
        return "numbers"
    if pa.types.is_date(data) or pa.types.is_timestamp(data):
        return "dates"
    is_text = pa.types.is_string(data) or pa.types.is_large_string(data) or pa.types.is_string_view(data)
    return "text" if is_text else "nothing"


def comparable(table: pa.Table, left: Operand, right: Operand) -> list[pa.ChunkedArray | pa.Scalar]:
    """Return two operands, at least one of them a column, as Arrow values of one type."""
    column = left if isinstance(left, Column) else right
    assert isinstance(column, Column)
    values = values_of(table, column)
    kind = kind_of(values.type)
    sides = [
        values_of(table, side, kind) if isinstance(side, Column) else _scalar(side, kind, column.name, values)
        for side in (left, right)
    ]
    if kind == "dates":
        return [side.cast(TIME, safe=side.type != pa.timestamp("ns", getattr(side.type, "tz", None))) for side in sides]
    if kind == "numbers" and any(pa.types.is_floating(side.type) for side in sides):
        return [side.cast(pa.float64(), safe=False) for side in sides]  # a whole number may need more digits
    if kind == "numbers" and any(pa.types.is_uint64(side.type) for side in sides):
        return [side.cast(LARGE_INTEGER) for side in sides]
    return sides


def _scalar(value: Value, kind: str, column: str, values: pa.ChunkedArray) -> pa.Scalar:
    """A literal that is compared with a column of this kind, which has these values."""
    literal = {bool: "truth", str: "text"}.get(type(value), "numbers")
    if kind == "dates" and isinstance(value, str):
        try:
            date = datetime.fromisoformat(value)
            return pa.scalar(date.astimezone(UTC).replace(tzinfo=None) if date.tzinfo else date, TIME)
        except (ValueError, OverflowError):
            raise UsageError(f"{value[:40]!r} is not a date like '2024-01-31'; {column} holds dates") from None
    if literal != kind:
        raise _mismatch(column, values, literal)
    return pa.scalar(value, pa.uint64() if isinstance(value, int) and value >= 1 << 63 else None)


def _mismatch(column: str, values: pa.ChunkedArray, kind: str) -> UsageError:
    """For a column with these values that is compared with values of another kind."""
    holds = kind_of(values.type)
    if values.null_count == len(values):
        return UsageError(f"the column {column} has no values to compare with {kind}")
    if holds == "nothing":
        return UsageError(
            f"the column {column} holds values of the type {values.type}, of which a condition can only ask whether"
            f" they are missing: {column} is None"
        )
    if holds != "text":
        return UsageError(
            f"the column {column} holds {holds}, not {kind}; compare it with one like {LIKE.get(holds, 'null')}"
        )
    texts = dict.fromkeys(filter(None, values.slice(0, SEEN).to_pylist()))
    examples = ", ".join(repr(text[:40]) for text in islice(texts, EXAMPLES)) or "nothing"
    return UsageError(
        f"the column {column} holds text such as {examples}, not {kind}; if its values are {kind}, write all of them"
        f" like {LIKE.get(kind, 'the first')} in the collection and run ingest again, which says how it reads each"
        " column"
    )
