"""Dependency parses and CoNLL-U, the text form of Universal Dependencies: one word a line, ten columns."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.errors import InputError

COLUMNS = 10
ROOT = -1
ROOT_RELATION = "root"
UNSPECIFIED = "dep"
"""Universal Dependencies' relation where no better one is known."""


@dataclass(frozen=True)
class Parse:
    """A sentence of m words: `upos` and `xpos` (universal and own part of speech), `heads` (position from 0, -1: root),
    `relations` to the heads, and `spaces`: whether a space follows each word."""

    words: tuple[str, ...]
    upos: tuple[str, ...]
    xpos: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]
    spaces: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.words)


def chain(words: Sequence[str]) -> Parse:
    """Every word the head of the next: what stands in for a parse where there is none."""
    unknown = ("X",) * len(words)
    relations = tuple(UNSPECIFIED if number else ROOT_RELATION for number in range(len(words)))
    heads = tuple(range(ROOT, len(words) - 1))
    return Parse(tuple(words), unknown, ("_",) * len(words), heads, relations, (True,) * len(words))


def format_conllu(parse: Parse, comments: Iterable[tuple[str, str]]) -> str:
    """The lines of one sentence, `# key = value` for each comment first, and the empty line that ends it."""
    lines = [f"# {key} = {value}" for key, value in comments]
    columns = (parse.words, parse.upos, parse.xpos, parse.heads, parse.relations, parse.spaces)
    for number, (word, upos, xpos, head, relation, space) in enumerate(zip(*columns, strict=True), start=1):
        misc = "_" if space else "SpaceAfter=No"
        lines.append(f"{number}\t{word}\t_\t{upos}\t{xpos}\t_\t{head + 1}\t{relation}\t_\t{misc}")
    return "\n".join(lines) + "\n\n"


@dataclass(frozen=True)
class Entry:
    """One sentence of a file: its `# key = value` comments and its parse."""

    comments: dict[str, str]
    parse: Parse


def read_conllu(lines: Iterable[str], name: str) -> Iterator[Entry]:
    """The sentences in `lines` of the file `name`; spans of several words and empty nodes are passed over.

    A sentence that consists of comments alone has no words. Raises InputError that names the file and line of a row
    without ten columns, a word number out of turn, a head outside the sentence, a second or no root, or a cycle.
    """
    comments: dict[str, str] = {}
    rows: list[list[str]] = []
    number = 0
    for number, line in enumerate(lines, start=1):
        line = line.rstrip("\r\n")
        if not line.strip():
            if rows or comments:
                yield Entry(comments, _parse(rows, f"{name}, sentence before line {number}"))
            comments, rows = {}, []
        elif line.startswith("#"):
            key, equals, value = line[1:].partition("=")
            if equals:
                comments[key.strip()] = value.strip()
        else:
            rows.extend(_row(line, len(rows) + 1, f"{name}, line {number}"))
    if rows or comments:
        yield Entry(comments, _parse(rows, f"{name}, sentence before line {number + 1}"))


def _row(line: str, expected: int, where: str) -> list[list[str]]:
    """The columns of a word's line; nothing for the line of a span or an empty node."""
    columns = line.split("\t")
    if len(columns) != COLUMNS:
        raise InputError(f"{where}: {len(columns)} columns instead of {COLUMNS} with tabs between; export as CoNLL-U")
    first, dash, _ = columns[0].partition("-")
    if first.isdigit() and dash or columns[0].partition(".")[1]:
        return []
    if columns[0] != str(expected):
        raise InputError(
            f"{where}: word number {columns[0]} instead of {expected}; end every sentence by an empty line"
        )
    if not columns[1]:
        raise InputError(f"{where}: the word is empty; write _ or leave the line out")
    if not (columns[6].isascii() and columns[6].isdigit()):
        raise InputError(f"{where}: head {columns[6]!r} is not a word number; write 0 for the root")
    return [columns]


def _parse(rows: list[list[str]], where: str) -> Parse:
    heads = [int(row[6]) - 1 for row in rows]
    if fault := tree_fault(heads):
        raise InputError(f"{where}: {fault}; correct column 7 (HEAD)")
    _, words, _, upos, xpos, _, _, relations, _, misc = zip(*rows, strict=True) if rows else ((),) * COLUMNS
    spaces = tuple("SpaceAfter=No" not in value.split("|") for value in misc)
    return Parse(words, upos, xpos, tuple(heads), relations, spaces)


def tree_fault(heads: Sequence[int]) -> str | None:
    """What keeps `heads` (-1: root) from being a tree; None where nothing does, or there is no word."""
    roots = [word for word, head in enumerate(heads, start=1) if head == ROOT]
    for word, head in enumerate(heads, start=1):
        if not ROOT <= head < len(heads):
            return f"head {head + 1} of word {word} is outside the sentence of {len(heads)} words"
    if heads and len(roots) != 1:
        return f"{len(roots)} roots" + (f" (words {roots[0]} and {roots[1]})" if roots else "") + " instead of one"
    reached = [head == ROOT for head in heads]
    for word in range(len(heads)):
        path = set()
        while not reached[word]:
            if word in path:
                return f"word {word + 1} is on a cycle"
            path.add(word)
            word = heads[word]
        for passed in path:
            reached[passed] = True
    return None
