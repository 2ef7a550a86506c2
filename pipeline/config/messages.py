"""Messages about a configuration: converts pydantic's errors to sentences with the key and similar known names."""

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from pydantic import BaseModel, ValidationError

from pipeline.errors import did_you_mean

MAX_LISTED = 12
"""Largest number of legal names, or of problems, that a message lists. The message says if there are more."""
MAX_VALUE_CHARS = 80
"""Largest number of characters of a wrong value that a message shows."""
EXPECTED = {
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number, with a point before the decimals",
    "float_type": "a number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
}
"""The expected value in the terms of YAML, by the type of a pydantic error."""


def explain(
    error: ValidationError,
    schema: type[BaseModel],
    given: Mapping[str, object] | None = None,
    where: str = "",
    beside: Sequence[str] = (),
) -> str:
    """Return the problems of a configuration, or of its section at the key `where`, as one line.

    `schema` is the class of the configuration or of the section, and `beside` are further legal keys. `given` are the
    user's values. A wrong value that a section inherits is only reported at the key at which the user gave it. If
    `given` is None, all problems are reported.
    """
    found = error.errors(include_url=False)
    # Pydantic does not count wrong values of a list, so it may also report the list as too short. This report is left
    # out.
    inside_lists = {fault["loc"][:length] for fault in found for length in range(len(fault["loc"]))}
    faults = [fault for fault in found if fault["type"] != "too_short" or fault["loc"] not in inside_lists]
    stated = [
        fault for fault in faults if given is None or fault["type"] == "missing" or _is_given(given, fault["loc"])
    ]
    problems: dict[tuple[str, str], list[str]] = {}
    for fault in stated or faults:
        # A part with a bracket is not a key. It names a type of entry that pydantic tried, such as [NetworkEntry].
        path = [str(part) for part in fault["loc"] if "[" not in str(part)]
        key = ".".join([where, *path] if where else path)
        context = fault.get("ctx", {})
        last = str(fault["loc"][-1])  # A user's own key that has a bracket is only here and not in `path`.
        if fault["type"] == "extra_forbidden":
            legal = [*_legal(schema, [str(part) for part in fault["loc"]][:-1]), *(beside if len(path) == 1 else ())]
            problems[f"unknown key {key or last}. {suggest(last, legal, 'The legal keys are')}", ""] = []
        elif fault["type"] == "missing":
            problems[f"key {key} is missing", ""] = []
        elif fault["type"] == "value_error":
            name = fault["input"].get("name") if isinstance(fault["input"], Mapping) and path else None
            above = f"{key} ({name}): " if name else f"{key}: " if key else ""
            problems |= {(above + line, ""): [] for line in str(context["error"]).splitlines()}
        elif fault["type"] == "invalid_key":
            above = f"key {'.'.join(path[:-1])}: " if path[:-1] else ""
            problems[
                f"{above}{last} is read as the name of a key. If it is the end of a number with a decimal comma,"
                " write a point instead (0.05). If it is a name, put it in quotes",
                "",
            ] = []
        elif fault["type"] == "too_short":
            least = context["min_length"]
            problems[
                f"key {key} needs at least {least} value{'s' * (least > 1)}, but has {len(fault['input'])}", ""
            ] = []
        else:
            value = textwrap.shorten(json.dumps(fault["input"], default=str), MAX_VALUE_CHARS, placeholder=" ...")
            message = EXPECTED.get(fault["type"], fault["msg"].replace("Input should be ", ""))
            message = message.replace("String should match pattern", "text of the pattern")
            problems.setdefault((f"key {key or 'configuration'}: must be ", f", not {value}"), []).append(message)
    return listed([before + " or ".join(dict.fromkeys(parts)) + after for (before, after), parts in problems.items()])


def listed(lines: Sequence[str]) -> str:
    """Join problems to one line of complete sentences. Several problems are counted and numbered, and at most
    MAX_LISTED of them are named. There must be at least one problem."""
    sentences = [line if line.endswith((".", "?")) else f"{line}." for line in lines]
    if len(sentences) == 1:
        return sentences[0]
    shown = " ".join(f"({number}) {line}" for number, line in enumerate(sentences[:MAX_LISTED], 1))
    return f"{len(lines)} problems: {shown}" + (" There are more." if len(lines) > MAX_LISTED else "")


def suggest(name: str, legal: Sequence[str], heading: str) -> str:
    """Return `Did you mean NAME?` with the name in `legal` that is most similar to `name`.

    If no name is similar, return `HEADING NAME, NAME, ...` with the first MAX_LISTED legal names, and the number of
    further names if there are any.
    """
    if nearest := did_you_mean(name, legal):
        return nearest.strip()
    listed = ", ".join(legal[:MAX_LISTED]) + (f" and {len(legal) - MAX_LISTED} more" if len(legal) > MAX_LISTED else "")
    return f"{heading} {listed}"


def _is_given(values: object, location: Sequence[str | int]) -> bool:
    """Return whether `values` has a value at `location`, a path of keys and list positions of pydantic.

    Parts of the path with brackets are not keys, but branches of a union, and are skipped.
    """
    for part in location:
        below: Mapping[object, object] = {}
        if isinstance(values, Mapping):
            below = values
        elif isinstance(values, list | tuple):
            below = dict(enumerate(values))
        if part in below:
            values = below[part]
        elif "[" not in str(part):
            return False
    return True


def _legal(schema: type[BaseModel], path: Sequence[str]) -> list[str]:
    """Return the names of the legal keys at `path`.

    Parts of the path that are positions in a list, or names that the user chose, are skipped. A part `[Name]` is the
    class of the entry in a union of classes.
    """
    sections = [schema]
    for part in path:
        sections = [section for section in sections if part == f"[{section.__name__}]"] or sections
        fields = [section.model_fields[part] for section in sections if part in section.model_fields]
        sections = [below for field in fields for below in _sections(field.annotation)] or sections
    return [name for section in sections for name in section.model_fields]


def _sections(annotation: object) -> Iterator[type[BaseModel]]:
    """Yield the sections in an annotation, which may be a union, a list or a mapping of sections."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _sections(part)
