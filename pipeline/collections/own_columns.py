"""The user's own columns: what a collection says of an image beside its texts, such as a price or a date, and what is
seen of the image itself: its folder, when it was taken, and by which camera.

A column is of numbers (whole or not), truth, dates, times or text. Fields of CSV and TSV have no type of their own: a
column of them has one that fits all its fields, or else is text (`field_readings`). A column of several types is text.
"""

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from pipeline.collections.field_readings import TYPES, FieldReadings
from pipeline.collections.records import is_unicode
from pipeline.config.collection import LONGEST_NAME
from pipeline.printable import UNSAFE

MOST_COLUMNS = 100
RESERVED = frozenset(
    ("image_id", "path", "member", "offset", "size", "split", "width", "height", "sha256", "bundle")
    + ("rank", "score", "box", "text", "sentence_id")
)
"""Names of ours in tables of images and in answers."""
PREFIX = "own_"
FROM_ISO = {"date": date.fromisoformat, "time": datetime.fromisoformat, "zoned": datetime.fromisoformat}
HOSTILE = "hostile"
"""Of a value that is left out."""
BLOCK = 1 << 15
"""Images that are seen together."""


class Field(str):
    """A field of a table without types."""

    __slots__ = ()


class OwnColumns:
    """Columns that are filled image by image; `chosen` names those that are kept, None keeps all. Values of a mapping
    are what these are called here.

    What is said of an image is packed into a text. All of these are seen once, for the columns and their types, before
    any becomes a row of a `table`. A name that is ours gets PREFIX before it. What is left out is counted in
    `left_out`, by its reason.
    """

    def __init__(self, longest: int, chosen: Collection[str] | None = None) -> None:
        self.longest = longest
        self.chosen = chosen
        self._names = chosen if isinstance(chosen, Mapping) else {}
        self.left_out: Counter[str] = Counter()
        self._columns: dict[str, _Column] = {}

    def leave_out(self, reason: str, count: int = 1) -> None:
        self.left_out[reason] += count

    def pack(self, values: Mapping[str, Any]) -> str:
        """What a collection says of an image, as a text."""
        names = values if self.chosen is None else filter(self.chosen.__contains__, values)
        return json.dumps([(name, *self._plain(values[name])) for name in names])

    def _plain(self, value: Any) -> tuple[str, Any]:
        kind, value = _typed(value)
        if isinstance(value, str) and (len(value) > self.longest or "\0" in value or not is_unicode(value)):
            return HOSTILE, None
        return kind, value.isoformat() if isinstance(value, date) else value

    def see(self, packed: Iterable[str]) -> None:
        """All that the collection says, in its order."""
        packed = iter(packed)
        while block := list(islice(packed, BLOCK)):
            fields: dict[str, list[str]] = {}
            for name, kind, value in chain.from_iterable(map(json.loads, block)):
                if (column := self._column(name)) is None:
                    continue
                if kind == HOSTILE:
                    self.leave_out(f"longer than {self.longest} characters, or not Unicode")
                elif value is not None:
                    column.kinds.add(kind)
                    if kind == "field":
                        fields.setdefault(name, []).append(value)
            for name, texts in fields.items():
                self._columns[name].readings.narrow(pa.array(texts, pa.string()))

    def _column(self, name: str) -> "_Column | None":
        if name in self._columns:
            return self._columns[name]
        called = self._names.get(name, name)
        if not isinstance(called, str) or not called.strip() or len(called) > LONGEST_NAME or UNSAFE.search(called):
            self.leave_out(f"in columns whose names are empty, longer than {LONGEST_NAME} characters, or not printable")
        elif len(self._columns) >= MOST_COLUMNS:
            self.leave_out(f"in more columns than {MOST_COLUMNS}")
        else:
            return self._columns.setdefault(name, _Column())
        return None

    def __contains__(self, name: str) -> bool:
        """Whether there is such a column so far."""
        return name in self._columns

    def table(self, *packed: Sequence[str | None]) -> pa.Table:
        """A row for each image, of all that is said of it: the columns in the order in which they were named first,
        with null where there is no value."""
        cells: dict[str, list[tuple[str, Any]]] = {name: [("text", None)] * len(packed[0]) for name in self._columns}
        for row, texts in enumerate(zip(*packed, strict=True)):
            for name, kind, value in chain.from_iterable(json.loads(text) for text in texts if text):
                if name in cells and kind != HOSTILE:
                    cells[name][row] = kind, value
        arrays = [column.array(cells[name]) for name, column in self._columns.items()]
        return pa.table(arrays, schema=self.schema()) if arrays else pa.table({})

    def schema(self) -> pa.Schema:
        fields: dict[str, pa.DataType] = {}
        names = {name: self._names.get(name, name) for name in self._columns}
        for name, column in self._columns.items():
            stored = names[name]
            while stored in RESERVED or stored in fields or (stored != names[name] and stored in names.values()):
                stored = PREFIX + stored
            fields[stored] = TYPES[column.kind]
        return pa.schema(list(fields.items()))

    def describe(self) -> Iterator[str]:
        """What became of them, in lines for the user."""
        if self._columns:
            yield "columns to filter by: " + ", ".join(f"{field.name} ({field.type})" for field in self.schema())
        for reason, number in self.left_out.items():
            yield f"  {number} values of own columns left out: {reason}"
        for name in self.chosen or ():
            if name not in self._columns:
                yield f"  no image has a value in the column {name}, which own_columns names"
        for name, column in self._columns.items():
            if len(column.kinds) > 1 and column.kinds != {"whole", "number"}:
                yield f"  the column {name} has several types ({', '.join(sorted(column.kinds))}) and is kept as text"
            if column.kinds == {"field"} and (note := column.readings.note):
                yield f"  the column {name} {note}"
            if (called := self._names.get(name, name)) in RESERVED:
                yield f"  the column {name} is called {PREFIX}{called} here, since {called} is a column of ours"


class _Column:
    """The kinds of a column's values, and how those of its fields that have no type can be read."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self.readings = FieldReadings()

    @property
    def kind(self) -> str:
        if self.kinds == {"whole", "number"}:
            return "number"
        if self.kinds == {"field"}:
            return self.readings.kind
        return next(iter(self.kinds)) if len(self.kinds) == 1 else "text"

    def array(self, cells: Sequence[tuple[str, Any]]) -> pa.Array:
        """The values of some images, each with its kind."""
        texts: list[str | None] = [None] * len(cells)
        for kind in self.kinds:
            rows = [row for row, (cell, value) in enumerate(cells) if cell == kind and value is not None]
            restore = FROM_ISO.get(kind, lambda value: value)
            values = pa.array([restore(cells[row][1]) for row in rows], TYPES[kind])
            for row, text in zip(rows, values.cast(pa.string()).to_pylist(), strict=True):
                texts[row] = text
        column = pa.array(texts, pa.string())
        return self.readings.read(column) if self.kinds == {"field"} else column.cast(TYPES[self.kind])


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
