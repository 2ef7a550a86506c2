"""Dependency trees, and their text format CoNLL-U of Universal Dependencies: one word per line, ten columns."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.errors import InputError

CONLLU_COLUMNS = 10
ROOT = -1
"""The head of a word that is the root of its sentence."""
ROOT_RELATION = "root"
UNSPECIFIED = "dep"
"""The relation of Universal Dependencies for an unknown relation."""


@dataclass(frozen=True)
class Parse:
    """The dependency parse of a sentence of m words. Each field has one entry per word.

    `upos` and `xpos` are the universal part of speech and the part of speech of the treebank. `heads` are the positions
    of the heads, from 0, or -1 for the root. `relations` are the relations to the heads. `spaces` says whether a space
    follows the word.
    """

    words: tuple[str, ...]
    upos: tuple[str, ...]
    xpos: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]
    spaces: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.words)


def chain(words: Sequence[str]) -> Parse:
    """Return a substitute for a missing parse. The first word is the root. Each word is the head of the next word, with
    the relation UNSPECIFIED. The parts of speech are unknown: X in `upos`, and _ in `xpos`."""
    n = len(words)
    relations = (ROOT_RELATION, *[UNSPECIFIED] * (n - 1))[:n]
    return Parse(tuple(words), ("X",) * n, ("_",) * n, tuple(range(ROOT, n - 1)), relations, (True,) * n)


def format_conllu(parse: Parse, comments: Iterable[tuple[str, str]]) -> str:
    """Format a sentence as CoNLL-U: a line `# key = value` for each comment, a line for each word, and an empty
    line."""
    lines = [f"# {key} = {value}" for key, value in comments]
    columns = (parse.words, parse.upos, parse.xpos, parse.heads, parse.relations, parse.spaces)
    for number, (word, upos, xpos, head, relation, space) in enumerate(zip(*columns, strict=True), start=1):
        misc = "_" if space else "SpaceAfter=No"
        lines.append(f"{number}\t{word}\t_\t{upos}\t{xpos}\t_\t{head + 1}\t{relation}\t_\t{misc}")
    return "\n".join(lines) + "\n\n"


@dataclass(frozen=True)
class Entry:
    """A sentence of a CoNLL-U file: its `# key = value` comments and its parse."""

    comments: dict[str, str]
    parse: Parse


def read_conllu(lines: Iterable[str], name: str) -> Iterator[Entry]:
    """Read the sentences in the `lines` of a CoNLL-U file. `name` is the name of the file for messages.

    Multiword spans and empty nodes are ignored. Comments without a following word are a sentence without words. Raises
    InputError, with the file and the line, for a row without ten columns, a word number out of order, an empty word, a
    head that is not a number or is outside the sentence, a missing or second root, or a cycle.
    """
    comments: dict[str, str] = {}
    rows: list[list[str]] = []
    for number, line in enumerate(itertools.chain(lines, [""]), start=1):
        line = line.rstrip("\r\n")
        if not line.strip():
            heads = [int(row[6]) - 1 for row in rows]
            if fault := tree_fault(heads):
                raise InputError(f"{name}, sentence before line {number}: {fault}. Correct column 7 (HEAD).")
            columns = zip(*rows, strict=True) if rows else ((),) * CONLLU_COLUMNS
            _, words, _, upos, xpos, _, _, relations, _, misc = columns
            spaces = tuple("SpaceAfter=No" not in value.split("|") for value in misc)
            if rows or comments:
                yield Entry(comments, Parse(words, upos, xpos, tuple(heads), relations, spaces))
            comments = {}
            rows = []
        elif line.startswith("#"):
            key, equals, value = line[1:].partition("=")
            if equals:
                comments[key.strip()] = value.strip()
        else:
            rows.extend(_row(line, len(rows) + 1, f"{name}, line {number}"))


def _row(line: str, expected: int, where: str) -> list[list[str]]:
    """Return a list that has the columns of a word's line as its only entry, or an empty list for a multiword span or
    an empty node. Raises InputError, which begins with `where`, if the line does not have ten columns, is not the word
    with the number `expected`, or has an empty word or a head that is not a number."""
    columns = line.split("\t")
    if len(columns) != CONLLU_COLUMNS:
        raise InputError(
            f"{where}: the line has {len(columns)} tab-separated columns instead of {CONLLU_COLUMNS}. Export the parses"
            " as CoNLL-U."
        )
    number = columns[0]
    word = columns[1]
    head = columns[6]
    first, dash, _ = number.partition("-")
    if first.isdigit() and dash or "." in number:
        return []
    if number != str(expected):
        raise InputError(
            f"{where}: the word has the number {number} instead of {expected}. End every sentence with an empty line."
        )
    if not word:
        raise InputError(f"{where}: the word is empty. Write _ or delete the line.")
    if not (head.isascii() and head.isdigit()):
        raise InputError(
            f"{where}: the head {head!r} is not a word number. Write the number of the head word, or 0 for the root."
        )
    return [columns]


def tree_fault(heads: Sequence[int]) -> str | None:
    """Return a text that says why `heads` (-1 for the root) do not form a tree, or None if they form a tree or are
    empty. The text counts words from 1, as CoNLL-U does."""
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
    """Return the number of arcs between each word and the root. Raises ValueError if the heads form a cycle."""
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
    """Make a tree projective, and return the new heads. In a projective tree, every word forms a contiguous span with
    its descendants. `heads` are the positions of the heads of the words, counted from 0, or -1 for the root.

    An arc is non-projective if a word between its two ends does not descend from its head. As long as the tree is not
    projective, the shortest non-projective arc is replaced: its dependent gets the head of its former head.
    """
    heads = list(heads)
    while not _is_projective(heads):
        arcs = [word for word, head in enumerate(heads) if head != ROOT and not _spans(heads, word, head)]
        word = min(arcs, key=lambda word: (abs(word - heads[word]), word))
        heads[word] = heads[heads[word]]
    return heads


def _is_projective(heads: Sequence[int]) -> bool:
    """Return whether every word forms a contiguous span with its descendants."""
    count = [1] * len(heads)
    first = list(range(len(heads)))
    last = list(range(len(heads)))
    for word in sorted(range(len(heads)), key=depths(heads).__getitem__, reverse=True):
        if last[word] - first[word] >= count[word]:
            return False
        head = heads[word]
        if head != ROOT:
            count[head] += count[word]
            first[head], last[head] = min(first[head], first[word]), max(last[head], last[word])
    return True


def _spans(heads: Sequence[int], word: int, head: int) -> bool:
    """Return whether every word between `word` and `head` descends from `head`."""
    for between in range(min(word, head) + 1, max(word, head)):
        while between not in (head, ROOT):
            between = heads[between]
        if between == ROOT:
            return False
    return True
