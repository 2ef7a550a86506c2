"""What is wrong with a configuration, in one sentence that names the key."""

import reprlib
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from pipeline.errors import meant

LISTED = 12
"""Legal names that a message lists; there may be many more."""
LONGEST = 80
"""Characters of a wrong value that a message shows."""

KINDS = {
    "model_type": "must be a mapping of keys to values",
    "dict_type": "must be a mapping of keys to values",
    "tuple_type": "must be a list",
    "string_type": "must be text",
    "string_pattern_mismatch": "must begin with a letter or a digit, and go on with these or any of _ . + -",
    "invalid_key": "keys must be text",
}
"""Type of pydantic's error -> what we say in place of its own message."""


def explain(error: ValidationError, schema: type[BaseModel], where: str = "", beside: Sequence[str] = ()) -> str:
    """The one sentence that helps most, of all that is wrong by `schema`; its keys stand below the key `where`, with
    the legal ones `beside` them."""
    errors = error.errors(include_url=False)
    # A misspelt key is both unknown and missing; its being unknown is what helps.
    first = min(errors, key=lambda e: e["type"] != "extra_forbidden")
    names, annotations = _walk(schema, first["loc"])
    above = [where] * bool(where)
    key = ".".join([*above, *names]) or "configuration"
    if first["type"] == "extra_forbidden":
        unknown, legal = str(first["loc"][-1]), [n for one in annotations if _is_section(one) for n in one.model_fields]
        legal += beside if not names else ()
        return f"unknown key {'.'.join([*above, *names, unknown])}; {suggest(unknown, legal, 'legal here:')}"
    if first["type"] == "missing":
        return f"key {key} is missing"
    if first["type"] == "value_error":
        return f"{where}: " * bool(where) + first["msg"].removeprefix("Value error, ")
    alike = [e for e in errors if _walk(schema, e["loc"])[0] == names]  # one for each kind of value that is legal there
    legal = " or ".join(dict.fromkeys(_legal(e) for e in alike))
    return f"key {key}: {legal}, not {_show(first['input'])}"


def _legal(error: Mapping[str, Any]) -> str:
    return KINDS.get(error["type"], error["msg"].replace("Input should be", "must be"))


def suggest(name: str, legal: Sequence[str], heading: str) -> str:
    """`did you mean NAME? HEADING NAME, NAME, ...`: the one of `legal` nearest to `name`, and the first of all."""
    listed = ", ".join(legal[:LISTED]) + (f" and {len(legal) - LISTED} more" if len(legal) > LISTED else "")
    return f"{meant(name, legal)}{heading} {listed}"


def _walk(schema: type[BaseModel], location: Sequence[str | int]) -> tuple[list[str], list[Any]]:
    """The keys and places along `location`, and what the schema has at its end.

    pydantic names the branches of a union on its way too, and the key that a pattern refuses; these are left out. An
    unknown key is not on the way: what is legal in its place is at the end.
    """
    names, annotations = [], [schema]
    for part in location:
        below = [found for annotation in annotations for found in _below(annotation, part)]
        if below:
            names.append(str(part))
            annotations = [one for found in below for one in _branches(found)]
    return names, annotations


def _below(annotation: Any, part: str | int) -> Iterator[Any]:
    """What `annotation` has at the key or place `part`, if anything."""
    if _is_section(annotation):
        if part in annotation.model_fields:
            yield annotation.model_fields[part].annotation
    elif get_origin(annotation) is dict:
        yield get_args(annotation)[1]
    elif get_origin(annotation) is tuple and isinstance(part, int):
        kinds = get_args(annotation)
        yield kinds[0] if kinds[-1] is Ellipsis else kinds[min(part, len(kinds) - 1)]


def _branches(annotation: Any) -> Iterator[Any]:
    """The kinds of value that `annotation` allows, without their constraints."""
    if get_origin(annotation) is Annotated:
        yield from _branches(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for one in get_args(annotation):
            yield from _branches(one)
    else:
        yield annotation


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


class _Short(reprlib.Repr):
    """The beginning of a value, however large it is or how often it has a part."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = LONGEST

    def repr_int(self, value: int, level: int) -> str:
        # Python refuses to write out what has more than 4,300 digits.
        return repr(value) if value.bit_length() <= LONGEST else f"an integer of {value.bit_length():,} bits"


def _show(value: Any) -> str:
    """A value as YAML has it, or the beginning of it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return _Short().repr(value)
