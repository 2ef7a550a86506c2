"""Reading the JSON files that are their own commits.

A record is a valid commit (pipeline.storage.commit) and has the form that its readers need (pipeline.storage.forms).
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.errors import IntegrityError
from pipeline.storage.atomic import read_json
from pipeline.storage.commit import open_commit
from pipeline.storage.forms import Form, JointVocabulary, LabelsFile, StudyCellForm, VocabularyFile
from pipeline.storage.names import inside
from pipeline.storage.reading import REMEDY


def read_record(path: Path, form: type[Form], anywhere: bool = False) -> Any:
    """The JSON object in `path`. Raises IntegrityError if it is not valid, as `open_commit` says, or has another form;
    a part of a bundle may lie `anywhere`."""
    return require_form(open_commit(path, anywhere=anywhere).value, form, path)


def require_form(value: Any, form: type[Form], path: Path, remedy: str = REMEDY, what: str = "") -> Any:
    """`value`, the content of `path`, if it has the form. Raises IntegrityError naming the first key that does not."""
    try:
        form.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "it"
        reason = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
        detail = reason if reason.startswith("its ") else f"{place}: {reason[:1].lower()}{reason[1:]}"
        what = what or "has another form than this version reads"
        raise IntegrityError(f"{path} {what} ({detail}); {remedy}") from None
    return value


def read_lines(data: bytes, form: type[Form], path: Path, remedy: str) -> list[Any]:
    """The JSON objects in the lines of `path`. Raises IntegrityError naming the first line without the form."""
    return list(each_line(data.split(b"\n"), form, path, remedy))


def each_line(lines: Iterable[bytes], form: type[Form], path: Path, remedy: str) -> Iterator[Any]:
    """The same of one line after another."""
    for number, line in enumerate(lines, start=1):
        if not line.strip(b"\n"):
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise IntegrityError(f"{path}, line {number} is not JSON ({error}); {remedy}") from error
        yield require_form(value, form, path, remedy, f"line {number} is not a {form.__name__.lower()}")


def read_vocabulary(path: Path, anywhere: bool = False) -> Any:
    """What `build-token-vocabulary` or `combine` wrote."""
    value = read_json(path)
    form = JointVocabulary if isinstance(value, Mapping) and "views" in value else VocabularyFile
    return read_record(path, form, anywhere)


def read_labels(path: Path, anywhere: bool = False) -> Any:
    """What `build-label-table` wrote."""
    return read_record(path, LabelsFile, anywhere)


def read_cell(folder: Path, name: str, key: str) -> Any:
    """One number of the study in `folder`. Raises IntegrityError if it has another `key` or file name."""
    path = inside(Path(folder) / "cells", name, Path(folder) / "study.json")
    value = read_record(path, StudyCellForm)
    if value["key"] != key:
        raise IntegrityError(f"{path} holds another number than study.json says; delete it and run study again")
    return value
