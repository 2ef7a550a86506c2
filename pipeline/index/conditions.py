"""Conditions on the columns of a table in Python's syntax, such as `price < 20 and taken >= '2024-01-01'`.

Conditions are parsed by Python's parser, but they are not run as code. Conditions may use `and`, `or`, `not`,
comparisons, `in` with one or more values, `'part' in column` (which ignores upper and lower case), `is None`, names of
columns, column("any name"), numbers, texts, `true` and `false`. As in SQL, `=` means `==`, a quotation mark within a
text is written twice, and a comparison with a missing value is neither true nor false. Dates and times are written as
texts in the format ISO 8601.
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

BUILT_IN_COLUMNS = frozenset(
    ("image_id", "path", "member", "offset", "size", "split", "width", "height", "sha256", SHARD, "box")
)
"""Names of the columns that jointspace itself writes into tables of images or into results. All other columns come
from the user's collection."""
FILTERABLE_BUILT_IN_COLUMNS = ("split", "width", "height")
"""Built-in columns that are offered to users for conditions, in addition to their own columns."""
TIME = pa.timestamp("us")
LARGE_INTEGER = pa.decimal128(20, 0)
"""An Arrow type that can hold all integers of 64 bits, signed and unsigned."""
MAX_SAMPLED_VALUES = 1000
"""Number of values at the beginning of a text column from which an error message takes its examples."""
MAX_EXAMPLES = 3
"""Largest number of different values of a text column that an error message shows."""
EXAMPLE_LITERALS = {"numbers": "1234.5", "dates": "2024-01-31", "truth": "true"}
"""Kind of a column -> an example of a value, as written in a collection, for error messages."""


class Column(NamedTuple):
    """The name of a column, as one side of a comparison in a condition."""

    name: str


Value = str | float | bool | None
"""A literal in a condition."""
Operand = Column | Value
"""One side of a comparison in a condition: a column or a literal."""


def values_of(table: pa.Table, column: Column, kind: str | None = None) -> pa.ChunkedArray:
    """Return the values of a column of a table. Decimal numbers are converted to floats, and categories to their
    values.

    Raises UsageError if the table has no such column, or if `kind` is given and the values are of another kind (see
    `kind_of`).
    """
    names = table.column_names
    if column.name not in names:
        near = difflib.get_close_matches(column.name, names, 1)
        meant = f" Did you mean {near[0]}?" if near else ""
        raise UsageError(
            f"There is no column {column.name[:80]!r}.{meant} Use one of the columns of the index: {', '.join(names)}."
        )
    values = table[column.name]
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.string()).cast(pa.float64())  # A direct cast would not convert 19.90 to 19.9.
    if kind_of(values.type) == "text":
        values = values.cast(pa.string())
    if kind and kind_of(values.type) != kind:
        raise _mismatch(column.name, values, kind)
    return values


def filterable_columns(table: pa.Table) -> dict[str, str]:
    """Return the columns of a table that are offered to users for conditions, as name -> kind (see `kind_of`). The
    user's own columns come first."""
    users = [name for name in table.column_names if name not in BUILT_IN_COLUMNS]
    names = [*users, *(name for name in FILTERABLE_BUILT_IN_COLUMNS if name in table.column_names)]
    return {name: kind_of(table.schema.field(name).type) for name in names}


def kind_of(data: pa.DataType) -> str:
    """Return the kind of literals with which values of this Arrow type can be compared: "numbers", "truth", "dates" or
    "text".

    The kind is "nothing" if the values cannot be compared.
    """
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
    """Return the sides `left` and `right` of a comparison as values that Arrow can compare: the values of a column of
    `table`, or a scalar.

    At least one side must be a column. Raises UsageError if the table lacks a column, or if the values of both sides
    cannot be compared.
    """
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
        return [side.cast(pa.float64(), safe=False) for side in sides]  # A large integer loses its last digits.
    if kind == "numbers" and any(pa.types.is_uint64(side.type) for side in sides):
        return [side.cast(LARGE_INTEGER) for side in sides]
    return sides


