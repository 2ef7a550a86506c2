"""Tests which show that the texts that users read have one word for each thing.

The tests check prose outside of code. Names in code, such as keys of a configuration, columns of a table, fields of the
API and options, may still have an older word. The two renamed options of FORBIDDEN may be named only in CHANGELOG.md.
"""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from stages.cli import cli, stage

ROOT = Path(__file__).parents[1]
FORBIDDEN = {
    "photo": r"\bphotographs?\b(?!=)",  # photograph= is a field of a form of the API
    "CPU": r"(?<!image )\bprocessors?\b",  # an image processor is a class of transformers
    "index, or index shard": r"(?<!index\.)\bbundles?\b",
    "indexes": r"\bindices\b",
    "published": r"\bprinted\b",
    "published result": r"\b(?:a|the|its|their|in|of|below|above) print\b|\b(?:the|their) prints\b",
    "synthetic": r"\bmade[- ]up\b",
    "likely matches": r"\blikely answers?\b",
    "near-duplicates": r"\bnear[- ]cop(?:y|ies)\b",
    "out of domain": r"\boff[- ]topic\b",
    "--force": r"--again\b",
    "--gpus": r"--cards\b",
}
"""Mapping from a word of the glossary to a regular expression of words that a text must not use in its place."""
MARKDOWN_CODE = re.compile(r"^```.*?^```$|`[^`\n]+(?:\n[^`\n]+)*`|\]\([^)]*\)", re.M | re.S)
"""Blocks of code, code spans and link targets of a Markdown page."""
JINJA = re.compile(r"\{[%{#].*?[%}#]\}", re.S)
JAVASCRIPT_STRING = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`")

Text = tuple[str, str]
"""A pair: the place where users read a text, such as a file with a line, and the text."""


def page_texts(*patterns: str, outside: str = "-") -> Iterator[Text]:
    """Yield the prose of the Markdown pages that match `patterns` (glob patterns), except the page `outside`. The names
    of options in code are also yielded, except for CHANGELOG.md.
    """
    for page in sorted({path for pattern in patterns for path in ROOT.glob(pattern)} - {ROOT / outside}):
        text = page.read_text(encoding="utf-8")
        yield page.relative_to(ROOT).as_posix(), MARKDOWN_CODE.sub(" ", text)
        for code in MARKDOWN_CODE.findall(text) if page.name != "CHANGELOG.md" else ():
            yield f"{page.relative_to(ROOT)}: code", " ".join(re.findall(r"--\w+", code))


def other_pages() -> Iterator[Text]:
    """Yield the captions of Snakemake's report, the text of the notebook, the comments of config/default.yaml, and the
    words in docs/architecture.svg.
    """
    for path in sorted((ROOT / "docs/captions").glob("*.rst")):
        yield path.name, JINJA.sub(" ", path.read_text())
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] == "markdown":
                yield path.name, MARKDOWN_CODE.sub(" ", "".join(cell["source"]))
    for number, line in enumerate((ROOT / "config/default.yaml").read_text().splitlines(), 1):
        yield f"config/default.yaml:{number}", line.partition("# ")[2]
    yield "docs/architecture.svg", re.sub(r"<[^>]+>", " ", (ROOT / "docs/architecture.svg").read_text())


def help_texts(group: click.Group = cli, path: str = "jointspace") -> Iterator[Text]:
    """Yield the help of `group`, the group of commands that is called by `path`, and of all commands in it, also in
    groups below it. The help of a command includes its options and arguments.
    """
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name} --help", command.get_help(click.Context(command, info_name=name))
        if isinstance(command, click.Group):
            yield from help_texts(command, f"{path} {name}")
    yield f"{path} --help", group.get_help(context)


def template_texts() -> Iterator[Text]:
    """Yield the visible text of the search page and of the report, and the strings in their JavaScript and Jinja code.

    A string without a space is left out, unless it begins with a capital letter, because it is a name in the program. A
    string that begins with `#`, `.`, `[` or `<` is left out too, because it is a selector of CSS, or HTML.
    """
    for path in sorted(ROOT.glob("pipeline/*/templates/*")):
        text = path.read_text(encoding="utf-8")
        strings = JAVASCRIPT_STRING.findall(text) if path.suffix == ".js" else []
        if path.suffix == ".html":
            attributes = re.findall(r"\b(?:title|alt|placeholder|aria-label)=\"([^\"]*)\"", text)
            strings = [string for tag in JINJA.findall(text) for string in JAVASCRIPT_STRING.findall(tag)]
            yield path.name, re.sub(r"<[^>]+>", " ", JINJA.sub(" ", text)) + JINJA.sub(" ", " ".join(attributes))
        for string in strings:
            if string[1:2] not in "#.[<" and (" " in string.strip("\"'` ") or string[1:2].isupper()):
                yield path.name, re.sub(r"\$\{[^}]*\}", " ", string)


def literals(*folders: str, outside: str = "-", code: bool = False) -> Iterator[Text]:
    """Yield the string literals that contain a space in the Python files of `folders`, except docstrings.

    Values in an f-string count as X. Files whose path begins with `outside` are left out. Parts in backticks are
    removed unless `code` is true.
    """
    for path in sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        if place.startswith(outside):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        done = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if id(node) in done:
                continue
            text = ""
            if isinstance(node, ast.JoinedStr):
                done |= {id(part) for part in node.values}
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            if " " in text:
                yield f"{place}:{node.lineno}", text if code else MARKDOWN_CODE.sub(" ", text)


SOURCES = {
    "README and docs": lambda: page_texts("*.md", "docs/*.md", outside="docs/papers.md"),
    "docs of the papers": lambda: page_texts("docs/papers.md", "docs/papers/*.md"),
    "captions, notebook and keys": other_pages,
    "help of commands": help_texts,
    "help of stages": lambda: help_texts(stage, "jointspace stage"),
    "search page and report": template_texts,
    "messages of jointspace and pipeline": lambda: literals("jointspace", "pipeline", outside="pipeline/papers/"),
    "messages of pipeline/papers": lambda: literals("pipeline/papers"),
    "messages of stages": lambda: literals("stages"),
}


@pytest.mark.parametrize("source", SOURCES)
def test_users_read_the_words_of_the_glossary(source: str) -> None:
    wrong = []
    texts = list(SOURCES[source]())
    for place, text in texts:
        for word, pattern in FORBIDDEN.items():
            for found in re.finditer(pattern, text, re.I):
                part = " ".join(text[max(0, found.start() - 30) : found.end() + 30].split())
                wrong.append(f"{place}: {part!r}: write {word}")
    assert len(texts) > 3
    assert not wrong, "\n".join(wrong)
