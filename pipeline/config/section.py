"""The base class of all sections of the configuration, and the types of their values."""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from pipeline.config.registry import IMPORT_PATH, MAX_SIDE, Spec, import_object

MAX_COUNT = 2**63 - 1
"""Largest value of a count. Counts are stored, and passed to libraries, as 64-bit integers. A larger value is an
error."""
MAX_SEED = 2**32 - 2
"""Largest seed. scikit-learn accepts seeds of 32 bits, and word2vec gets the seed + 1. A larger seed is an error."""
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def _refuse_truth(value: object) -> object:
    """Return `value`, or raise an error of pydantic for true and false, which Python treats as 1 and 0."""
    if isinstance(value, bool):
        raise PydanticCustomError("float_type", "Input should be a valid number")
    return value


def _name_device(value: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise PydanticCustomError("device", "Input should be auto, cpu, cuda or cuda:N")
    return value


def _require_place(text: str) -> str:
    """Return the path `text`, or raise ValueError if it is empty, is a URL, or cannot be used in a Snakemake rule.

    Snakemake interprets brackets, and a path that begins with a dash would be read as an option of the command.
    """
    if not text:
        raise ValueError("the path must not be empty. Write a path, or remove the key to use the default path")
    if URL.match(text):
        raise ValueError(
            f"{text!r} is a URL, but must be a path on this machine. Mount or copy the files (docs/own-data.md)"
        )
    if text[0] in "-~" or text != text.strip():
        raise ValueError(f"{text!r} must not begin with - or ~, or begin or end with a space. Write the full path")
    if odd := [sign for sign in text if sign in "{}<>" or unicodedata.category(sign) in ("Cc", "Cs")]:
        raise ValueError(
            f"{text!r} contains {odd[0]!r}, which Snakemake does not allow in a path. Rename the file or folder"
        )
    return text


Device = Annotated[str, AfterValidator(_name_device)]
Number = Annotated[float, BeforeValidator(_refuse_truth)]
Whole = Annotated[int, BeforeValidator(_refuse_truth)]
"""A whole number. It may be a text, because Snakemake passes the 9 of `--config 'plan={sample: 9}'` as text."""
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
"""Any split. Images of `weak` have weak texts for training. Images of `gallery` have no texts and are only indexed."""
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
    """Constraint for a text that must be one of `names`, as in `Annotated[str, OneOf(names)]`.

    Unlike in a Literal, the names can be computed.
    """

    names: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        """Return pydantic's validation of a Literal with the names."""
        return core_schema.literal_schema(list(self.names))


def each_once(values: tuple[Item, ...]) -> tuple[Item, ...]:
    """Return `values`, or raise ValueError if a value is repeated."""
    if twice := [value for value in values if values.count(value) > 1]:
        raise ValueError(f"{twice[0]} is listed twice. List each value once")
    return values


Names = Annotated[tuple[Name, ...], Field(min_length=1), AfterValidator(each_once)]


def as_name(text: str) -> str:
    """Convert a text to a valid Name.

    Letters lose their accents, each run of characters that a Name must not have becomes a hyphen, and punctuation at
    the beginning is removed. If nothing remains, return `run`.
    """
    plain = "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", plain).lstrip("-._+") or "run"


def key(
    default: Any,  # A default may have any type, as the default of pydantic.Field.
    description: str = "",
    title: str | None = None,
) -> Any:
    """Declare a key of a section with its default and its description.

    If the key is a section itself, `default` is the class of this section. If the key is required, `default` is `...`.
    A key with a `title` begins a group of keys in config/default.yaml.
    """
    if isinstance(default, type):
        return Field(default_factory=default, description=description, title=title)
    return Field(default, description=description, title=title)


class Section(BaseModel):
    """Base class of the sections of a configuration.

    A subclass can change the default of an inherited key: `class Longer(Shorter, epochs=20)`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True, validate_default=True)

    def __init_subclass__(cls, **defaults: object) -> None:
        super().__init_subclass__()

    @classmethod
    def __pydantic_init_subclass__(cls, **defaults: object) -> None:
        for name, value in defaults.items():
            cls.model_fields[name].default = value

    def changed(self, values: Mapping[str, object]) -> Self:
        """Return a copy of this section in which `values` replace the present values, and nested mappings are merged.

        Raises pydantic's ValidationError if a value is wrong.
        """
        return type(self).model_validate(merge(self.model_dump(), values))


def file_goes_with(name: str) -> Any:
    """Return a validator that requires the key `file` if the key `name` is `file`, and forbids it otherwise."""

    @model_validator(mode="after")
    def check(section: Section) -> Section:
        if (getattr(section, name) == "file") != (getattr(section, "file", None) is not None):
            raise ValueError(
                f"`file` must be set if `{name}` is file, and must not be set otherwise. Set or remove `file`"
            )
        return section

    return check


AnySection = TypeVar("AnySection", bound=Section)


def with_kinds(base: type[AnySection], specs: Iterable[Spec]) -> type[AnySection]:
    """Return a subclass of `base` with a further key for each spec that has a section of its own.

    The description of the key is the docstring of the section.
    """
    keys: dict[str, Any] = {}
    for spec in specs:
        if spec.section:
            section = import_object(spec.section)
            keys[spec.key] = (section, key(section, " ".join((section.__doc__ or "").split())))
    return create_model(base.__name__, __base__=base, **keys)


def section_of(sections: type[Section], name: str) -> type[Section]:
    """Return the class of the section under the key `name` of `sections`."""
    section = sections.model_fields[name].annotation
    assert isinstance(section, type) and issubclass(section, Section)
    return section


class Seeds(Section):
    """Base class of variants that can be repeated with several seeds."""

    seeds: Annotated[tuple[Seed, ...], AfterValidator(each_once)] = key(
        (),
        "List of seeds. The variant then stands for the variants NAME-seedK, one per seed, which "
        "`reproduce` summarises.",
    )


def merge(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, Any]:
    """Merge two mappings. Values in `above` replace values in `below`, except that nested mappings are merged."""
    result = dict(below)
    for name, value in above.items():
        old = result.get(name)
        result[name] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result
