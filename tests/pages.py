"""What README.md and docs/*.md print: blocks, spans of code, and the commands in both, in the order of the pages."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PROGRAMS = ("snakemake", "jointspace", "python", "python3", "pip", "pytest", "dask", "cp")
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b")
"""A word of a command that stands for something else: MODEL, COMMAND."""
BLOCK, SPAN = r"^```(?P<language>\w*)\n(?P<block>.*?)^```$", r"(?<!`)`(?P<span>[^`\n]+(?:\n[^`\n]+)*)`(?!`)"
CODE = re.compile(f"{BLOCK}|{SPAN}", re.M | re.S)


@dataclass(frozen=True)
class Code:
    """One block of a page, with its `language`, or one span of its prose (`language` None); `line` counts from 1."""

    page: Path
    line: int
    language: str | None
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


@dataclass(frozen=True)
class Command(Code):
    """A line of a shell block, or a span that begins with a program and says what it is to do."""

    @property
    def calls(self) -> list[list[str]]:
        """The words of each program that it starts, without `&`, and without `>` and what follows."""
        found: list[list[str]] = [[]]
        for word in shlex.split(self.text):
            if word == "&&":
                found.append([])
            elif word != "&":
                found[-1].append(word)
        return [words[: words.index(">")] if ">" in words else words for words in found]


def code(page: Path) -> Iterator[Code]:
    """The blocks and spans of a page."""
    text = page.read_text(encoding="utf-8")
    for found in CODE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        if found["span"] is None:
            yield Code(page, line, found["language"], found["block"])
        else:
            yield Code(page, line, None, " ".join(found["span"].split()))


def blocks(language: str) -> list[Code]:
    """The blocks of one language of all pages."""
    return [one for page in PAGES for one in code(page) if one.language == language]


def spans() -> list[Code]:
    """The spans of code in the prose and the tables of all pages."""
    return [one for page in PAGES for one in code(page) if one.language is None]


def commands_of(one: Code) -> Iterator[Command]:
    """The commands in a block or span; comments are left out."""
    if one.language in ("sh", "bash", "console"):
        for line in re.finditer(r"(?:[^\n]*\\\n)*[^\n]+", one.text):
            if words := " ".join(line[0].replace("\\\n", " ").split(" #")[0].split()):
                yield Command(one.page, one.line + 1 + one.text.count("\n", 0, line.start()), one.language, words)
    elif one.language is None and " " in one.text and Path(one.text.split()[0]).name in PROGRAMS:
        yield Command(one.page, one.line, None, one.text)


def commands() -> list[Command]:
    """Every command of all pages."""
    return [command for page in PAGES for one in code(page) for command in commands_of(one)]
