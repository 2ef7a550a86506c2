"""The base class of all sections of the configuration, and the types of their values."""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from pipeline.config.registry import IMPORT_PATH, MAX_SIDE, Spec, import_place

MAX_COUNT = 2**63 - 1
"""Maximum of a count: counts are stored, and passed to libraries, as 64-bit integers."""
MAX_SEED = 2**32 - 2
"""Maximum of a seed: scikit-learn takes seeds of 32 bits, and word2vec gets the seed + 1."""
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def _refuse_truth(value: object) -> object:
    """Refuse true and false, which Python takes for 1 and 0."""
    if isinstance(value, bool):
        raise PydanticCustomError("float_type", "Input should be a valid number")
    return value


def _name_device(value: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise PydanticCustomError("device", "Input should be auto, cpu, cuda or cuda:N")
    return value


def _require_place(text: str) -> str:
    """Refuse a path that a rule cannot carry: brackets are Snakemake's own, and a dash would begin an option."""
    if not text:
        raise ValueError("must not be empty")
    if URL.match(text):
        raise ValueError(f"{text!r} must be a folder or file of this machine: mount or copy it (docs/own-data.md)")
    if text[0] in "-~" or text != text.strip():
        raise ValueError(f"{text!r} must not begin with - or ~, nor begin or end with a space; write it in full")
    if odd := [sign for sign in text if sign in "{}<>" or unicodedata.category(sign) in ("Cc", "Cs")]:
        raise ValueError(f"{text!r} holds {odd[0]!r}, which Snakemake does not allow in a path; rename it")
    return text


Device = Annotated[str, AfterValidator(_name_device)]
Number = Annotated[float, BeforeValidator(_refuse_truth)]
Whole = Annotated[int, BeforeValidator(_refuse_truth)]
"""A whole number, also as text: Snakemake passes the 9 of `--config 'plan={sample: 9}'` as text."""
Count = Annotated[Whole, Field(ge=0, le=MAX_COUNT)]
Positive = Annotated[Whole, Field(gt=0, le=MAX_COUNT)]
Side = Annotated[Positive, Field(le=MAX_SIDE)]
Seed = Annotated[Whole, Field(ge=0, le=MAX_SEED)]
AboveZero = Annotated[Number, Field(gt=0)]
NonNegative = Annotated[Number, Field(ge=0)]
Share = Annotated[Number, Field(ge=0, le=1)]
PositiveShare = Annotated[Number, Field(gt=0, le=1)]
BelowOne = Annotated[Number, Field(ge=0, lt=1)]
NonNegatives = Annotated[tuple[NonNegative, ...], Field(min_length=1)]
Positives = Annotated[tuple[Positive, ...], Field(min_length=1)]
Precision = Literal["auto", "float32", "bfloat16"]
Described = Literal["train", "dev", "test"]
"""A split whose images have captions."""
Split = Literal[Described, "weak", "gallery"]
"""Any split. Images of `weak` have weak text to learn from, and images of `gallery` can only be found."""
Protocol = Literal["all-sentences", "first-sentence"]
DESCRIBED: tuple[Described, ...] = get_args(Described)
SPLITS: tuple[Split, ...] = get_args(Split)
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")]
ImportPath = Annotated[str, Field(pattern=IMPORT_PATH)]
Place = Annotated[str, AfterValidator(_require_place)]
"""A file or folder that a rule of Snakemake names."""
Item = TypeVar("Item")


@dataclass(frozen=True)
class OneOf:
    """Constraint of a text to some `names` that are collected at run time, as in `Annotated[str, OneOf(names)]`."""

    names: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        """Validate the text as pydantic validates a Literal."""
        return core_schema.literal_schema(list(self.names))


def each_once(values: tuple[Item, ...]) -> tuple[Item, ...]:
    """Refuse a value that is given twice."""
    if twice := [value for value in values if values.count(value) > 1]:
        raise ValueError(f"{twice[0]} is named twice; name each once")
    return values


Names = Annotated[tuple[Name, ...], Field(min_length=1), AfterValidator(each_once)]


def as_name(text: str) -> str:
    """Return `text` with a hyphen in place of characters that a Name cannot have."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", text).lstrip("-._+") or "run"


def key(
    default: Any,  # as in pydantic.Field
    description: str = "",
    title: str | None = None,
) -> Any:
    """Return a field with its default and its description, which a section may lack.

    The default of a section is its class, and a required field has `...`. A field with a `title` begins a group.
    """
    if isinstance(default, type):
        return Field(default_factory=default, description=description, title=title)
    return Field(default, description=description, title=title)


class Section(BaseModel):
    """A part of the configuration. `class Longer(Shorter, epochs=20)` has another default for a key of `Shorter`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True, validate_default=True)

    def __init_subclass__(cls, **defaults: object) -> None:
        super().__init_subclass__()

    @classmethod
    def __pydantic_init_subclass__(cls, **defaults: object) -> None:
        for name, value in defaults.items():
            cls.model_fields[name].default = value

    def changed(self, values: Mapping[str, object]) -> Self:
        """Return this section with `values` laid over it. Raises pydantic's ValidationError if a value is wrong."""
        return type(self).model_validate(merge(self.model_dump(), values))


def file_goes_with(name: str) -> Any:
    """Return a validator for a section: its key `file` is given exactly when its key `name` is `file`."""

    @model_validator(mode="after")
    def check(section: Section) -> Section:
        if (getattr(section, name) == "file") != (getattr(section, "file", None) is not None):
            raise ValueError(f"give `file` exactly when `{name}` is file")
        return section

    return check


AnySection = TypeVar("AnySection", bound=Section)


def with_kinds(base: type[AnySection], specs: Iterable[Spec], heading: str = "") -> type[AnySection]:
    """Return `base` with a key for each of `specs` that has settings of its own: the section of these settings.

    The description of the key is the docstring of the section, after `heading` with the name of the spec in it.
    """
    keys: dict[str, Any] = {}
    for spec in specs:
        if spec.section:
            section = import_place(spec.section)
            description = heading.format(spec.name) + " ".join((section.__doc__ or "").split())
            keys[spec.key] = (section, key(section, description))
    return create_model(base.__name__, __base__=base, **keys)


def section_of(sections: type[Section], name: str) -> type[Section]:
    """Return the class of the section that is the key `name` of `sections`."""
    section = sections.model_fields[name].annotation
    assert isinstance(section, type) and issubclass(section, Section)
    return section


class Seeds(Section):
    """A variant that may stand for several variants, one per seed."""

    seeds: Annotated[tuple[Seed, ...], AfterValidator(each_once)] = key(
        (), "several: the variant is NAME-seedK for each seed, which `reproduce` takes together"
    )


def merge(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, Any]:
    """Lay `above` over `below`: mappings are merged, everything else is replaced."""
    result = dict(below)
    for name, value in above.items():
        old = result.get(name)
        result[name] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result
