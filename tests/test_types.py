"""Annotations that a type checker cannot use: parameters of type `Any`, and comments that silence the checker."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = sorted(path for folder in ("jointspace", "pipeline", "stages") for path in (ROOT / folder).rglob("*.py"))
MAX_ANY_PARAMETERS = 20
"""Maximum number of parameters whose annotation contains `Any` without a reason."""
MAX_IGNORES = 40
"""Maximum number of comments that silence the type checker."""
IGNORE = re.compile(r"#\s*(pyright|type):\s*ignore")
IGNORE_WITH_RULE_AND_REASON = re.compile(r"# pyright: ignore\[[\w, ]+\]\s+# \w.*")


@cache
def read_comments(path: Path) -> dict[int, str]:
    """Return the comments of a file by their line."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}


def contains_any(annotation: ast.expr) -> bool:
    """Whether an annotation contains the name `Any`, also inside a quoted annotation."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name) and node.id == "Any":
            return True
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"\bAny\b", node.value):
            return True
    return False


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.arg]:
    """Yield all parameters of a function."""
    arguments = function.args
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from (argument for argument in (arguments.vararg, arguments.kwarg) if argument)


def parameters_of_type_any(path: Path) -> Iterator[str]:
    """Yield `file:line name` for each parameter whose annotation contains `Any` and has no comment on its line."""
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for parameter in parameters(function):
                annotation = parameter.annotation
                if annotation and contains_any(annotation) and parameter.lineno not in read_comments(path):
                    yield f"{path.relative_to(ROOT)}:{parameter.lineno} {parameter.arg}"


def ignores(path: Path) -> Iterator[str]:
    """Yield `file:line comment` for each comment that silences the type checker."""
    for line, comment in read_comments(path).items():
        if IGNORE.search(comment):
            yield f"{path.relative_to(ROOT)}:{line} {comment}"


def test_few_parameters_are_of_type_any_without_a_reason() -> None:
    found = [parameter for path in FILES for parameter in parameters_of_type_any(path)]
    assert len(found) <= MAX_ANY_PARAMETERS, "\n".join(found)


def test_every_ignored_type_error_has_a_rule_and_a_reason() -> None:
    found = [comment for path in FILES for comment in ignores(path)]
    assert [comment for comment in found if not IGNORE_WITH_RULE_AND_REASON.search(comment)] == []
    assert len(found) <= MAX_IGNORES, "\n".join(found)


def test_both_counts_see_what_they_count(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_text(
        "def f(a: Any, b: 'list[Any]', c: AnyStr, *d: dict[str, Any]) -> Any:\n"
        "    text = '# pyright: ignore'\n"
        "    return g(a)  # pyright: ignore\n\n\n"
        "async def g(a: Any, **b: int): ...  # JSON of unknown form\n"
        "g(1)  # pyright: ignore[reportCallIssue]  # the stubs lack an overload\n"
    )
    assert list(parameters_of_type_any(path)) == ["module.py:1 a", "module.py:1 b", "module.py:1 d"]
    without, with_reason = ignores(path)
    assert without.startswith("module.py:3 ") and not IGNORE_WITH_RULE_AND_REASON.search(without)
    assert with_reason.startswith("module.py:7 ") and IGNORE_WITH_RULE_AND_REASON.search(with_reason)
