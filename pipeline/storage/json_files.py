"""Writing, reading and fingerprinting JSON files, and checking the form of JSON from untrusted sources.

`to_json` adds the sha256 of the content of a JSON object under the key `check`, because often no other file vouches for
the object. A fingerprint is one hash of the origin of an artefact: its kind, the version of its format, the
configuration keys on which it depends, and the fingerprints of its inputs.
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
"""A value that JSON can express. Unlike pydantic's JsonValue, it accepts a list of strings as a list of values."""
JsonObject: TypeAlias = Mapping[str, Any]
"""A JSON object that a stage has written. Its values are not typed, because only that stage defines its form."""
T = TypeVar("T")
F = TypeVar("F", bound="Form")


class Record(dict[str, Any]):
    """A JSON object that was read from the file `path`. A missing key raises an IntegrityError that names the file."""

    def __init__(self, value: Mapping[str, Json] | Iterable[tuple[str, Json]] = (), path: Path | None = None) -> None:
        super().__init__(value)
        self.path = path

    def __missing__(self, key: str) -> Any:
        raise IntegrityError(
            f"{self.path} has no key {key}. An earlier version may have written this file, or it is not the right file."
            f" {REMEDY}"
        )


class Form(BaseModel):
    """The form of a JSON object that may come from an untrusted source. Types are strict. Unknown keys are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=(), defer_build=True)


class File(Form):
    """The size and the sha256 of a file, as a card or a commit record lists them."""

    bytes: Count
    sha256: Digits


def canonical_json(value: Json) -> bytes:
    """Return the canonical spelling of a JSON value: with sorted keys, and without spaces. Raises ValueError for NaN
    and infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def fingerprint(kind: str, version: int, settings: Json = None, inputs: Mapping[str, str] | None = None) -> str:
    """Return the fingerprint of an artefact of a `kind` that is made with `settings` from `inputs`.

    `version` is the version of the artefact's format, and `inputs` are the fingerprints of the inputs by name. The
    fingerprint has 64 hexadecimal digits.
    """
    parts = {"kind": kind, "version": version, "settings": settings, "inputs": dict(inputs or {})}
    return hashlib.sha256(canonical_json(parts)).hexdigest()


def require_same(what: str, fingerprints: Mapping[str, str]) -> str:
    """Return the fingerprint that all files share. `fingerprints` has the fingerprint of each file by its name, for at
    least one file.

    Raises IntegrityError naming two files whose fingerprints differ, because artefacts of different runs must not be
    mixed. `what` names the compared thing in the message.
    """
    (first, expected), *others = fingerprints.items()
    for name, value in others:
        if value != expected:
            raise IntegrityError(
                f"{first} and {name} do not agree (compared: {what}), so they were made from different inputs. Make the"
                " older of the two again with `jointspace run CONFIG`."
            )
    return expected


def to_json(value: Json) -> bytes:
    """Return the content of a JSON file with this value. An object gets the key `check`, the hash of its content.

    Raises ValueError for NaN and infinity.
    """
    if isinstance(value, Mapping):
        plain = json.loads(json.dumps(dict(value), allow_nan=False))
        value = {**value, CHECK: _digest_rest(plain)}
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def publish_json(path: Path, value: Json) -> None:
    """Write a value to a JSON file atomically, as `to_json` spells it, and without a commit record.

    Raises JointspaceError if the file cannot be written.
    """
    publish_bytes(path, to_json(value))


def read_json(path: Path) -> Any:
    """Read a JSON file, and return its value. Each object in the file becomes a Record.

    If the value is an object with the key `check`, or a list of such objects, the hash under this key is compared with
    the content of the object. Raises IntegrityError if the file is missing, is not valid JSON, or has a hash that does
    not match.
    """
    try:
        value = json.loads(read_bytes(path), object_hook=lambda part: Record(part, path))
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path} is not valid JSON ({error}). {REMEDY}") from error
    for part in value if isinstance(value, list) else [value]:
        if isinstance(part, dict) and CHECK in part and part[CHECK] != _digest_rest(part):
            raise IntegrityError(f"{path} is damaged or was edited. {REMEDY}")
    return value


def _digest_rest(value: Mapping[str, Json]) -> str:
    rest = {name: part for name, part in value.items() if name != CHECK}
    try:
        return hashlib.sha256(canonical_json(rest)).hexdigest()
    except ValueError:  # The value has NaN, which jointspace never writes, so it matches no hash.
        return ""


def check_form(
    value: Json, form: type[F], path: Path, remedy: str = REMEDY, what: str = "has another form than this version reads"
) -> F:
    """Convert `value`, the content of the file `path`, to a `form`.

    Raises IntegrityError that names the first wrong key. The message is `path`, followed by `what`, the wrong key and
    the `remedy`.
    """
    try:
        return form.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "it"
        reason = first["msg"].removeprefix("Value error, ").replace("Input should be", "it should be", 1)
        detail = reason if reason.startswith("its ") else f"{key}: {reason[:1].lower()}{reason[1:]}"
        raise IntegrityError(f"{path} {what} ({detail}). {remedy}") from None
