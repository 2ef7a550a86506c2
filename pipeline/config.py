"""The configuration's schema. Values and their meaning stand in config/default.yaml, and only there."""

import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipeline.errors import UsageError
from pipeline.models import REGISTRY, TRAINED, TRAININGS

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Split = Literal["train", "dev", "test", "weak"]
Kernel = Literal["linear", "rbf", "laplacian", "cosine", "polynomial"]
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


class StandardDimensions(Section):
    gist: Positive
    rgb: Positive
    csift: Positive
    rgbsift: Positive
    hog: Positive


class Standard(Section):
    images: Annotated[int, Field(ge=2)]
    codebook_images: Positive
    descriptors: Positive
    grid_step: Positive
    patch: Annotated[int, Field(ge=4, multiple_of=2)]
    descriptor_dim: Positive
    codebook: Positive
    dimensions: StandardDimensions


class Encoder(Section):
    name: Name
    architecture: str
    layer: Literal["average", "fc6", "fc7"]
    weights: Literal["untrained", "torchvision", "file", "finetuned"]
    file: str | None
    sha256: str | None
    resize: Positive
    crop: Positive | None
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    flip: bool
    standard: Standard

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

    @model_validator(mode="after")
    def _standard_features_fit(self) -> "Encoder":
        if self.architecture != "standard":
            return self
        if self.file is not None:
            raise ValueError(f"encoder {self.name}: architecture standard learns from the train split; give no `file`")
        side = self.crop or self.resize
        if self.standard.patch > side:
            raise ValueError(f"encoder {self.name}: standard.patch {self.standard.patch} exceeds the side {side}")
        return self


class Extract(Section):
    device: str
    precision: Literal["auto", "float32", "bfloat16"]
    batch_size: Positive
    checkpoint_images: Positive
    decode_workers: Annotated[int, Field(ge=0)]
    storage: Literal["float16", "float32"]


class Grid(Section):
    scales: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(min_length=1)]
    aspects: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)]
    overlap: Annotated[float, Field(ge=0, lt=1)]


class Search(Section):
    mode: Literal["fast", "quality"]
    width: Positive


class Detector(Section):
    architecture: str
    weights: Literal["torchvision", "file"]
    file: str | None
    sha256: str | None
    stage: Literal["detections", "rpn"]

    @model_validator(mode="after")
    def _file_goes_with_weights(self) -> "Detector":
        if (self.weights == "file") != (self.file is not None):
            raise ValueError("regions.detector: give `file` exactly when `weights` is file")
        return self


class Regions(Section):
    encoders: tuple[Name, ...]
    proposals: Literal["boxes", "grid", "selective-search", "faster-rcnn"]
    count: Positive
    min_score: float
    min_side: Annotated[float, Field(ge=1)]
    iou: Annotated[float, Field(ge=0, le=1)]
    fill: bool
    grid: Grid
    search: Search
    detector: Detector
    features: Literal["crops", "roi-align"]
    crop_side: Positive | None
    context: Annotated[int, Field(ge=0)]
    map_side: Positive
    map_step: Positive
    map_aspect: Annotated[float, Field(ge=1)]
    score: Literal["proposal", "classifier"]
    candidates: Positive
    dimensions: Positive | None
    checkpoint_images: Positive


