"""Conditions on the columns of a table, in Python's words: `price < 20 and taken >= '2024-01-01'`.

Python parses them, and nothing is run as code: of its syntax there are `and`, `or`, `not`, comparisons, `in` a tuple,
`'part' in column` in upper or lower case, `is None`, names of columns, column("any name"), numbers and texts. As in
SQL, `=` is `==`, a quotation mark in a text is doubled, and a comparison with a missing value is neither true nor
false. Dates and times are written as in ISO 8601.
"""

import ast
import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial, reduce
from itertools import islice, pairwise
from typing import NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
    """Return the columns that a condition on a table of images may use: name -> kind, the user's own columns first."""
    users = [name for name in table.column_names if name not in OURS]
    names = [*users, *(name for name in ASKED if name in table.column_names)]
    return {name: kind_of(table.schema.field(name).type) for name in names}


def kind_of(data: pa.DataType) -> str:
    """Return the kind of values that a condition compares with a type: numbers, truth, dates, text, or nothing."""
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


LONGEST, DEEPEST = 2000, 40
"""Characters of a condition, and how deeply its parts may be nested."""
SIGNS = {
    ast.Lt: "less", ast.LtE: "less_equal", ast.Gt: "greater", ast.GtE: "greater_equal",
    ast.Eq: "equal", ast.NotEq: "not_equal",
}  # fmt: skip
"""Python's comparison -> the name of Arrow's function."""
CONSTANTS = {"true": True, "false": False, "null": None, "none": None}
"""In upper or lower case."""
UNLIKE_PYTHON = re.compile(r"(?P<text>'(?:''|[^'])*'|\"(?:\"\"|[^\"])*\")|(?<![<>=!])=(?!=)|[\r\n]")
OF_SQL = {
    r"<>": "!=",
    r"`": 'column("my name")',
    **{rf"\b{word.upper()}\b": word for word in ("and", "or", "not", "in", "is")},
}
LEAST, GREATEST = np.iinfo(np.int64).min, np.iinfo(np.uint64).max
"""The ends of the whole numbers that Arrow has types for."""

Test = Callable[[pa.Table], pa.ChunkedArray]
"""A function that gives the truth of a part of a condition for each row of a table: true, false or null."""


