"""The columns of a table, and values to compare them with."""

import difflib
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa

from pipeline.errors import UsageError

OURS = frozenset(
    ("image_id", "path", "member", "offset", "size", "split", "width", "height", "sha256", "merged_root", "box")
)
"""The columns of a table of images that are not the user's own."""
ASKED = ("split", "width", "height")
"""Those of OURS that a condition is likely to be about."""
TIME = pa.timestamp("us")


class Column(NamedTuple):
    name: str


def values_of(table: pa.Table, column: Column, kind: str | None = None) -> pa.ChunkedArray:
    """The values of a column, which are of the `kind` where one is given."""
    names = table.column_names
    if column.name not in names:
        near = difflib.get_close_matches(column.name, names, 1)
        meant = f"; did you mean {near[0]}" if near else ""
        raise UsageError(f"there is no column {column.name[:80]!r}{meant}; there are {', '.join(names)}")
    values = table[column.name]
    if kind and kind_of(values.type) != kind:
        raise UsageError(f"the column {column.name} holds {kind_of(values.type)}, not {kind}; compare it with some")
    return values


def asked_columns(table: pa.Table) -> dict[str, str]:
    """What a condition on a table of images can be about: name -> kind, the user's own columns first."""
    own = [name for name in table.column_names if name not in OURS]
    names = [*own, *(name for name in ASKED if name in table.column_names)]
    return {name: kind_of(table.schema.field(name).type) for name in names}


def kind_of(data: pa.DataType) -> str:
    """What a condition compares values of a type with: numbers, truth, dates, text, or nothing."""
    if pa.types.is_boolean(data):
        return "truth"
    if pa.types.is_integer(data) or pa.types.is_floating(data):
        return "numbers"
    if pa.types.is_date(data) or pa.types.is_timestamp(data):
        return "dates"
    return "text" if pa.types.is_string(data) or pa.types.is_large_string(data) else "nothing"


def comparable(table: pa.Table, left: Any, right: Any) -> tuple[Any, Any]:
    """Two operands, at least one of them a column, as Arrow values of one type."""
    columns = [values_of(table, one) for one in (left, right) if isinstance(one, Column)]
    kind = kind_of(columns[0].type)
    sides = []
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Column):
            sides.append(values_of(table, one, kind))
        else:
            sides.append(_scalar(one, kind, other.name))
    if kind == "dates":
        return tuple(side.cast(TIME) for side in sides)
    if kind == "numbers" and any(pa.types.is_floating(side.type) for side in sides):
        return tuple(side.cast(pa.float64(), safe=False) for side in sides)  # a whole number may need more digits
    return sides[0], sides[1]


def _scalar(value: Any, kind: str, column: str) -> pa.Scalar:
    """A literal that is compared with a column of this kind."""
    found = {bool: "truth", str: "text"}.get(type(value), "numbers")
    if kind == "dates" and found == "text":
        try:
            given = datetime.fromisoformat(value)
            given = given.astimezone(UTC).replace(tzinfo=None) if given.tzinfo else given
        except (ValueError, OverflowError):
            raise UsageError(f"{value[:40]!r} is not a date like '2024-01-31'; {column} holds dates") from None
        return pa.scalar(given, TIME)
    if found != kind:
        quoted = {"text": f"'{value}'", "numbers": "a number", "truth": "true or false", "dates": "'2024-01-31'"}
        raise UsageError(f"the column {column} holds {kind}; compare it with {quoted.get(kind, 'null')}, not {value!r}")
    return pa.scalar(value)