class Finetune(Section):
    start: Literal["scratch", "torchvision", "file"]
    file: str | None
    sha256: str | None
    splits: Annotated[tuple[Split, ...], Field(min_length=1)]
    held_out: Split
    side: Positive
    context: Annotated[int, Field(ge=0)]
    iterations: Positive
    images: Positive
    positives: Positive
    background: Positive
    positive_iou: Annotated[float, Field(gt=0, le=1)]
    background_iou: Annotated[float, Field(gt=0, le=1)]
    learning_rate: Annotated[float, Field(gt=0)]
    momentum: Annotated[float, Field(ge=0, lt=1)]
    weight_decay: NonNegative
    precision: Literal["auto", "float32", "bfloat16"]
    checkpoint_seconds: NonNegative
    held_out_images: Positive
    proposals: Literal["grid", "selective-search"]
    grid: Grid
    candidates: Positive
    suppression_iou: Annotated[float, Field(ge=0, le=1)]

    @model_validator(mode="after")
    def _file_goes_with_start(self) -> "Finetune":
        if (self.start == "file") != (self.file is not None):
            raise ValueError("finetune: give `file` exactly when `start` is file")
        return self


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
    search: Literal["grid", "lines"]
    dev_images: Positive


class Simulation(Section):
    tag_words: Positive
    true_words: Annotated[int, Field(ge=0)]
    wrong: Share
    missing: Share


class Documents(Section):
    fields: Annotated[tuple[Literal["title", "tags", "description"], ...], Field(min_length=1)]
    simulate: Simulation | None


class Auxiliary(Section):
    splits: Annotated[tuple[Split, ...], Field(min_length=1)]


class Transfer(Section):
    beta: Annotated[tuple[NonNegative, ...], Field(min_length=1)]
    auxiliary_dimensions: Annotated[tuple[Positive, ...], Field(min_length=1)]
    auxiliary_power: Annotated[tuple[NonNegative, ...], Field(min_length=1)]
    weight: Annotated[tuple[NonNegative, ...], Field(min_length=1)]
    second_beta: Annotated[tuple[NonNegative, ...], Field(min_length=1)]
    rule: Annotated[tuple[Literal["rahimi-recht", "paper"], ...], Field(min_length=1)]
    bandwidth: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)]
    features: Positive
    sample: Positive
    neighbours: Positive


class Kernels(Section):
    image_kernel: Kernel
    text_kernel: Kernel
    image_gamma: Annotated[float, Field(gt=0)]
    text_gamma: Annotated[float, Field(gt=0)]
    landmarks: Positive


class Wsabie(Section):
    learning_rate: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)]
    max_norm: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)]
    dimensions: Positive
    epochs: Positive
    batch: Positive
    max_samples: Positive
    interval: Positive
    patience: Positive


class TokenVocabulary(Section):
    lowercase: bool
    tokenizer: Literal["treebank", "words"]
    size: Positive
    min_count: Positive


class WordVectors(Section):
    file: str | None
    format: Literal["text", "binary"]
    dim: Positive
    train: bool


class Train(Section):
    dimensions: Positive
    loss: Literal["info-nce", "ranking"]
    negatives: Literal["all", "hardest", "sampled"]
    contrastive: Positive
    margin: NonNegative
    temperature: Annotated[float, Field(gt=0)]
    optimiser: Literal["adam", "sgd"]
    learning_rate: Annotated[float, Field(gt=0)]
    decay: Annotated[float, Field(gt=0, le=1)]
    weight_decay: NonNegative
    averaging: Annotated[float, Field(ge=0, lt=1)]
    dropout: Annotated[float, Field(ge=0, lt=1)]
    clip: Annotated[float, Field(gt=0)]
    batch_size: Annotated[int, Field(ge=2)]
    epochs: Positive
    patience: Positive
    precision: Literal["auto", "float32", "bfloat16"]
    checkpoint_seconds: NonNegative

    @model_validator(mode="after")
    def _hardest_is_of_the_ranking_loss(self) -> "Train":
        if self.loss == "info-nce" and self.negatives == "hardest":
            raise ValueError("negatives: hardest goes with loss: ranking; choose all or sampled for info-nce")
        return self


class Study(Section):
    folds: Annotated[int, Field(ge=2)]
    order: Literal["listed", "shuffled"]
    draws: Positive
    protocol: Literal["all-sentences", "first-sentence"]
    encoders: tuple[Encoder, ...]
    sizes: tuple[Positive, Positive, Positive]
    transfer_sizes: tuple[Positive, Positive, Positive]
    weak_sizes: tuple[Positive, Positive, Positive, Positive]
    terms: tuple[Positive, Positive, Positive]
    noise: tuple[Name, ...]
    fit: Fit


