"""Generates docs/api.md from the docstrings: `python -m jointspace.reference > docs/api.md`."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from types import FunctionType, ModuleType

import jointspace

HEAD = """# Python

{about}

This page is generated from the docstrings by `python -m jointspace.reference`.
"""
MAX_LINE_CHARACTERS = 132
"""Maximum length of a line of prose, as on the other pages."""
MAX_SIGNATURE_CHARACTERS = 100
"""Maximum length of a line of a signature. Longer signatures have several lines."""


def render() -> str:
    """Return the Markdown of all public names of jointspace, functions first."""
    found = sorted((getattr(jointspace, name) for name in jointspace.__all__), key=inspect.isclass)
    lines = [HEAD.format(about=_prose(jointspace))]
    for one in found:
        lines += [*_heading("##", "", one.__name__, one), _prose(one) + "\n"]
        for name, function in _members(one):
            lines += [*_heading("###", f"{one.__name__}.", name, function), _prose(function) + "\n"]
    return "\n".join(lines).rstrip("\n") + "\n"


Documented = ModuleType | type | FunctionType | property


def _members(one: Documented) -> Iterator[tuple[str, FunctionType | property]]:
    """Yield the public methods and properties of a class as (name, function), in the order of their definition.

    Yields nothing if `one` is not a class. Inherited methods are left out.
    """
    for name, member in vars(one).items() if inspect.isclass(one) else ():
        function = member if isinstance(member, property) else getattr(member, "__func__", member)
        if not name.startswith("_") and isinstance(function, property | FunctionType):
            yield name, function


def _heading(level: str, owner: str, name: str, one: Documented) -> list[str]:
    """Return the lines of a heading with the name of a class, function or property, and with the signature of a
    function.

    A signature that fits on one line is part of the heading. A longer signature is a code block below the heading.
    `level` is the Markdown at the beginning of the heading, such as `##`. `owner` is the class of a method, followed by
    a dot, or "".
    """
    call = _call(one) if isinstance(one, FunctionType) else ""
    if call and "\n" not in call:
        return [f"{level} `{owner}{call}`\n"]
    return [f"{level} {owner}{name}\n", *([f"```python\n{call}\n```\n"] if call else [])]


def _call(one: FunctionType) -> str:
    """Return the name and the signature of a function as in its source, without `self` or `cls`.

    If the line would have more than MAX_SIGNATURE_CHARACTERS characters, the arguments fill several lines, and each
    line begins below the first argument. No argument is divided.
    """
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
    assert isinstance(node, ast.FunctionDef) and node.returns is not None
    for argument in (each for each in ast.walk(node) if isinstance(each, ast.arg)):
        if isinstance(argument.annotation, ast.Constant):
            argument.annotation = ast.Name(str(argument.annotation.value))
    node.args.args = [each for each in node.args.args if each.arg not in ("self", "cls")]
    given = ast.unparse(node.args).replace("=", " = ")
    *first, last = re.split(r"(?<!\*), (?=[\w*])(?![^\[(]*[\])])", given)
    result = ast.unparse(node.returns).replace("'", "")
    lines = [f"{one.__name__}("]
    for argument in [*(f"{each}, " for each in first), f"{last}) -> {result}"]:
        if not lines[-1].endswith("(") and len(lines[-1] + argument.rstrip()) > MAX_SIGNATURE_CHARACTERS:
            lines.append(" " * len(f"{one.__name__}("))
        lines[-1] += argument
    return "\n".join(map(str.rstrip, lines))


def _prose(one: Documented) -> str:
    """Return a docstring as Markdown. Its examples become code blocks."""
    paragraphs = (inspect.getdoc(one) or "").split("\n\n")
    return "\n\n".join(map(_paragraph, paragraphs)).replace("```\n\n```python\n", "\n")


def _paragraph(text: str) -> str:
    """Return a paragraph of a docstring as Markdown.

    A doctest or an indented paragraph becomes a code block. A list or table is not changed. Other paragraphs are
    wrapped into lines of at most MAX_LINE_CHARACTERS characters.
    """
    if text.startswith(">>>"):
        return f"```pycon\n{text}\n```"
    if re.match(r"(    .*\n?)+$", text):
        return f"```python\n{inspect.cleandoc(text)}\n```"
    if re.search(r"^[-*|] |^ ", text, re.M):
        return text
    return textwrap.fill(text, MAX_LINE_CHARACTERS, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    print(render(), end="")
