"""What is wrong with a configuration: a sentence for each key."""

import json
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from pipeline.errors import meant

LISTED = 12
"""Legal names, and problems, that a message lists; there may be many more."""
LONGEST = 80
"""Characters of a wrong value that a message shows."""
AS_YAML = {"model_type": "a mapping", "dict_type": "a mapping", "tuple_type": "a list"}
"""Type of pydantic's error -> its message in the words of YAML."""


def explain(
    error: ValidationError,
    schema: type[BaseModel],
    given: Mapping[str, Any] | None = None,
    where: str = "",
    beside: Sequence[str] = (),
) -> str:
    """All that is wrong by `schema`, which stands at the key `where` with the legal keys `beside` its own. A value that
    a section only inherits, and that is not `given` there, is wrong where it is given."""
    errors = [one for one in error.errors(include_url=False) if one["type"] != "too_short" or not one["input"]]
    own = [one for one in errors if given is None or one["type"] == "missing" or _stands(given, schema, one["loc"])]
    places: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for one in own or errors:
        unlike = one["type"] in ("extra_forbidden", "value_error")  # one sentence each
        places.setdefault(tuple(map(str, one["loc"])) if unlike else tuple(_walk(schema, one["loc"])[0]), []).append(
            one
        )
    problems = [line for alike in places.values() for line in _sentences(alike, schema, where, beside)]
    return join(list(dict.fromkeys(problems)))


def join(problems: Sequence[str]) -> str:
    """The problems as one line, numbered where there are several."""
    if len(problems) == 1:
        return problems[0]
    shown = "; ".join(f"({number}) {problem}" for number, problem in enumerate(problems[:LISTED], 1))
    return f"{len(problems)} problems: {shown}" + ("; and more" if len(problems) > LISTED else "")


def suggest(name: str, legal: Sequence[str], heading: str) -> str:
    """`did you mean NAME?`, the one of `legal` nearest to `name`; where none is near `HEADING NAME, NAME, ...`."""
    if nearest := meant(name, legal):
        return nearest.strip()
    listed = ", ".join(legal[:LISTED]) + (f" and {len(legal) - LISTED} more" if len(legal) > LISTED else "")
    return f"{heading} {listed}"


def _sentences(
    alike: Sequence[Mapping[str, Any]], schema: type[BaseModel], where: str, beside: Sequence[str]
) -> Iterator[str]:
    """Of the errors at one place, one for each kind of value that is legal there."""
    first = alike[0]
    names, annotations = _walk(schema, first["loc"])
    key = ".".join([*filter(None, [where]), *names]) or "configuration"
    if first["type"] == "value_error":
        name = first["input"].get("name") if isinstance(first["input"], Mapping) and names else None
        above = f"{key} ({name}): " if name else f"{key}: " if names or where else ""
        yield from (above + line for line in str(first["ctx"]["error"]).splitlines())
    elif first["type"] == "extra_forbidden":
        legal = [name for one in annotations if _is_section(one) for name in one.model_fields]
        legal += beside if not names else ()
        unknown = str(first["loc"][-1])
        path = ".".join([*filter(None, [where]), *names, unknown])
        yield f"unknown key {path}; {suggest(unknown, legal, 'legal here:')}"
    elif first["type"] == "missing":
        yield f"key {key} is missing"
    else:
        messages = dict.fromkeys(AS_YAML.get(one["type"], one["msg"].replace("Input should be ", "")) for one in alike)
        value = textwrap.shorten(json.dumps(first["input"], default=str), LONGEST, placeholder=" ...")
        yield f"key {key}: must be {' or '.join(messages)}, not {value}"


def _stands(values: Any, schema: type[BaseModel], location: Sequence[str | int]) -> bool:
    """Whether there is a value at `location`."""
    for name in _walk(schema, location)[0]:
        if isinstance(values, Mapping) and name in values:
            values = values[name]
        elif isinstance(values, list | tuple) and name.isdecimal() and int(name) < len(values):
            values = values[int(name)]
        else:
            return False
    return True


def _walk(schema: type[BaseModel], location: Sequence[str | int]) -> tuple[list[str], list[Any]]:
    """The keys and places along `location`, and what the schema has at its end. pydantic names the branches of a union
    on its way too; these are left out, as is an unknown key."""
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
