"""The columns of a table, and values to compare them with."""

import difflib
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa

from pipeline.errors import UsageError

OURS = frozenset(
    ("image_id", "path", "member", "offset", "size", "split", "width", "height", "sha256", "bundle", "box")
)
"""The columns of a table of images that are not the user's own."""
ASKED = ("split", "width", "height")
"""Those of OURS that a condition is likely to be about."""
TIME = pa.timestamp("us")
SEEN, EXAMPLES = 1000, 3
"""Values of a column of text that are looked at for an error, and as many different ones that it shows."""


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
        raise _mismatch(column.name, values, kind)
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
            sides.append(_scalar(one, kind, other.name, columns[0]))
    if kind == "dates":
        return tuple(side.cast(TIME) for side in sides)
    if kind == "numbers" and any(pa.types.is_floating(side.type) for side in sides):
        return tuple(side.cast(pa.float64(), safe=False) for side in sides)  # a whole number may need more digits
    return sides[0], sides[1]


def _scalar(value: Any, kind: str, column: str, values: pa.ChunkedArray) -> pa.Scalar:
    """A literal that is compared with a column of this kind, which has these values."""
    found = {bool: "truth", str: "text"}.get(type(value), "numbers")
    if kind == "dates" and found == "text":
        try:
            given = datetime.fromisoformat(value)
            given = given.astimezone(UTC).replace(tzinfo=None) if given.tzinfo else given
        except (ValueError, OverflowError):
            raise UsageError(f"{value[:40]!r} is not a date like '2024-01-31'; {column} holds dates") from None
        return pa.scalar(given, TIME)
    if found != kind:
        raise _mismatch(column, values, found, value)
    return pa.scalar(value)


def _mismatch(column: str, values: pa.ChunkedArray, kind: str, value: Any = None) -> UsageError:
    """For a column with these values that is compared with the `value` of another kind, or with a column of one."""
    own = kind_of(values.type)
    if own != "text":
        suited = {"numbers": "a number", "truth": "true or false", "dates": "a date like '2024-01-31'"}
        other = f"{kind}, as {value!r} is" if value is not None else kind
        return UsageError(f"the column {column} holds {own}, not {other}; compare it with {suited.get(own, 'null')}")
    texts = dict.fromkeys(filter(None, values.slice(0, SEEN).to_pylist()))
    examples = ", ".join(repr(text[:40]) for text in islice(texts, EXAMPLES))
    written = {"numbers": "like 1234.5", "dates": "like 2024-01-31", "truth": "as true or false"}
    return UsageError(
        f"the column {column} holds text such as {examples or 'nothing'}, so it cannot be compared with {kind}; if its"
        f" values are {kind}, write all of them {written.get(kind, 'alike')} in the collection and run ingest again,"
        " which says how it reads each column"
    )
