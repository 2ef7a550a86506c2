"""JSON: how files of ours are written, read and fingerprinted, and the forms that a stranger's must have.

A JSON object of ours carries the sha256 of its own content under `check`, since no other file vouches for it. A
fingerprint says what something was made from, as one hash: its kind, the version of its format, the configuration keys
that it depends on, and the fingerprints of its inputs.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.errors import IntegrityError
from pipeline.storage.batch import publish_bytes
from pipeline.storage.files import REMEDY, read_bytes

CHECK = "check"
Count = Annotated[int, Field(ge=0)]
Digits = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Json: TypeAlias = "str | float | Sequence[Json] | Mapping[str, Json] | None"
"""A value that JSON can hold. Unlike pydantic's JsonValue it takes a list of strings for a list of values."""
JsonObject: TypeAlias = Mapping[str, Any]
"""A JSON object that a stage of ours has written. The stage alone knows its form, so that its values are not typed."""
T = TypeVar("T")
F = TypeVar("F", bound="Form")


class Record(dict[str, Any]):
    """An object from the JSON file `path`. A missing key raises an IntegrityError that names the file."""

    def __init__(self, value: Mapping[str, Json] | Iterable[tuple[str, Json]] = (), path: Path | None = None) -> None:
        super().__init__(value)
        self.path = path

    def __missing__(self, key: str) -> Any:
        raise IntegrityError(f"{self.path} has no key {key}: it is from an earlier version, or the wrong file")


class Form(BaseModel):
    """The form of a JSON object that may be a stranger's. Strict types; unknown keys are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=(), defer_build=True)


class File(Form):
    bytes: Count
    sha256: Digits


def canonical_json(value: Json) -> bytes:
    """The one spelling of a JSON value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def fingerprint(kind: str, version: int, settings: Json = None, inputs: Mapping[str, str] | None = None) -> str:
    """64 hexadecimal digits for an artefact of `kind`, made with `settings` from `inputs` (name -> fingerprint)."""
    parts = {"kind": kind, "version": version, "settings": settings, "inputs": dict(inputs or {})}
    return hashlib.sha256(canonical_json(parts)).hexdigest()


def require_same(what: str, fingerprints: Mapping[str, str]) -> str:
    """The fingerprint that all of `fingerprints` (file -> fingerprint) share.

    Raises IntegrityError naming two files that differ: artefacts of different runs must not be mixed.
    """
    (first, expected), *others = fingerprints.items()
    for name, value in others:
        if value != expected:
            raise IntegrityError(
                f"{what} of {first} and of {name} differ, so they are from two runs; rebuild the older one"
            )
    return expected


def to_json(value: Json) -> bytes:
    """`value` as a JSON file of ours; an object gets its `check`. Raises ValueError for NaN and infinity."""
    if isinstance(value, Mapping):
        plain = json.loads(json.dumps(dict(value), allow_nan=False))
        value = {**value, CHECK: _digest_rest(plain)}
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def publish_json(path: Path, value: Json) -> None:
    """Write a JSON file atomically."""
    publish_bytes(path, to_json(value))


def read_json(path: Path) -> Any:
    """The value in a JSON file of ours. Raises IntegrityError if the file is missing or damaged."""
    try:
        value = json.loads(read_bytes(path), object_hook=lambda part: Record(part, path))
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path} is not valid JSON ({error}); {REMEDY}") from error
    for part in value if isinstance(value, list) else [value]:
        if isinstance(part, dict) and CHECK in part and part[CHECK] != _digest_rest(part):
            raise IntegrityError(f"{path} is damaged or was edited; {REMEDY}")
    return value


def _digest_rest(value: Mapping[str, Json]) -> str:
    rest = {name: part for name, part in value.items() if name != CHECK}
    try:
        return hashlib.sha256(canonical_json(rest)).hexdigest()
    except ValueError:  # NaN, which nothing of ours writes
        return ""


def check_form(value: Json, form: type[F], path: Path, remedy: str = REMEDY, what: str = "") -> F:
    """Read `value`, the content of `path`, as a `form`. Raises IntegrityError naming the first key that is wrong."""
    try:
        return form.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "it"
        reason = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
        detail = reason if reason.startswith("its ") else f"{place}: {reason[:1].lower()}{reason[1:]}"
        what = what or "has another form than this version reads"
        raise IntegrityError(f"{path} {what} ({detail}); {remedy}") from None


def require_form(value: JsonObject, form: type[Form], path: Path, remedy: str = REMEDY, what: str = "") -> JsonObject:
    """Return `value`, the content of `path`, if it has the form. Raises IntegrityError as `check_form` does."""
    check_form(value, form, path, remedy, what)
    return value
