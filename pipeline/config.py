"""The configuration's schema. Values and their meaning stand in config/default.yaml, and only there."""

import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipeline.errors import UsageError
from pipeline.models import REGISTRY

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Split = Literal["train", "dev", "test", "weak"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Demo(Section):
    generate: bool
    train: Positive
    dev: Positive
    test: Positive
    weak: Annotated[int, Field(ge=0)]
    seed: Annotated[int, Field(ge=0)]


class Collection(Section):
    format: Literal["folder", "flickr-token", "karpathy", "coco", "table", "text-files", "webdataset"]
    files: dict[str, str]
    columns: dict[str, str]
    default_split: Split
    max_sentence_chars: Positive
    max_image_pixels: Positive
    min_image_side: Positive
    max_aspect_ratio: Positive
    reject_limit: Annotated[float, Field(ge=0, le=1)]


class Encoder(Section):
    name: Name
    architecture: str
    layer: Literal["average", "fc6", "fc7"]
    weights: Literal["untrained", "torchvision", "file"]
    file: str | None
    sha256: str | None
    resize: Positive
    crop: Positive | None
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    flip: bool

    @model_validator(mode="after")
    def _file_goes_with_weights(self) -> "Encoder":
        if (self.weights == "file") != (self.file is not None):
            raise ValueError(f"encoder {self.name}: give `file` exactly when `weights` is file")
        if self.sha256 is not None and self.file is None:
            raise ValueError(f"encoder {self.name}: `sha256` is of a file; `weights` is {self.weights}")
        return self

    @model_validator(mode="after")
    def _crop_fits(self) -> "Encoder":
        if self.crop is not None and self.crop > self.resize:
            raise ValueError(f"encoder {self.name}: crop {self.crop} is larger than resize {self.resize}")
        return self


class Extract(Section):
    device: str
    precision: Literal["auto", "float32", "bfloat16"]
    batch_size: Positive
    checkpoint_images: Positive
    decode_workers: Annotated[int, Field(ge=0)]
    storage: Literal["float16", "float32"]


class Text(Section):
    lowercase: bool
    tokenizer: Literal["treebank", "words"]
    lemmatise: bool
    stop_words: bool
    max_ngram: Annotated[int, Field(ge=1, le=3)]
    size: Positive
    min_count: Positive
    idf: bool
    normalise: bool


class ImageView(Section):
    normalise: tuple[Literal["sqrt", "l2"], ...]


class Fit(Section):
    dimensions: Annotated[tuple[Positive, ...], Field(min_length=1)]
    image_ridge: Annotated[tuple[NonNegative, ...], Field(min_length=1)]
    text_ridge: Annotated[tuple[NonNegative, ...], Field(min_length=1)]
    eigenvalue_power: Annotated[tuple[NonNegative, ...], Field(min_length=1)]
    dev_images: Positive


class Variant(Section):
    model: Literal[tuple(REGISTRY)]
    encoders: tuple[Name, ...]


class Index(Section):
    splits: tuple[Split, ...]
    exact_limit: Positive
    recall_floor: Annotated[float, Field(gt=0, le=1)]


class Evaluate(Section):
    splits: tuple[Split, ...]
    protocols: tuple[Literal["all-sentences", "first-sentence"], ...]
    bootstrap: Annotated[int, Field(ge=0)]


class Config(Section):
    name: Name
    data_root: str
    weights_root: str
    results_root: str
    models: Annotated[tuple[Name, ...], Field(min_length=1)]
    seed: Annotated[int, Field(ge=0)]
    shard_size: Positive
    demo: Demo
    collection: Collection
    encoders: Annotated[tuple[Encoder, ...], Field(min_length=1)]
    extract: Extract
    text: Text
    image_view: ImageView
    fit: Fit
    variants: dict[Name, Variant]
    index: Index
    evaluate: Evaluate

    @model_validator(mode="after")
    def _names_exist(self) -> "Config":
        encoders = [encoder.name for encoder in self.encoders]
        if len(set(encoders)) < len(encoders):
            raise ValueError(f"two encoders of one name among {', '.join(encoders)}")
        for name, variant in self.variants.items():
            if name in REGISTRY:
                raise ValueError(f"variants: {name} is the name of a registered model; choose another")
            if unknown := set(variant.encoders) - set(encoders):
                raise ValueError(f"variants.{name}: unknown encoder {min(unknown)}; there are {', '.join(encoders)}")
        legal = [*REGISTRY, *self.variants]
        if unknown := set(self.models) - set(legal):
            raise ValueError(f"models: unknown model {min(unknown)}; there are {', '.join(legal)}")
        return self

    def row(self, name: str) -> Variant:
        """What the row `name` of results means: a variant, or a registered model on all encoders."""
        return self.variants.get(name) or Variant(model=name, encoders=tuple(e.name for e in self.encoders))

    def encoder(self, name: str) -> Encoder:
        for encoder in self.encoders:
            if encoder.name == name:
                return encoder
        raise UsageError(
            f"no encoder {name} in the configuration; there are {', '.join(e.name for e in self.encoders)}"
        )


def default_path() -> Path:
    """config/default.yaml of the checkout, or of the installed distribution."""
    checkout = Path(__file__).parents[1] / "config" / "default.yaml"
    installed = Path(sysconfig.get_path("data")) / "share" / "jointspace" / "config" / "default.yaml"
    return checkout if checkout.exists() else installed


def load(path: Path | None = None) -> Config:
    """The configuration in `path` over the defaults; the defaults alone where it is None."""
    values = _read(default_path())
    if path is not None:
        values = merge(values, _read(path))
    return validate(values, source=path or default_path())


def validate(values: Mapping[str, Any], source: Path | str = "configuration") -> Config:
    """`values` as a Config. Raises UsageError in one sentence that names the key and, if unknown, the legal ones."""
    values = dict(values)
    defaults = values.pop("encoder_defaults", {})
    if isinstance(values.get("encoders"), list):
        values["encoders"] = [merge(defaults, e) if isinstance(e, Mapping) else e for e in values["encoders"]]
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        # A misspelt key is both unknown and missing; its being unknown is what helps.
        first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        raise UsageError(f"{source}: {_explain(first)}") from error


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`: mappings are merged, everything else is replaced."""
    result = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merge(result[key], value) if both else value
    return result


def _read(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"configuration {path} does not exist") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"configuration {path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise UsageError(f"configuration {path} must be a mapping of keys to values")
    return values


def _explain(error: Mapping[str, Any]) -> str:
    location: Sequence[str | int] = error["loc"]
    key = ".".join(map(str, location)) or "configuration"
    if error["type"] == "extra_forbidden":
        return f"unknown key {key}; legal here: {', '.join(_legal_keys(location[:-1]))}"
    if error["type"] == "missing":
        return f"key {key} is missing"
    if error["type"] == "value_error":
        return error["msg"].removeprefix("Value error, ")
    return f"key {key}: {error['msg']}, not {error['input']!r}"


def _legal_keys(location: Sequence[str | int]) -> list[str]:
    """The fields of the section at `location`, found by walking the schema's annotations."""
    section: Any = Config
    for part in location:
        if isinstance(part, int) or not hasattr(section, "model_fields"):
            continue
        annotation = section.model_fields[part].annotation
        section = next(
            (a for a in (annotation, *getattr(annotation, "__args__", ())) if hasattr(a, "model_fields")), section
        )
    return list(section.model_fields)