class Variant(Section):
    model: Literal[tuple(REGISTRY)]
    encoders: tuple[Name, ...] | None
    training: Literal[tuple(TRAININGS)]
    documents: Name


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
    regions: Regions
    finetune: Finetune
    text: Text
    image_view: ImageView
    fit: Fit
    auxiliary: Auxiliary
    documents: dict[Name, Documents]
    transfer: Transfer
    kcca: Kernels
    wsabie_sgd: Wsabie
    wsabie_adagrad: Wsabie
    tokens: TokenVocabulary
    word_vectors: WordVectors
    train_defaults: Train
    bow: Train
    devise: Train
    rnn: Train
    gru: Train
    lstm: Train
    ncca_refined: Train
    study: Study
    variant_defaults: dict[str, Any]
    variants: dict[Name, Variant]
    index: Index
    evaluate: Evaluate

    @model_validator(mode="after")
    def _names_exist(self) -> "Config":
        encoders = [encoder.name for encoder in self.encoders]
        if len(set(encoders)) < len(encoders):
            raise ValueError(f"two encoders of one name among {', '.join(encoders)}")
        if unknown := set(self.regions.encoders) - set(encoders):
            raise ValueError(f"regions.encoders: unknown encoder {min(unknown)}; there are {', '.join(encoders)}")
        for name, variant in self.variants.items():
            if name in REGISTRY:
                raise ValueError(f"variants: {name} is the name of a registered model; choose another")
            if unknown := set(variant.encoders or ()) - set(encoders):
                raise ValueError(f"variants.{name}: unknown encoder {min(unknown)}; there are {', '.join(encoders)}")
            if variant.documents not in self.documents:
                known = ", ".join(self.documents)
                raise ValueError(f"variants.{name}: unknown documents {variant.documents}; there are {known}")
        legal = [*REGISTRY, *self.variants]
        if unknown := set(self.models) - set(legal):
            raise ValueError(f"models: unknown model {min(unknown)}; there are {', '.join(legal)}")
        return self

    def row(self, name: str) -> Variant:
        """What the row `name` of results means: a variant, or a registered model on all encoders."""
        values = self.variants[name].model_dump() if name in self.variants else {**self.variant_defaults, "model": name}
        if values["encoders"] is None:
            values["encoders"] = tuple(encoder.name for encoder in self.encoders)
        return Variant.model_validate(values)

    def own_section(self, model: str) -> dict[str, Any] | None:
        """The settings that only the registered `model` has; None where it has none."""
        section = getattr(self, model.replace("-", "_"), None)
        return section.model_dump() if isinstance(section, Section) else None

    def documents_named(self, name: str) -> Documents:
        if name not in self.documents:
            raise UsageError(f"no documents {name} in the configuration; there are {', '.join(self.documents)}")
        return self.documents[name]

    def encoder(self, name: str) -> Encoder:
        for encoder in (*self.encoders, *self.study.encoders):
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
    study = values.get("study")
    if isinstance(study, Mapping) and isinstance(study.get("encoders"), list):
        laid = [merge(defaults, e) if isinstance(e, Mapping) else e for e in study["encoders"]]
        values["study"] = {**study, "encoders": laid}
    if isinstance(values.get("variants"), Mapping) and isinstance(below := values.get("variant_defaults"), Mapping):
        values["variants"] = {
            name: merge(below, v) if isinstance(v, Mapping) else v for name, v in values["variants"].items()
        }
    if isinstance(below := values.get("train_defaults"), Mapping):
        for section in (model.replace("-", "_") for model in TRAINED):
            if isinstance(values.get(section), Mapping):
                values[section] = merge(below, values[section])
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
