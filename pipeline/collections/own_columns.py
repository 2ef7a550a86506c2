"""The user's own columns: what a collection says of an image beside its texts, such as a price or a date.

A column is of numbers (whole or not), truth, dates, times or text. Fields of CSV and TSV have no type of their own: a
column of them has one that fits all its fields, or else is text. A column of several types is text.
"""

import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.printable import UNSAFE
from pipeline.settings.collection import LONGEST_NAME

MOST_COLUMNS = 100
RESERVED = frozenset(
    ("image_id", "path", "member", "offset", "size", "split", "width", "height", "sha256", "merged_root")
    + ("rank", "score", "box", "text", "sentence_id")
)
"""Names of ours in tables of images and in answers."""
PREFIX = "own_"
BATCH = 1 << 16
TYPES = {
    "truth": pa.bool_(),
    "whole": pa.int64(),
    "number": pa.float64(),
    "date": pa.date32(),
    "time": pa.timestamp("us"),
    "zoned": pa.timestamp("us", "UTC"),
    "text": pa.string(),
    "field": pa.string(),
}
DAY = r"[1-9]\d{3}-\d\d-\d\d"
CLOCK = DAY + r"[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?"
PATTERNS = {
    "truth": r"(?i)true|false",
    "whole": r"-?(0|[1-9]\d{0,17})",
    "number": r"-?(0|[1-9]\d*)?(\.\d+|\d\.)?([eE][+-]?\d{1,3})?",
    "date": DAY,
    "time": CLOCK,
    "zoned": CLOCK + r"(Z|[+-]\d\d:?\d\d)",
}
"""What all fields of a column look like that is of this type. 007 is text."""


class Field(str):
    """A field of a table without types."""

    __slots__ = ()


class OwnColumns:
    """Columns that are filled value by value; `chosen` names those that are kept, None keeps all. Values of a mapping
    are what these are called here.

    A name that is ours gets PREFIX before it. What is left out is counted in `left_out`, by its reason.
    """

    def __init__(self, longest: int, chosen: Collection[str] | None = None) -> None:
        self.longest, self.chosen = longest, chosen
        self._names = chosen if isinstance(chosen, Mapping) else {}
        self.left_out: Counter[str] = Counter()
        self._columns: dict[str, _Column] = {}
        self._seen: set[int] = set()

    def add(self, row: int | None, values: Mapping[str, Any]) -> None:
        """What the collection says of the image of this row; what it says again is not kept, nor what it says of an
        image that it has not (None)."""
        if row is None:
            self.left_out["of an unknown image"] += 1
            return
        if row in self._seen:
            return
        self._seen.add(row)
        for name, value in values.items():
            if (column := self._column(name)) is None:
                continue
            kind, value = _typed(value)
            if isinstance(value, str) and (len(value) > self.longest or not _is_plain(value)):
                self.left_out[f"longer than {self.longest} characters, or not Unicode"] += 1
            elif value is not None:
                column.add(row, kind, value)

    def _column(self, name: str) -> "_Column | None":
        if name in self._columns or (self.chosen is not None and name not in self.chosen):
            return self._columns.get(name)
        called = self._names.get(name, name)
        if not isinstance(called, str) or not called.strip() or len(called) > LONGEST_NAME or UNSAFE.search(called):
            fault = f"in columns whose names are empty, longer than {LONGEST_NAME} characters, or not printable"
        elif len(self._columns) >= MOST_COLUMNS:
            fault = f"in more columns than {MOST_COLUMNS}"
        else:
            return self._columns.setdefault(name, _Column())
        self.left_out[fault] += 1
        return None

    def table(self, count: int) -> pa.Table:
        """The columns of `count` images, in the order in which they were named first."""
        table: dict[str, pa.Array] = {}
        names = {name: self._names.get(name, name) for name in self._columns}
        for name, column in self._columns.items():
            stored = names[name]
            while stored in RESERVED or stored in table or (stored != names[name] and stored in names.values()):
                stored = PREFIX + stored
            table[stored] = column.values(count)
        return pa.table(table) if table else pa.table({"": pa.nulls(count)}).select([])

    def describe(self, table: pa.Table) -> Iterator[str]:
        """What became of them, in lines for the user; `table` is what they are in."""
        if table.num_columns:
            yield "own columns: " + ", ".join(f"{field.name} ({field.type})" for field in table.schema)
        for reason, number in self.left_out.items():
            yield f"  {number} values of own columns left out: {reason}"
        for name in self.chosen or ():
            if name not in self._columns:
                yield f"  no image has a value in the column {name}, which own_columns names"
        for name, column in self._columns.items():
            if len(column.kinds) > 1 and column.kinds != {"whole", "number"}:
                yield f"  the column {name} has several types ({', '.join(sorted(column.kinds))}) and is kept as text"
            if (called := self._names.get(name, name)) in RESERVED:
                yield f"  the column {name} is called {PREFIX}{called} here, since {called} is a column of ours"


