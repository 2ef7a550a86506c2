"""What all sections of the configuration share."""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator
from pydantic_core import PydanticCustomError

from pipeline.config.registry import IMPORT_PATH, MAX_SIDE, import_place

LARGEST = 2**63 - 1
"""Counts are stored, and given to libraries, as 64-bit integers."""
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
LARGEST_SEED = 2**32 - 2
"""scikit-learn takes seeds of 32 bits, and word2vec gets the seed + 1."""


def _refuse_truth(value: Any) -> Any:
    """Python takes true for 1.0."""
    if isinstance(value, bool):
        raise PydanticCustomError("float_type", "Input should be a valid number")
    return value


def _name_device(value: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise PydanticCustomError("device", "Input should be auto, cpu, cuda or cuda:N")
    return value


def _require_place(text: str) -> str:
    """Brackets are Snakemake's own; a `~` would be a folder of that name, and a dash an option of a command."""
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
"""Digits are taken for their number: Snakemake gives what stands inside `--config 'plan={sample: 9}'` as text."""
Count = Annotated[Whole, Field(ge=0, le=LARGEST)]
Positive = Annotated[Whole, Field(gt=0, le=LARGEST)]
Side = Annotated[Positive, Field(le=MAX_SIDE)]
Seed = Annotated[Whole, Field(ge=0, le=LARGEST_SEED)]
AboveZero = Annotated[Number, Field(gt=0)]
NonNegative = Annotated[Number, Field(ge=0)]
Share = Annotated[Number, Field(ge=0, le=1)]
PositiveShare = Annotated[Number, Field(gt=0, le=1)]
BelowOne = Annotated[Number, Field(ge=0, lt=1)]
NonNegatives = Annotated[tuple[NonNegative, ...], Field(min_length=1)]
Positives = Annotated[tuple[Positive, ...], Field(min_length=1)]
Precision = Literal["auto", "float32", "bfloat16"]
Described = Literal["train", "dev", "test"]
"""A split whose images have sentences."""
Split = Literal[Described, "weak", "gallery"]
"""Beside these `weak`, whose images have weak text to learn from, and `gallery`, whose images are only to be found."""
Protocol = Literal["all-sentences", "first-sentence"]
DESCRIBED, SPLITS, PROTOCOLS = get_args(Described), get_args(Split), get_args(Protocol)
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")]
ImportPath = Annotated[str, Field(pattern=IMPORT_PATH)]
Place = Annotated[str, AfterValidator(_require_place)]
"""A file or folder that a rule of Snakemake names."""


def each_once(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if twice := [value for value in values if values.count(value) > 1]:
        raise ValueError(f"{twice[0]} is named twice; name each once")
    return values


Names = Annotated[tuple[Name, ...], Field(min_length=1), AfterValidator(each_once)]


def as_name(text: str) -> str:
    """`text` with a hyphen for all that no Name has."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", text).lstrip("-._+") or "run"


def key(default: Any, description: str = "", title: str | None = None) -> Any:
    """A field with its default (of a section its class; `...`: none) and its sentence, which a section may lack. With
    a `title` it is the first of a group."""
    if isinstance(default, type):
        return Field(default_factory=default, description=description, title=title)
    return Field(default, description=description, title=title)


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True, validate_default=True)

    def __init_subclass__(cls, **defaults: Any) -> None:
        super().__init_subclass__()

    @classmethod
    def __pydantic_init_subclass__(cls, **defaults: Any) -> None:
        """`class Longer(Shorter, epochs=20)` differs in the default of a key."""
        for name, value in defaults.items():
            cls.model_fields[name].default = value

    def changed(self, values: Mapping[str, Any]) -> Self:
        """This section with `values` laid over it. Raises pydantic's ValidationError where one is wrong."""
        return type(self).model_validate(merge(self.model_dump(), values))


def file_goes_with(name: str) -> Any:
    """The validator of a section whose key `file` is given exactly when its key `name` is `file`."""

    @model_validator(mode="after")
    def check(section: Section) -> Section:
        if (getattr(section, name) == "file") != (section.file is not None):
            raise ValueError(f"give `file` exactly when `{name}` is file")
        return section

    return check


AnySection = TypeVar("AnySection", bound=Section)


def with_kinds(base: type[AnySection], specs: Iterable[Any], heading: str = "") -> type[AnySection]:
    """`base` with a key for each of `specs`, registered ones, that has a section: that of its own settings. Its
    sentence is the docstring, behind `heading` with the name of the spec in it."""
    own = {spec.key: (spec.name, import_place(spec.section)) for spec in specs if spec.section}
    keys = {
        name: (section, key(section, heading.format(kind) + " ".join((section.__doc__ or "").split())))
        for name, (kind, section) in own.items()
    }
    return create_model(base.__name__, __base__=base, **keys)


class Seeds(Section):
    seeds: Annotated[tuple[Seed, ...], AfterValidator(each_once)] = key(
        (), "several: the variant is NAME-seedK for each seed, which `reproduce` takes together"
    )


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`: mappings are merged, everything else is replaced."""
    result = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merge(result[key], value) if both else value
    return result
