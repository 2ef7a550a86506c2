"""Tests which show that few annotations and comments keep a type checker from its work: parameters of type `Any`, and
comments that silence the checker.
"""

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = sorted(path for folder in ("jointspace", "pipeline", "stages") for path in (ROOT / folder).rglob("*.py"))
MAX_ANY_PARAMETERS = 20
"""Maximum number of parameters whose annotation contains `Any` and has no comment with a reason."""
MAX_IGNORES = 40
"""Maximum number of comments that silence the type checker."""
MAX_ANY_ALIASES = 10
"""Maximum number of names such as `Row = Mapping[str, Any]`, which hide `Any` from the count of parameters."""
IGNORE = re.compile(r"#\s*(pyright|basedpyright|type):")
"""The pattern of a comment that silences the type checker, in a line or in a whole file (`# pyright: basic`)."""
IGNORE_WITH_RULE_AND_REASON = re.compile(r"# pyright: ignore\[[\w, ]+\]\s+# (\S+ ){2,}\S+")
DIRECTIVE = re.compile(r"#\s*(noqa|fmt|ruff|pylint|pragma|mypy|pyright|basedpyright|type)\b")
"""The pattern of a comment for a tool, which gives no reason to a reader."""


@cache
def read_comments(path: Path) -> dict[int, str]:
    """Return the comments of a Python file by the number of their line, from 1."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}


def contains_any(annotation: ast.expr) -> bool:
    """Return whether an annotation contains the name `Any`, also inside a quoted annotation."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name) and node.id == "Any":
            return True
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"\bAny\b", node.value):
            return True
    return False


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.arg]:
    """Yield all parameters of a function, also `*args` and `**kwargs`."""
    arguments = function.args
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from (argument for argument in (arguments.vararg, arguments.kwarg) if argument)


def parameters_of_type_any(path: Path) -> Iterator[str]:
    """Yield `file:line name` for each parameter whose annotation contains `Any` and has no reason on its line."""
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for parameter in parameters(function):
                annotation = parameter.annotation
                comment = read_comments(path).get(parameter.lineno, "")
                if annotation and contains_any(annotation) and not is_reason(comment):
                    yield f"{path.relative_to(ROOT)}:{parameter.lineno} {parameter.arg}"


def is_reason(comment: str) -> bool:
    """Return whether a comment gives a reason: it has at least three words and is not a comment for a tool."""
    return len(comment.split()) > 3 and not DIRECTIVE.match(comment)


def aliases_of_any(path: Path) -> Iterator[str]:
    """Yield `file:line name` for each name to which a module assigns a type that contains `Any`, such as `dict[str,
    Any]`.
    """
    for statement in ast.parse(path.read_text()).body:
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.value, ast.Subscript | ast.BinOp)
            and contains_any(statement.value)
        ):
            yield f"{path.relative_to(ROOT)}:{statement.lineno} {ast.unparse(statement.targets[0])}"


def ignores(path: Path) -> Iterator[str]:
    """Yield `file:line comment` for each comment that silences the type checker."""
    for line, comment in read_comments(path).items():
        if IGNORE.search(comment):
            yield f"{path.relative_to(ROOT)}:{line} {comment}"


def test_few_parameters_are_of_type_any_without_a_reason() -> None:
    found = [parameter for path in FILES for parameter in parameters_of_type_any(path)]
    assert len(found) <= MAX_ANY_PARAMETERS, "\n".join(found)


def test_few_names_are_aliases_of_a_type_with_any() -> None:
    found = [alias for path in FILES for alias in aliases_of_any(path)]
    assert len(found) <= MAX_ANY_ALIASES, "\n".join(found)


def test_the_checker_reads_every_module() -> None:
    """The settings of the checker in pyproject.toml are exactly the expected ones. A setting that switches off a rule
    or leaves out a folder would hide errors.
    """
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["basedpyright"]
    silenced = {"reportMissingImports": False, "reportMissingModuleSource": False}
    interpreter = {"pythonVersion": "3.11", "pythonPlatform": "Linux"}
    include = ["jointspace", "pipeline", "stages"]
    assert settings == {"include": include, "typeCheckingMode": "standard", **interpreter, **silenced}
    assert not [path for path in FILES if "no_type_check" in path.read_text()]


def test_every_ignored_type_error_has_a_rule_and_a_reason() -> None:
    found = [comment for path in FILES for comment in ignores(path)]
    assert [comment for comment in found if not IGNORE_WITH_RULE_AND_REASON.search(comment)] == []
    assert len(found) <= MAX_IGNORES, "\n".join(found)


def test_the_counts_find_parameters_and_comments(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_text(
        "Table = dict[str, Any]\n"
        "def f(a: Any, b: 'list[Any]', c: AnyStr, *d: dict[str, Any]) -> Any:\n"
        "    text = '# pyright: ignore'\n"
        "    return g(a)  # pyright: ignore\n\n\n"
        "async def g(a: Any, **b: int): ...  # JSON of unknown form\n"
        "def h(a: Any): ...  # noqa: the line is too long\n"
        "g(1)  # pyright: ignore[reportCallIssue]  # the stubs lack an overload\n"
        "# pyright: basic\n"
    )
    assert list(aliases_of_any(path)) == ["module.py:1 Table"]
    found = sorted(parameters_of_type_any(path))
    assert found == ["module.py:2 a", "module.py:2 b", "module.py:2 d", "module.py:8 a"]
    without, with_reason, whole_file = ignores(path)
    assert without.startswith("module.py:4 ") and not IGNORE_WITH_RULE_AND_REASON.search(without)
    assert with_reason.startswith("module.py:9 ") and IGNORE_WITH_RULE_AND_REASON.search(with_reason)
    assert whole_file.startswith("module.py:10 ") and not IGNORE_WITH_RULE_AND_REASON.search(whole_file)