class Predicate:
    """A condition that was read. Raises UsageError where `text` is not one."""

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            raise UsageError(f"the condition has {len(text)} characters; write at most {LONGEST}")
        self.text = text
        self._python = UNLIKE_PYTHON.sub(_as_python, text).strip()
        try:
            text.encode()  # bytes that are no UTF-8 come as lone surrogates, which Arrow has not
            tree = ast.parse(self._python, mode="eval")
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            self._refuse_syntax(error)
        self._test = self._truth(tree.body, 1)

    def rows(self, table: pa.Table) -> np.ndarray:
        """(n,) bool: of which rows of `table` it is true.

        Raises UsageError naming a column that there is not, or that holds something else than it is compared with.
        """
        try:
            return np.asarray(pc.fill_null(self._test(table), False))
        except pa.ArrowException as error:
            raise UsageError(f"the condition {self.text!r} does not fit the values of its columns: {error}") from error

    def _refuse_syntax(self, error: Exception) -> NoReturn:
        without_texts = re.sub(UNLIKE_PYTHON, " ", self.text)
        for written, python in OF_SQL.items():
            if sign := re.search(written, without_texts):
                raise UsageError(f"the condition {self.text!r} has {sign[0]}; write {python} instead") from None
        if isinstance(error, MemoryError | RecursionError) or "nested" in str(error):
            self._refuse_depth()
        self._refuse("cannot be read")

    def _refuse(self, why: str) -> NoReturn:
        raise UsageError(
            f"the condition {self.text!r} {why}; write one like: price < 20 and taken >= '2024-01-01', with column(\"my"
            ' name") for a column that is not a plain word'
        ) from None

    def _refuse_depth(self) -> NoReturn:
        raise UsageError(f"the condition is nested more than {DEEPEST} deep; write it in fewer parentheses") from None

    def _show(self, node: ast.expr) -> str:
        return repr((ast.get_source_segment(self._python, node) or "")[:40])

    def _truth(self, node: ast.expr, depth: int) -> Test:
        if depth > DEEPEST:
            self._refuse_depth()
        match node:
            case ast.BoolOp(op, values):
                join = "and_kleene" if isinstance(op, ast.And) else "or_kleene"
                parts = [self._truth(value, depth + 1) for value in values]
                return lambda table: _join(join, (part(table) for part in parts))
            case ast.UnaryOp(ast.Not(), operand):
                inner = self._truth(operand, depth + 1)
                return lambda table: _compute("invert", inner(table))
            case ast.Compare(left, ops, comparators):
                sides = pairwise((left, *comparators))
                parts = [self._comparison(a, op, b) for op, (a, b) in zip(ops, sides, strict=True)]
                return lambda table: _join("and_kleene", (part(table) for part in parts))
        column = self._operand(node)
        if not isinstance(column, Column):
            self._refuse(f"compares {self._show(node)} with nothing")
        return lambda table: values_of(table, column, "truth")

    def _comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Test:
        a = self._operand(left)
        if isinstance(op, ast.In | ast.NotIn) and isinstance(a, Column):
            nodes = right.elts if isinstance(right, ast.Tuple | ast.List | ast.Set) else [right]
            operands = [self._operand(node) for node in nodes]
            values = [value for value in operands if value is not None and not isinstance(value, Column)]
            if values and len(values) == len(operands):
                return lambda table: _is_in(table, a, values, isinstance(op, ast.NotIn))
            self._refuse("lacks values in parentheses after `in`")
        b = self._operand(right)
        if isinstance(op, ast.In | ast.NotIn) and isinstance(a, str) and isinstance(b, Column):
            return lambda table: _contains(table, b, a, isinstance(op, ast.NotIn))
        if isinstance(op, ast.Is | ast.IsNot) and isinstance(a, Column) and b is None:
            name = "is_null" if isinstance(op, ast.Is) else "is_valid"
            return lambda table: _compute(name, values_of(table, a))
        if type(op) not in SIGNS or a is None or b is None:
            self._refuse("uses another comparison than < <= > >= == !=, `in`, `is None` and `is not None`")
        if not isinstance(a, Column) and not isinstance(b, Column):
            self._refuse(f"lacks a column on one side of {self._show(left)} and {self._show(right)}")
        return lambda table: _compute(SIGNS[type(op)], *comparable(table, a, b))

    def _operand(self, node: ast.expr) -> Operand:
        """Return the column, or the number, text, truth value or None, that an expression stands for."""
        match node:
            case ast.Name(name):
                return CONSTANTS[name.lower()] if name.lower() in CONSTANTS else Column(name)
            case ast.Call(ast.Name("column"), [ast.Constant(str(name))], []):
                return Column(name)
            case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)) if not isinstance(value, bool):
                return _number(-value)
            case ast.Constant(str() | bool() | None as value):
                return value
            case ast.Constant(int() | float() as value):
                return _number(value)
        self._refuse(f"has {self._show(node)} where a column or a value should be")


def _as_python(match: re.Match) -> str:
    """A text with doubled quotation marks, or a single `=`, as Python writes it; texts in parentheses, so that two
    beside each other are not joined, and letters before one mean nothing."""
    if not match["text"]:
        return "==" if match[0] == "=" else " "
    quote = match[0][0]
    return f"({match[0][1:-1].replace(2 * quote, quote)!r})"


def _number(value: float) -> float:
    """Returns a whole number that Arrow has no type for as a float, and any other number as it is."""
    return value if isinstance(value, float) or LEAST <= value <= GREATEST else float(str(value))


def _is_in(table: pa.Table, column: Column, values: Sequence[Value], inverse: bool) -> pa.ChunkedArray:
    equal = _join("or_kleene", (_compute("equal", *comparable(table, column, value)) for value in values))
    return _compute("invert", equal) if inverse else equal


def _contains(table: pa.Table, column: Column, part: str, inverse: bool) -> pa.ChunkedArray:
    options = pc.MatchSubstringOptions(part, ignore_case=True)
    has = pc.call_function("match_substring", [values_of(table, column, "text")], options)
    return _compute("invert", has) if inverse else has


def _join(name: str, parts: Iterable[pa.ChunkedArray]) -> pa.ChunkedArray:
    """Join the truth of several parts, at least one, by one of Arrow's functions of two arguments."""
    return reduce(partial(_compute, name), parts)


def _compute(name: str, *values: pa.ChunkedArray | pa.Array | pa.Scalar) -> pa.ChunkedArray:
    """Call one of Arrow's functions by its name: Arrow makes its functions when it is imported, without types."""
    return pc.call_function(name, list(values))
