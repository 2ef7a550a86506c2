"""Reading a YAML file that may be wrong in any way, hostile ones too, without harm."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import UsageError, meant

DEEPEST = 100
"""Levels of a configuration; ours has five. More would overflow libyaml's stack, and PyYAML takes their square."""
LARGEST = 100_000
"""Values of a configuration once its aliases are written out; a few lines of aliases of aliases make billions."""

Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in the file. UsageError names the file and, where there is one, the line that is wrong."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        beside = map(str, Path(path).parent.glob("*.yaml"))
        remedy = meant(str(path), beside) or "give the path of a YAML file"
        raise UsageError(f"configuration {path} does not exist; {remedy.strip()}") from None
    except OSError as error:
        raise UsageError(f"configuration {path} cannot be read ({error.strerror}); name a file of yours") from error
    except ValueError as error:
        raise UsageError(f"configuration {path} is not UTF-8 text ({error}); save it as that") from error
    try:
        values = parse(text)
    except (yaml.YAMLError, ValueError, ArithmeticError, RecursionError) as error:
        raise UsageError(f"configuration {path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise UsageError(f"configuration {path} must be a mapping of keys to values")
    return values


def parse(text: str) -> Any:
    """The YAML of a whole file, by libyaml where PyYAML has it. ValueError for what is too deep or too large, and for a
    key that is given twice."""
    return copy.deepcopy(_parse_once(text))


@lru_cache(maxsize=4)  # a command reads the defaults and its run's configuration again and again
def _parse_once(text: str) -> Any:
    _check_size(text)
    loader = Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check_keys(node)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _check_size(text: str) -> None:
    """ValueError for what is nested deeper than DEEPEST, or has more than LARGEST values, once each alias is replaced
    by what it stands for; an alias inside what it stands for never ends."""
    known: dict[str | None, tuple[int, int]] = {}  # anchor -> values and levels of what it names
    opened = [_Open(None)]  # the file, and the collections that the place is in
    for event in yaml.parse(text, Loader):
        line, levels = event.start_mark.line + 1, 0
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append(_Open(event.anchor))
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in known or event.anchor in (one.anchor for one in opened):
                raise ValueError(f"line {line}: the alias *{event.anchor} stands for nothing, or for what it is in")
            size, levels = known[event.anchor]
            opened[-1].hold(size, levels)
        elif isinstance(event, yaml.ScalarEvent):
            known[event.anchor] = 1, 0
            opened[-1].hold(1, 0)
        elif isinstance(event, yaml.CollectionEndEvent):
            closed = opened.pop()
            known[closed.anchor] = closed.size, closed.levels
            opened[-1].hold(closed.size, closed.levels)
        if len(opened) - 1 + levels > DEEPEST:
            raise ValueError(f"line {line}: it is nested more than {DEEPEST} levels deep")
        if opened[-1].size > LARGEST:
            raise ValueError(f"line {line}: it has more than {LARGEST:,} values")


@dataclass
class _Open:
    """A collection that is not yet closed: its anchor, its values with itself, and its levels with its own."""

    anchor: str | None
    size: int = 1
    levels: int = 1

    def hold(self, size: int, levels: int) -> None:
        """It holds one more value, of so many values and levels."""
        self.size += size
        self.levels = max(self.levels, levels + 1)


def _check_keys(root: yaml.Node) -> None:
    """ValueError for a key that a mapping has twice: the first value would be lost without a word."""
    for node in _mappings(root):
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            name, line = (key.tag, str(key.value)), key.start_mark.line + 1
            if name in lines:
                raise ValueError(f"line {line}: the key {key.value} is in line {lines[name]} already; keep one of them")
            lines[name] = line


def _mappings(root: yaml.Node) -> Iterator[yaml.MappingNode]:
    """Every mapping below `root` once, however many aliases it has."""
    waiting, seen = [root], {id(root)}
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.MappingNode):
            yield node
            below = [part for pair in node.value for part in pair]
        else:
            below = node.value if isinstance(node, yaml.SequenceNode) else []
        for part in below:
            if id(part) not in seen:
                seen.add(id(part))
                waiting.append(part)
