"""The user's own columns of images: further data in tables, such as a price or a date, and the folder, time and camera
of a photo.

A column has integers, floating-point numbers, truth values, dates, times or texts. Fields of CSV and TSV files have no
type, so a column gets a type that fits all of its fields, or else is text. A column with values of several types is
text, except that integers among floating-point numbers become floating-point numbers. All fields of a column are read
by the convention of one country. If two conventions fit all fields with different results, as for 01/02/2024, the
column remains text.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import chain, combinations, islice
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from pipeline.config.collection import MAX_COLUMN_NAME
from pipeline.foreign.parquet import pc
from pipeline.printable import UNSAFE, is_unicode

MAX_COLUMNS = 100
"""Largest number of own columns. Values in further columns are not kept."""
RESERVED = frozenset(
    ("image_id", "path", "member", "offset", "size", "split", "width", "height", "sha256", "bundle")
    + ("rank", "score", "box", "text", "sentence_id")
)
"""Names of columns in tables of images and in search results. An own column with such a name is stored with PREFIX."""
PREFIX = "own_"
"""The prefix of an own column with a reserved name."""
FROM_ISO = {"date": date.fromisoformat, "time": datetime.fromisoformat, "zoned": datetime.fromisoformat}
HOSTILE = "hostile"
"""The kind of a value that cannot be kept."""
BLOCK_IMAGES = 1 << 15
"""Number of images whose packed values `OwnColumns.see` reads at once."""

Scalar: TypeAlias = str | bool | int | float | None
"""A value that JSON can store."""


class Field(str):
    """A text in a CSV or TSV table, which may stand for a value of another type."""

    __slots__ = ()


class OwnColumns:
    """The own columns of a collection, which are filled image by image.

    Texts of more than `longest` characters are not kept, and neither are more than MAX_COLUMNS columns.

    `chosen` has the names of the columns to keep, or is None to keep all. If it is a mapping, its values are the new
    names. The values of an image are first packed into a text. All packed texts are read once to find the columns and
    their types, and then converted to rows of a `table`. `left_out` has the number of values that are not kept, by
    reason.
    """

    def __init__(self, longest: int, chosen: Collection[str] | None = None) -> None:
        self.longest = longest
        self.chosen = chosen
        self._names = chosen if isinstance(chosen, Mapping) else {}
        self.left_out: Counter[str] = Counter()
        self._columns: dict[str, _Column] = {}

    def pack(self, values: Mapping[str, object]) -> str:
        """Return the `values` of an image, by the names of their columns, as a JSON text. Columns that are not chosen
        are left out."""
        names = values if self.chosen is None else filter(self.chosen.__contains__, values)
        return json.dumps([(name, *self._plain(values[name])) for name in names])

    def _plain(self, value: object) -> tuple[str, Scalar]:
        """Return the kind of a value, and the value in a form that JSON can store. A text that is too long, has a
        character of value 0, or is not Unicode, has the kind HOSTILE and the value None."""
        kind, typed = _typed(value)
        if isinstance(typed, str) and (len(typed) > self.longest or "\0" in typed or not is_unicode(typed)):
            return HOSTILE, None
        return kind, typed.isoformat() if isinstance(typed, date) else typed

    def see(self, packed: Iterable[str]) -> None:
        """Find the columns and their types from packed values, in addition to the columns of earlier calls."""
        packed = iter(packed)
        while block := list(islice(packed, BLOCK_IMAGES)):
            fields: dict[str, list[str]] = {}
            for name, kind, value in chain.from_iterable(map(json.loads, block)):
                if (column := self._column(name)) is None:
                    continue
                if kind == HOSTILE:
                    self.left_out[f"longer than {self.longest} characters, or not Unicode"] += 1
                # A number whose value is None was NaN or infinite, which still makes the column a column of numbers.
                elif value is not None or kind == "number":
                    column.kinds.add(kind)
                    if kind == "field":
                        fields.setdefault(name, []).append(str(value))
            for name, texts in fields.items():
                self._columns[name].readings.narrow(pa.array(texts, pa.string()))

    def _column(self, name: str) -> "_Column | None":
        if name in self._columns:
            return self._columns[name]
        called = self._names.get(name, name)
        if not isinstance(called, str) or not called.strip() or len(called) > MAX_COLUMN_NAME or UNSAFE.search(called):
            faults = f"empty, longer than {MAX_COLUMN_NAME} characters, or not printable"
            self.left_out[f"in columns whose names are {faults}"] += 1
        elif len(self._columns) >= MAX_COLUMNS:
            self.left_out[f"in more columns than {MAX_COLUMNS}"] += 1
        else:
            return self._columns.setdefault(name, _Column())
        return None

    def __contains__(self, name: str) -> bool:
        """Return whether `see` has found a column with this name in the collection."""
        return name in self._columns

    def table(self, *packed: Sequence[str | None]) -> pa.Table:
        """Return a table with a row for each image, and null for missing values.

        Each argument has the packed values of each image, or None. If several arguments have a value of an image in the
        same column, the last one counts. The columns are in the order in which they were named first.
        """
        cells: dict[str, list[tuple[str, Scalar]]] = {name: [("text", None)] * len(packed[0]) for name in self._columns}
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

    def format_summary(self) -> Iterator[str]:
        """Yield lines for the user. The first line has the columns and their types, and a line for each reason has the
        number of values that were left out for this reason.

        Further lines name the columns in the key collection.own_columns that have no value, the columns of several
        types, the columns of texts that are read in an unusual way, such as dates with the day first, and the columns
        that are renamed.
        """
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
    """The kinds of the values in a column, and the possible readings of its fields without a type."""

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

    def array(self, cells: Sequence[tuple[str, Scalar]]) -> pa.Array:
        """Return the values of some images as an array of the column's type.

        `cells` has the kind and the stored value of each image.
        """
        texts: list[str | None] = [None] * len(cells)
        for kind in self.kinds:
            rows = [row for row, (cell, value) in enumerate(cells) if cell == kind and value is not None]
            stored = [cells[row][1] for row in rows]
            values = [FROM_ISO[kind](str(value)) for value in stored] if kind in FROM_ISO else stored
            for row, text in zip(rows, pa.array(values, TYPES[kind]).cast(pa.string()).to_pylist(), strict=True):
                texts[row] = text
        column = pa.array(texts, pa.string())
        return self.readings.read(column) if self.kinds == {"field"} else column.cast(TYPES[self.kind])


def _typed(value: object) -> tuple[str, Scalar | date]:
    """Return the kind of a value, which is a key of TYPES, and the value in the Python type of this kind.

    For a value that is missing, empty or not finite, the returned value is None.
    """
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


Texts: TypeAlias = "pa.Array | pa.ChunkedArray"

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
ISO_DAY = r"[1-9]\d{3}-\d\d-\d\d"
ISO_TIME = ISO_DAY + r"[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?"
SPACES = "[ \u00a0\u2009\u202f'\u2019]"
"""Characters that separate thousands in France, Sweden, Switzerland and other countries."""
MINUS = "[-\u2212]?"
POWER = r"(?:[eE][+-]?\d{1,3})?"
DAY = r"(?:0?[1-9]|[12]\d|3[01])"
MONTH = r"(?:0?[1-9]|1[0-2])"
YEAR = r"[1-9]\d{3}"
CLOCK = r"(?:,? |T)\d{1,2}:\d\d(?::\d\d)?"


class FieldReading(NamedTuple):
    """A rule for reading fields as values of one of the TYPES.

    All fields must match `pattern`. `to_iso` converts the fields to the form that Arrow can cast to the type `kind`.
    The readings of one country have the same `convention`, which is "" for ISO 8601 and for the format of programs.
    """

    kind: str
    pattern: str
    convention: str = ""
    to_iso: Callable[[Texts], Texts] = lambda texts: texts

    def read(self, texts: Texts) -> Texts:
        """Return the values of texts that match the pattern, in the Arrow type of `kind`. Raises ArrowInvalid for
        values such as 2024-02-30."""
        return self.to_iso(texts).cast(TYPES[self.kind])

    def matches(self, texts: Texts) -> Texts:
        """Return an array of booleans that says for each text whether the whole text matches the pattern."""
        return pc.match_substring_regex(texts, f"^(?:{self.pattern})$")


def _numbers(convention: str, decimal: str, thousands: str) -> list[FieldReading]:
    whole = rf"(?:0|[1-9]\d*|[1-9]\d{{0,2}}(?:(?:{thousands}\d{{3}})+|(?:{SPACES}\d{{3}})+))"

    def to_iso(texts: Texts) -> Texts:
        texts = pc.replace_substring_regex(texts, f"{thousands}|{SPACES}", "")
        return pc.replace_substring(pc.replace_substring(texts, decimal, "."), "\u2212", "-")

    return [
        FieldReading("whole", MINUS + whole, convention, to_iso),
        FieldReading("number", rf"{MINUS}{whole}?(?:{re.escape(decimal)}\d+)?{POWER}", convention, to_iso),
    ]


def _dates(convention: str, order: str, *separators: str) -> list[FieldReading]:
    """Return readings for dates, and for dates with a time, whose parts are in the order of the letters d, m and y in
    `order`."""
    parts = {"d": DAY, "m": MONTH, "y": YEAR}
    day = "|".join(separator.join(parts[letter] for letter in order) for separator in separators)
    groups = "".join(rf"(?P<{letter}>\d+)" + (r"[./-] ?" if letter != order[-1] else "") for letter in order)
    iso = "-".join(rf"\{order.index(letter) + 1}" for letter in "ymd")

    def to_iso(texts: Texts) -> Texts:
        texts = pc.replace_substring_regex(texts, f"^{groups}(?:(?:,? |T)(.*))?$", rf"{iso} \4")
        for _ in range(2):  # twice, because one pass does not pad two adjacent parts of one digit
            texts = pc.replace_substring_regex(texts, r"([- ])(\d)([-: ]|$)", r"\10\2\3")
        return pc.utf8_rtrim_whitespace(texts)

    return [
        FieldReading("date", f"(?:{day})", convention, to_iso),
        FieldReading("time", f"(?:{day}){CLOCK}", convention, to_iso),
    ]


READINGS = (
    FieldReading("truth", r"(?i:true|false)", "", pc.utf8_lower),
    FieldReading("whole", r"-?(?:0|[1-9]\d{0,17})"),
    FieldReading("number", r"-?(?:0|[1-9]\d*)?(?:\.\d+|\d\.)?" + POWER),
    FieldReading("date", ISO_DAY),
    FieldReading("time", ISO_TIME),
    FieldReading("zoned", ISO_TIME + r"(?:Z|[+-]\d\d:?\d\d)"),
    *_numbers("with a decimal comma", ",", r"\."),
    *_numbers("with a decimal point", ".", ","),
    *_dates("with the day first", "dmy", r"\. ?", "/", "-"),
    *_dates("with the month first", "mdy", "/", "-"),
    *_dates("with the year first", "ymd", r"\. ?", "/", "-"),
)
"""Readings in the order of preference. No reading for numbers matches 007, so it is text. Dates with the month first
have no reading with points, because no country writes month.day.year."""
PLAIN = "|".join(reading.pattern for reading in READINGS if not reading.convention)
PLURALS = {"whole": "numbers", "number": "numbers", "date": "dates", "time": "times"}
FOR_PROGRAMS = {"numbers": "1234.5", "dates": "2024-01-31", "times": "2024-01-31 10:00"}


class FieldReadings:
    """The readings that fit all fields of a column so far."""

    def __init__(self) -> None:
        self._fitting = list(READINGS)
        self._differing: set[tuple[str, str]] = set()
        self._typical = ""
        self._odd = ""

    def narrow(self, fields: pa.Array) -> None:
        """Drop the readings that do not fit further fields (n,), which are not null."""
        values = {reading: array for reading in self._fitting if (array := _read_all(reading, fields)) is not None}
        self._fitting = list(values)
        self._typical = self._typical or fields[0].as_py()
        if not self._odd:
            odd = fields.filter(pc.invert(pc.match_substring_regex(fields, f"^(?:{PLAIN})$")))
            self._odd = odd[0].as_py() if len(odd) else ""
        of_convention = {reading.convention: array for reading, array in values.items()}
        for (first, left), (second, right) in combinations(of_convention.items(), 2):
            if not _as_comparable(left).equals(_as_comparable(right)):
                self._differing.add((first, second))

    @property
    def _rivals(self) -> list[FieldReading]:
        """The first reading that fits, and the fitting readings of other conventions that give other values."""
        if not self._fitting:
            return []
        first = self._fitting[0]
        differing = {other for convention, other in self._differing if convention == first.convention}
        return [first, *(reading for reading in self._fitting if reading.convention in differing)]

    @property
    def _chosen(self) -> FieldReading | None:
        rivals = self._rivals
        return rivals[0] if rivals and (len(rivals) == 1 or not rivals[0].convention) else None

    @property
    def kind(self) -> str:
        return self._chosen.kind if self._chosen else "field"

    def read(self, texts: Texts) -> Texts:
        return self._chosen.read(texts) if self._chosen else texts

    @property
    def note(self) -> str:
        """The end of a line for the user that says how the fields of an unusual column were read, such as `is read as
        dates ...`, or `is kept as text ...` with the reason and the remedy. It is "" for all other columns."""
        rivals = self._rivals
        example = f"such as {(self._odd or self._typical)!r}"
        if not rivals:
            return ""
        kind = PLURALS.get(rivals[0].kind, "")
        conventions = [rival.convention for rival in rivals]
        if len(rivals) > 1 and self._chosen:
            return f"is read as plain {kind}, though all of them, {example}, could be {kind} {conventions[1]}"
        if len(rivals) > 1:
            return (
                f"is kept as text: its {kind}, {example}, can be read {conventions[0]} or {conventions[1]}, and none of"
                f" them decides. Write them as programs do ({FOR_PROGRAMS[kind]})"
            )
        return f"is read as {kind} {conventions[0]}, {example}" if conventions[0] else ""


def _read_all(reading: FieldReading, fields: pa.Array) -> pa.Array | None:
    """Return the values of all fields by a reading, or None if the reading does not fit a field, or a number is not
    finite."""
    if not pc.all(reading.matches(fields)).as_py():
        return None
    try:
        values = reading.read(fields)
    except pa.ArrowInvalid:  # a day that does not exist, such as 2024-02-30
        return None
    return values if reading.kind != "number" or pc.all(pc.is_finite(values)).as_py() else None


def _as_comparable(values: pa.Array) -> pa.Array:
    return values.cast(pa.float64(), safe=False) if pa.types.is_integer(values.type) else values