class _Column:
    """Values of some rows."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self._rows: list[int] = []
        self._values: list[tuple[str, Any]] = []
        self._packed: list[tuple[np.ndarray, str, pa.Array]] = []

    def add(self, row: int, kind: str, value: Any) -> None:
        self.kinds.add(kind)
        self._rows.append(row)
        self._values.append((kind, value))
        if len(self._rows) == BATCH:
            self._pack()

    def _pack(self) -> None:
        rows, kinds = np.array(self._rows, np.int64), np.array([kind for kind, _ in self._values])
        for kind in sorted(set(kinds)):
            own = np.flatnonzero(kinds == kind)
            self._packed.append((rows[own], kind, pa.array([self._values[at][1] for at in own], TYPES[kind])))
        self._rows, self._values = [], []

    def values(self, count: int) -> pa.Array:
        """(count,) the values of rows 0 to count - 1, null where there is none."""
        if self._rows:
            self._pack()
        if not self._packed:
            return pa.nulls(count, pa.string())
        kind = next(iter(self.kinds)) if len(self.kinds) == 1 else "text"
        if self.kinds == {"whole", "number"}:
            kind = "number"
        parts = [part.cast(TYPES[kind], safe=False) for _, _, part in self._packed]
        values = pa.concat_arrays(parts)
        if kind == "field":
            values = _guess(values)
        places = np.full(count, -1)
        places[np.concatenate([rows for rows, _, _ in self._packed])] = np.arange(len(values))
        return values.take(pa.array(places, mask=places < 0))


def _typed(value: Any) -> tuple[str, Any]:
    """A value and its kind, one of TYPES; None for what is missing."""
    if value is None or value == "":
        return "text", None
    if isinstance(value, Field):
        return "field", value.strip() or None
    if isinstance(value, bool):
        return "truth", value
    if isinstance(value, int):
        return ("whole", value) if -(2**63) <= value < 2**63 else ("text", str(value))
    if isinstance(value, float | Decimal):
        return "number", float(value) if math.isfinite(value) else None
    if isinstance(value, datetime):
        return ("zoned", value.astimezone(UTC)) if value.tzinfo else ("time", value)
    if isinstance(value, date):
        return "date", value
    if isinstance(value, list | dict):
        return "text", json.dumps(value, ensure_ascii=False, default=str)
    return "text", str(value)


def _guess(fields: pa.Array) -> pa.Array:
    """The fields of a column as values of the first type that fits them all, else as they are."""
    for kind, pattern in PATTERNS.items():
        if pc.all(pc.match_substring_regex(fields, f"^({pattern})$")).as_py():
            try:
                found = pc.utf8_lower(fields).cast(TYPES[kind]) if kind == "truth" else fields.cast(TYPES[kind])
            except pa.ArrowInvalid:  # 2024-02-30
                continue
            if kind != "number" or pc.all(pc.is_finite(found)).as_py():
                return found
    return fields


def _is_plain(text: str) -> bool:
    if "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