def _scalar(value: Value, kind: str, column: str, values: pa.ChunkedArray) -> pa.Scalar:
    """Convert a literal to an Arrow value that can be compared with the `values` of a `column` of this `kind`.

    A date with a time zone is converted to UTC. Raises UsageError if the literal is of another kind, or is not a date.
    """
    literal = {bool: "truth", str: "text"}.get(type(value), "numbers")
    if kind == "dates" and isinstance(value, str):
        try:
            date = datetime.fromisoformat(value)
            return pa.scalar(date.astimezone(UTC).replace(tzinfo=None) if date.tzinfo else date, TIME)
        except (ValueError, OverflowError):
            raise UsageError(
                f"The column {column} contains dates, but {value[:40]!r} is not a date. Write a date like '2024-01-31'."
            ) from None
    if literal != kind:
        raise _mismatch(column, values, literal)
    return pa.scalar(value, pa.uint64() if isinstance(value, int) and value >= 1 << 63 else None)


def _mismatch(column: str, values: pa.ChunkedArray, kind: str) -> UsageError:
    """Return the error for a condition that compares a `column` with a literal or another column of another `kind`.
    `values` are the values of the column. The caller raises the error."""
    own_kind = kind_of(values.type)
    if values.null_count == len(values):
        return UsageError(
            f"The column {column} has no values, so it cannot be compared with {kind}. Leave it out of the condition."
        )
    if own_kind == "nothing":
        return UsageError(
            f"The column {column} contains values of the type {values.type}, which cannot be compared. A condition can"
            f" only test whether they are missing: {column} is None"
        )
    if own_kind != "text":
        example = EXAMPLE_LITERALS.get(own_kind, "null")
        example = repr(example) if own_kind == "dates" else example
        return UsageError(
            f"The column {column} contains {own_kind}, not {kind}. Compare it with {example}, for example."
        )
    texts = dict.fromkeys(filter(None, values.slice(0, MAX_SAMPLED_VALUES).to_pylist()))
    examples = ", ".join(repr(text[:40]) for text in islice(texts, MAX_EXAMPLES)) or "no values"
    return UsageError(
        f"The column {column} contains text ({examples}), not {kind}. If its values should be {kind}, write all of them"
        f" in the collection like {EXAMPLE_LITERALS.get(kind, 'the first')}, and run `jointspace run CONFIG`."
    )


MAX_CHARACTERS = 2000
"""Largest number of characters of a condition. A longer condition is refused."""
MAX_DEPTH = 40
"""Largest depth to which `and`, `or` and `not` may be nested in a condition. A deeper condition is refused."""
SIGNS = {
    ast.Lt: "less", ast.LtE: "less_equal", ast.Gt: "greater", ast.GtE: "greater_equal",
    ast.Eq: "equal", ast.NotEq: "not_equal",
}  # fmt: skip
"""Python's class for a comparison -> the name of Arrow's function for it."""
CONSTANTS = {"true": True, "false": False, "null": None, "none": None}
"""Name of a constant in lower case -> its value. A condition may write the name in upper and lower case."""
UNLIKE_PYTHON = re.compile(r"(?P<text>'(?:''|[^'])*'|\"(?:\"\"|[^\"])*\")|(?<![<>=!])=(?!=)|[\r\n]")
"""Pattern of the parts of a condition that are rewritten for Python's parser: texts, a single `=`, and line breaks."""
SQL_SYNTAX = {
    r"<>": "!=",
    r"`": 'column("my name")',
    **{rf"\b{word.upper()}\b": word for word in ("and", "or", "not", "in", "is")},
}
"""Pattern of an SQL expression that is not valid in conditions -> the text to write instead, for error messages."""
SMALLEST_INTEGER = np.iinfo(np.int64).min
"""The smallest integer for which Arrow has a type."""
LARGEST_INTEGER = np.iinfo(np.uint64).max
"""The largest integer for which Arrow has a type."""

Test = Callable[[pa.Table], pa.ChunkedArray]
"""A function that evaluates a part of a condition for each row of a table, and returns true, false or null for each."""


