"""Conditions on the columns of a table: `price < 20 and taken >= '2024-01-01'`.

    condition   = all {"or" all};   all = part {"and" part};   part = "not" part | "(" condition ")" | comparison
    comparison  = column | operand sign operand {sign operand} | column "is" ["not"] "null"
                | column ["not"] "in" "(" literal {"," literal} ")"
    sign        = "<" | "<=" | ">" | ">=" | "=" | "==" | "!=" | "<>"
    operand     = column | literal;   literal = number | 'text' | "text" | true | false

A column that is not a plain word stands between backticks, and a quotation mark in a text is doubled. As in SQL, words
of the language are upper or lower case, and a comparison with a missing value is neither true nor false. Dates and
times are written as in ISO 8601. Nothing is ever run as code.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import UsageError
from pipeline.index.columns import Column, comparable, values_of

LONGEST, DEEPEST = 2000, 40
"""Characters of a condition, and how deeply its parts may be nested."""
TOKEN = re.compile(
    r"\s*(?:(?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?!\w))|'(?P<single>(?:[^']|'')*)'|\"(?P<double>(?:[^\"]|\"\")*)\""
    r"|`(?P<quoted>[^`]+)`|(?P<word>[^\W\d]\w*)|(?P<sign><=|>=|==|!=|<>|[<>=(),]))"
)
SIGNS = {
    "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
    "=": pc.equal, "==": pc.equal, "!=": pc.not_equal, "<>": pc.not_equal,
}  # fmt: skip
INT64 = np.iinfo(np.int64)
WORDS = ("and", "or", "not", "in", "is", "null", "none", "true", "false")

Test = Callable[[pa.Table], Any]
"""The truth of a part for each row of a table: true, false or null."""


class Token(NamedTuple):
    """`kind` is number, text, column, word (of the language), sign, or end."""

    kind: str
    value: Any
    at: int


class Predicate:
    """A condition that was read. Raises UsageError naming the place where `text` is not one."""

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            raise UsageError(f"the condition has {len(text)} characters; write at most {LONGEST}")
        self.text, self._tokens, self._place, self._depth = text, list(_tokens(text)), 0, 0
        self._test = self._alternatives()
        if self._next.kind != "end":
            self._refuse("and, or, or the end")

    def rows(self, table: pa.Table) -> np.ndarray:
        """(n,) bool: of which rows of `table` it is true.

        Raises UsageError naming a column that there is not, or that holds something else than it is compared with.
        """
        return np.asarray(pc.fill_null(self._test(table), False))

    @property
    def _next(self) -> Token:
        return self._tokens[self._place]

    def _take(self, *values: str) -> str | None:
        """The next token, taken, if it is one of these words or signs."""
        token = self._next
        if token.kind in ("word", "sign") and token.value in values:
            self._place += 1
            return token.value
        return None

    def _require(self, value: str) -> None:
        if not self._take(value):
            self._refuse(f"`{value}`")

    def _refuse(self, wanted: str) -> NoReturn:
        rest = self.text[self._next.at :].strip()
        where = f"before {rest[:30]!r}" if rest else "at its end"
        raise UsageError(
            f"the condition {self.text!r} lacks {wanted} {where}; write one like: price < 20 and taken >= '2024-01-01'"
        )

    def _alternatives(self) -> Test:
        test = self._conjunction()
        while self._take("or"):
            test = _joined(pc.or_kleene, test, self._conjunction())
        return test

    def _conjunction(self) -> Test:
        test = self._part()
        while self._take("and"):
            test = _joined(pc.and_kleene, test, self._part())
        return test

    def _part(self) -> Test:
        self._depth += 1
        if self._depth > DEEPEST:
            raise UsageError(f"the condition is nested more than {DEEPEST} deep; write it in fewer parentheses")
        if self._take("not"):
            inner = self._part()
            test = lambda table: pc.invert(inner(table))  # noqa: E731
        elif self._take("("):
            test = self._alternatives()
            self._require(")")
        else:
            test = self._comparison()
        self._depth -= 1
        return test

    def _comparison(self) -> Test:
        left = self._operand()
        if isinstance(left, Column):
            if self._take("is"):
                inverse = self._take("not")
                if not self._take("null", "none"):
                    self._refuse("null")
                return lambda table: (pc.is_valid if inverse else pc.is_null)(values_of(table, left))
            inverse = self._take("not")
            if inverse or self._next == (*("word", "in"), self._next.at):
                self._require("in")
                return self._membership(left, bool(inverse))
        tests = []
        while sign := self._take(*SIGNS):
            right = self._operand()
            if not isinstance(left, Column) and not isinstance(right, Column):
                self._refuse("a column on one side of the comparison")
            tests.append(_compared(left, sign, right))
            left = right
        if not tests:
            if not isinstance(left, Column):
                self._refuse("a comparison")
            return lambda table: values_of(table, left, "truth")
        test = tests[0]
        for other in tests[1:]:
            test = _joined(pc.and_kleene, test, other)
        return test

    def _membership(self, column: Column, inverse: bool) -> Test:
        self._require("(")
        tests = [_compared(column, "=", self._literal())]
        while self._take(","):
            tests.append(_compared(column, "=", self._literal()))
        self._require(")")

        def test(table: pa.Table) -> Any:
            found = tests[0](table)
            for other in tests[1:]:
                found = pc.or_kleene(found, other(table))
            return pc.invert(found) if inverse else found

        return test

    def _operand(self) -> Any:
        if self._next.kind == "column":
            self._place += 1
            return Column(self._tokens[self._place - 1].value)
        return self._literal("a column or a value")

    def _literal(self, wanted: str = "a value") -> Any:
        if self._next.kind in ("number", "text"):
            self._place += 1
            return self._tokens[self._place - 1].value
        if word := self._take("true", "false"):
            return word == "true"
        self._refuse(wanted)


def _tokens(text: str) -> Iterator[Token]:
    at = 0
    while text[at:].strip():
        found = TOKEN.match(text, at)
        if not found:
            raise UsageError(f"the condition {text!r} cannot be read from {text[at:].strip()[:30]!r} on")
        kind, value = found.lastgroup, found[found.lastgroup]
        if kind == "number":
            whole = int(value) if re.fullmatch(r"-?\d+", value) else None
            fits = whole is not None and INT64.min <= whole <= INT64.max
            yield Token(kind, whole if fits else float(value), at)
        elif kind in ("single", "double"):
            quote = "'" if kind == "single" else '"'
            yield Token("text", value.replace(2 * quote, quote), at)
        elif kind == "word" and value.lower() in WORDS:
            yield Token("word", value.lower(), at)
        else:
            yield Token("sign" if kind == "sign" else "column", value, at)
        at = found.end()
    yield Token("end", None, at)


def _joined(join: Callable[[Any, Any], Any], left: Test, right: Test) -> Test:
    return lambda table: join(left(table), right(table))


def _compared(left: Any, sign: str, right: Any) -> Test:
    def test(table: pa.Table) -> Any:
        a, b = comparable(table, left, right)
        return SIGNS[sign](a, b)

    return test
