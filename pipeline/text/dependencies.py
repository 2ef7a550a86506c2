"""Dependency trees, and CoNLL-U, their text form in Universal Dependencies: one word per line, ten columns."""

import itertools
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
    """A sentence of m words: `upos` and `xpos` (universal and treebank part of speech), `heads` (position from 0, -1:
    root), `relations` to the heads, and `spaces`: whether a space follows each word."""

    words: tuple[str, ...]
    upos: tuple[str, ...]
    xpos: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]
    spaces: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.words)


def chain(words: Sequence[str]) -> Parse:
    """A stand-in for a missing parse: each word is the head of the next."""
    n = len(words)
    relations = (ROOT_RELATION, *[UNSPECIFIED] * (n - 1))[:n]
    return Parse(tuple(words), ("X",) * n, ("_",) * n, tuple(range(ROOT, n - 1)), relations, (True,) * n)


def format_conllu(parse: Parse, comments: Iterable[tuple[str, str]]) -> str:
    """One sentence: a line `# key = value` per comment, a line per word, and the empty line that ends it."""
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
    """The sentences in `lines` of the file `name`, without multiword spans and empty nodes.

    A sentence with comments only has no words. Raises InputError naming the file and line of a row without ten
    columns, a word number out of order, a head outside the sentence, a second or missing root, or a cycle.
    """
    comments: dict[str, str] = {}
    rows: list[list[str]] = []
    for number, line in enumerate(itertools.chain(lines, [""]), start=1):
        line = line.rstrip("\r\n")
        if not line.strip():
            heads = [int(row[6]) - 1 for row in rows]
            if fault := tree_fault(heads):
                raise InputError(f"{name}, sentence before line {number}: {fault}; correct column 7 (HEAD)")
            columns = zip(*rows, strict=True) if rows else ((),) * COLUMNS
            _, words, _, upos, xpos, _, _, relations, _, misc = columns
            spaces = tuple("SpaceAfter=No" not in value.split("|") for value in misc)
            if rows or comments:
                yield Entry(comments, Parse(words, upos, xpos, tuple(heads), relations, spaces))
            comments, rows = {}, []
        elif line.startswith("#"):
            key, equals, value = line[1:].partition("=")
            if equals:
                comments[key.strip()] = value.strip()
        else:
            rows.extend(_row(line, len(rows) + 1, f"{name}, line {number}"))


def _row(line: str, expected: int, where: str) -> list[list[str]]:
    """The columns of a word's line; none for a multiword span or an empty node."""
    columns = line.split("\t")
    if len(columns) != COLUMNS:
        raise InputError(f"{where}: {len(columns)} columns instead of {COLUMNS} (tab-separated); export as CoNLL-U")
    number, word, head = columns[0], columns[1], columns[6]
    first, dash, _ = number.partition("-")
    if first.isdigit() and dash or "." in number:
        return []
    if number != str(expected):
        raise InputError(f"{where}: word number {number} instead of {expected}; end every sentence with an empty line")
    if not word:
        raise InputError(f"{where}: the word is empty; write _ or delete the line")
    if not (head.isascii() and head.isdigit()):
        raise InputError(f"{where}: head {head!r} is not a word number; write 0 for the root")
    return [columns]


def tree_fault(heads: Sequence[int]) -> str | None:
    """Why `heads` (-1: root) are not a tree; None if they are one, or empty."""
    roots = [word for word, head in enumerate(heads, start=1) if head == ROOT]
    for word, head in enumerate(heads, start=1):
        if not ROOT <= head < len(heads):
            return f"head {head + 1} of word {word} is outside the sentence of {len(heads)} words"
    if heads and len(roots) != 1:
        return f"{len(roots)} roots" + (f" (words {roots[0]} and {roots[1]})" if roots else "") + " instead of one"
    try:
        depths(heads)
    except ValueError as error:
        return str(error)
    return None


def depths(heads: Sequence[int]) -> list[int]:
    """The number of arcs between each word and the root. ValueError for a cycle."""
    steps_to_root = [0 if head == ROOT else -1 for head in heads]
    for word in range(len(heads)):
        path = []
        while steps_to_root[word] < 0:
            path.append(word)
            word = heads[word]
            if len(path) > len(heads):
                raise ValueError(f"word {word + 1} is on a cycle")
        for steps, passed in enumerate(reversed(path), start=1):
            steps_to_root[passed] = steps_to_root[word] + steps
    return steps_to_root


def projective_heads(heads: Sequence[int]) -> list[int]:
    """`heads` made projective: while arcs cross, the dependent of the shortest such arc moves to its head's head."""
    heads = list(heads)
    while not _is_projective(heads):
        arcs = [word for word, head in enumerate(heads) if head != ROOT and not _spans(heads, word, head)]
        word = min(arcs, key=lambda word: (abs(word - heads[word]), word))
        heads[word] = heads[heads[word]]
    return heads


def _is_projective(heads: Sequence[int]) -> bool:
    """Whether every word and its descendants are contiguous."""
    count, first, last = [1] * len(heads), list(range(len(heads))), list(range(len(heads)))
    for word in sorted(range(len(heads)), key=depths(heads).__getitem__, reverse=True):
        if last[word] - first[word] >= count[word]:
            return False
        head = heads[word]
        if head != ROOT:
            count[head] += count[word]
            first[head], last[head] = min(first[head], first[word]), max(last[head], last[word])
    return True


def _spans(heads: Sequence[int], word: int, head: int) -> bool:
    """Whether every word between the two descends from `head`."""
    for between in range(min(word, head) + 1, max(word, head)):
        while between not in (head, ROOT):
            between = heads[between]
        if between == ROOT:
            return False
    return True
