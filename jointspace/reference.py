"""docs/api.md from the docstrings: `python -m jointspace.reference > docs/api.md`."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import jointspace

HEAD = """# Python

{about}

This page is made from the docstrings by `python -m jointspace.reference`.
"""
WIDTH = 100
"""Characters from which on a call has a line for each argument."""


def render() -> str:
    """The page: what `import jointspace` gives, functions first."""
    found = sorted((getattr(jointspace, name) for name in jointspace.__all__), key=inspect.isclass)
    lines = [HEAD.format(about=_prose(jointspace))]
    for one in found:
        lines += [*_heading("##", "", one.__name__, one), _prose(one) + "\n"]
        for name, function in _members(one):
            lines += [*_heading("###", f"{one.__name__}.", name, function), _prose(function) + "\n"]
    return "\n".join(lines).rstrip("\n") + "\n"


def _members(one: Any) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class, as it lists them."""
    for name, member in vars(one).items() if inspect.isclass(one) else ():
        function = member if isinstance(member, property) else getattr(member, "__func__", member)
        if not name.startswith("_") and (isinstance(member, property) or inspect.isfunction(function)):
            yield name, function


def _heading(level: str, owner: str, name: str, one: Any) -> list[str]:
    """The name, with how a function is called if that fits a line, else in a block below it."""
    call = _call(one) if inspect.isfunction(one) else ""
    if call and "\n" not in call:
        return [f"{level} `{owner}{call}`\n"]
    return [f"{level} {owner}{name}\n", *([f"```python\n{call}\n```\n"] if call else [])]


def _call(one: Any) -> str:
    """How a function is called, as its source has it."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
    for each in (each for each in ast.walk(node) if isinstance(getattr(each, "annotation", None), ast.Constant)):
        each.annotation = ast.Name(each.annotation.value)
    node.args.args = [each for each in node.args.args if each.arg not in ("self", "cls")]
    given = ast.unparse(node.args).replace("=", " = ")
    result = ast.unparse(node.returns).replace("'", "")
    call = f"{one.__name__}({given}) -> {result}"
    if len(call) > WIDTH:
        call = f"{one.__name__}(\n    " + re.sub(r", (?=[\w*])(?![^\[(]*[\])])", ",\n    ", given) + f",\n) -> {result}"
    return call


def _prose(one: Any) -> str:
    """A docstring, with its examples as blocks of code."""
    paragraphs = (inspect.getdoc(one) or "").split("\n\n")
    return "\n\n".join(map(_paragraph, paragraphs)).replace("```\n\n```python\n", "\n")


def _paragraph(text: str) -> str:
    if text.startswith(">>>"):
        return f"```pycon\n{text}\n```"
    if re.match(r"(    .*\n?)+$", text):
        return f"```python\n{inspect.cleandoc(text)}\n```"
    return text


if __name__ == "__main__":
    print(render(), end="")
