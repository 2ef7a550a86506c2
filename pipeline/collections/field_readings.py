"""What the fields of a table without types say: numbers, dates and times, in the writing of one country or another.

All fields of a column are read by one convention. Where two fit all of them and differ, as for 01/02/2024, the column
stays text.
"""

import re
from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

Texts = pa.Array | pa.ChunkedArray

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
"""Between thousands in France, Sweden, Switzerland and others."""
MINUS = "[-\u2212]?"
POWER = r"(?:[eE][+-]?\d{1,3})?"
DAY, MONTH, YEAR = r"(?:0?[1-9]|[12]\d|3[01])", r"(?:0?[1-9]|1[0-2])", r"[1-9]\d{3}"
CLOCK = r"(?:,? |T)\d{1,2}:\d\d(?::\d\d)?"


class FieldReading(NamedTuple):
    """Fields that all match `pattern` are values of a kind of TYPES, cast from what `to_iso` makes of them. Readings of
    one writing share a `convention`; "" is that of ISO 8601 and of programs."""

    kind: str
    pattern: str
    convention: str = ""
    to_iso: Callable[[Texts], Texts] = lambda texts: texts

    def read(self, texts: Texts) -> Texts:
        """Raises ArrowInvalid, as for 2024-02-30."""
        return self.to_iso(texts).cast(TYPES[self.kind])

    def matches(self, texts: Texts) -> Texts:
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
    """Dates, and dates with a clock, whose parts stand in the `order` of the letters d, m and y."""
    parts = {"d": DAY, "m": MONTH, "y": YEAR}
    day = "|".join(separator.join(parts[letter] for letter in order) for separator in separators)
    groups = "".join(rf"(?P<{letter}>\d+)" + (r"[./-] ?" if letter != order[-1] else "") for letter in order)
    iso = "-".join(rf"\{order.index(letter) + 1}" for letter in "ymd")

    def to_iso(texts: Texts) -> Texts:
        texts = pc.replace_substring_regex(texts, f"^{groups}(?:(?:,? |T)(.*))?$", rf"{iso} \4")
        for _ in range(2):  # neighbours share a sign
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
"""In the order of preference. 007 is text. No country writes month.day.year."""
PLAIN = "|".join(reading.pattern for reading in READINGS if not reading.convention)
PLURALS = {"whole": "numbers", "number": "numbers", "date": "dates", "time": "times"}
FOR_PROGRAMS = {"numbers": "1234.5", "dates": "2024-01-31", "times": "2024-01-31 10:00"}


class FieldReadings:
    """The readings that fit all of a column's fields so far."""

    def __init__(self) -> None:
        self._fitting = list(READINGS)
        self._differing: set[tuple[str, str]] = set()
        self._typical = ""
        self._odd = ""

    def narrow(self, fields: pa.Array) -> None:
        """See further fields (n,), none of them null."""
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
        """The first reading, and those of other conventions that say something else."""
        first = self._fitting[:1]
        return first + [
            reading
            for reading in self._fitting
            if first and (first[0].convention, reading.convention) in self._differing
        ]

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
        """What a user should know of how the column was read; empty where there is nothing to say."""
        rivals, example = self._rivals, f"such as {(self._odd or self._typical)!r}"
        if not rivals:
            return ""
        kind, conventions = PLURALS.get(rivals[0].kind), [rival.convention for rival in rivals]
        if len(rivals) > 1 and self._chosen:
            return f"is read as plain {kind}, though all of them, {example}, could be {kind} {conventions[1]}"
        if len(rivals) > 1:
            return (
                f"is kept as text: its {kind}, {example}, can be read {conventions[0]} or {conventions[1]}, and none of"
                f" them decides; write them as programs do ({FOR_PROGRAMS[kind]})"
            )
        return f"is read as {kind} {conventions[0]}, {example}" if conventions[0] else ""


def _read_all(reading: FieldReading, fields: pa.Array) -> pa.Array | None:
    """The values of all the fields, or None where some are not values of this kind."""
    if not pc.all(reading.matches(fields)).as_py():
        return None
    try:
        values = reading.read(fields)
    except pa.ArrowInvalid:  # 2024-02-30
        return None
    return values if reading.kind != "number" or pc.all(pc.is_finite(values)).as_py() else None


def _as_comparable(values: pa.Array) -> pa.Array:
    return values.cast(pa.float64(), safe=False) if pa.types.is_integer(values.type) else values