class Predicate:
    """A parsed condition. The constructor raises UsageError if `text` is not a condition. It does not check whether the
    columns exist, because it gets no table."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARACTERS:
            raise UsageError(
                f"The condition has {len(text)} characters, but at most {MAX_CHARACTERS} are allowed. Shorten the"
                " condition."
            )
        self.text = text
        self._python = UNLIKE_PYTHON.sub(_as_python, text).strip()
        try:
            text.encode()  # Bytes that are not UTF-8 arrive as lone surrogates, which Arrow does not support.
            tree = ast.parse(self._python, mode="eval")
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            self._refuse_syntax(error)
        self._test = self._truth(tree.body, 1)

    def rows(self, table: pa.Table) -> np.ndarray:
        """Return for each of the n rows of `table` whether the condition is true, as (n,) bool. A condition that is
        null for a row, because a value is missing, is not true.

        Raises UsageError if the table lacks a column of the condition, or if a column cannot be compared with the value
        in the condition.
        """
        try:
            return np.asarray(pc.fill_null(self._test(table), False))
        except pa.ArrowException as error:
            raise UsageError(
                f"The condition {self.text!r} does not fit the values of its columns ({error}). Compare each column"
                " with values of its own kind."
            ) from error

    def _refuse_syntax(self, error: Exception) -> NoReturn:
        without_texts = re.sub(UNLIKE_PYTHON, " ", self.text)
        for written, python in SQL_SYNTAX.items():
            if sign := re.search(written, without_texts):
                raise UsageError(
                    f"The condition {self.text!r} uses {sign[0]}, which is not supported. Write {python} instead."
                ) from None
        if isinstance(error, MemoryError | RecursionError) or "nested" in str(error):
            self._refuse_depth()
        self._refuse("cannot be read")

    def _refuse(self, why: str) -> NoReturn:
        raise UsageError(
            f"The condition {self.text!r} {why}. Write a condition like price < 20 and taken >= '2024-01-01', and write"
            ' column("my name") for a column whose name is not a single word.'
        ) from None

    def _refuse_depth(self) -> NoReturn:
        raise UsageError(
            f"The condition has more than {MAX_DEPTH} nested levels. Write it with fewer parentheses."
        ) from None

    def _show(self, node: ast.expr) -> str:
        return repr((ast.get_source_segment(self._python, node) or "")[:40])

    def _truth(self, node: ast.expr, depth: int) -> Test:
        """Return the test of an expression whose value is true or false: `and`, `or`, `not`, a comparison, or a column
        of truth values. `depth` is 1 for the whole condition, and larger by 1 for each `and`, `or` or `not` around the
        expression. Raises UsageError for other expressions, and if `depth` exceeds MAX_DEPTH."""
        if depth > MAX_DEPTH:
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
            self._refuse(f"does not compare {self._show(node)} with a column")
        return lambda table: values_of(table, column, "truth")

    def _comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Test:
        """Return the test of a single comparison `left op right`. Raises UsageError if such a comparison is not
        allowed in conditions."""
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
        """Return the column or the literal (number, text, truth value or None) that an expression denotes. Raises
        UsageError for other expressions."""
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
    """Rewrite a match of UNLIKE_PYTHON in Python's syntax. A single `=` becomes `==`, and a line break becomes a space.

    Texts get Python's quotation marks and are put into parentheses, so that Python does not join two adjacent texts,
    and does not read a letter before a text as its prefix.
    """
    if not match["text"]:
        return "==" if match[0] == "=" else " "
    quote = match[0][0]
    return f"({match[0][1:-1].replace(2 * quote, quote)!r})"


def _number(value: float) -> float:
    """Convert an integer that is too large or too small for Arrow's integers to a float. Other numbers are returned
    unchanged."""
    fits = isinstance(value, float) or SMALLEST_INTEGER <= value <= LARGEST_INTEGER
    return value if fits else float(str(value))


def _is_in(table: pa.Table, column: Column, values: Sequence[Value], inverse: bool) -> pa.ChunkedArray:
    equal = _join("or_kleene", (_compute("equal", *comparable(table, column, value)) for value in values))
    return _compute("invert", equal) if inverse else equal


def _contains(table: pa.Table, column: Column, part: str, inverse: bool) -> pa.ChunkedArray:
    options = pc.MatchSubstringOptions(part, ignore_case=True)
    has = pc.call_function("match_substring", [values_of(table, column, "text")], options)
    return _compute("invert", has) if inverse else has


def _join(name: str, parts: Iterable[pa.ChunkedArray]) -> pa.ChunkedArray:
    """Combine the values of one or more `parts`, from left to right, with Arrow's function `name`, which takes two
    arguments."""
    return reduce(partial(_compute, name), parts)


def _compute(name: str, *values: pa.ChunkedArray | pa.Array | pa.Scalar) -> pa.ChunkedArray:
    """Call one of Arrow's functions by its name, because pyarrow.compute has no type annotations for these
    functions."""
    return pc.call_function(name, list(values))
