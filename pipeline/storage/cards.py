"""The form of a bundle's card and of its tables, checked once when they are opened."""

from typing import Annotated, Literal, Self

import pyarrow as pa
from pydantic import Field, model_validator

from pipeline.config.registry.models import MODELS
from pipeline.storage.json_files import Count, Digits, Finite, Form

Dimensions = Annotated[int, Field(gt=0, le=1 << 24)]
Positive = Annotated[int, Field(gt=0, lt=1 << 31)]
Measure = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Metric = Literal["inner_product", "euclidean"]
INDEXED = {
    "global": {"images": "images", "sentences": "sentences"},
    "fragments": {"images": "regions", "sentences": "words"},
}
"""Kind of bundle -> modality -> its index's name."""
PLACED = [("image_id", pa.int64()), ("path", pa.string()), ("split", pa.string()), ("sha256", pa.string())]
COLUMNS = {
    "images": pa.schema([*PLACED, ("member", pa.string()), ("offset", pa.int64()), ("size", pa.int64())]),
    "sentences": pa.schema([("sentence_id", pa.int64()), ("image_id", pa.int64()), ("text", pa.string())]),
}
"""The columns that readers need; a collection's own columns may follow."""
NUMBER = {"images": "image_id", "sentences": "sentence_id"}
"""The column of each row's id."""


class File(Form):
    bytes: Count
    sha256: Digits


class ShortlistForm(Form):
    nearest: Positive | None
    shortlist: Positive | None
    recall: Share = Field(alias="recall@10")


class WeightsForm(Form):
    origin: str


class EncoderForm(Form):
    """The keys that `report` shows; the others are the encoder's `settings`."""

    architecture: str
    layer: str
    weights: WeightsForm


class TextEncoderForm(Form):
    kind: str


class IndexForm(Form):
    factory: str
    metric: Metric
    dim: Dimensions
    count: Annotated[int, Field(ge=0, lt=1 << 40)]
    bytes: Count
    nprobe: Positive | None
    efSearch: Positive | None  # noqa: N815  FAISS's own name
    k_factor: Positive | None
    queries_per_second: Measure
    latency_ms: Measure
    build_seconds: Measure
    recall: Share = Field(alias="recall@10")
    shortlist: ShortlistForm | None = None


class Score(Form):
    sum: str
    global_weight: Finite


class ParseForm(Form):
    engine: str
    max_words: Positive | None = None
    package: str | None = None


class TrainedOn(Form):
    """`images` are those with `sentences`, of the `splits` of the run `run`, whose manifest has this fingerprint."""

    run: str
    splits: list[str]
    images: Count
    sentences: Count
    manifest: str


class PartForm(Form):
    """Which of how many bundles that were built together."""

    number: Count
    of: Annotated[int, Field(gt=0, le=1 << 16)]


class Card(Form):
    kind: Literal["global", "fragments"] = "global"
    model: str
    registered: str
    metric: Metric
    dim: Dimensions
    files: dict[str, File]
    inputs: dict[str, str]
    fingerprint: str
    splits: list[str]
    data_root: str
    part: PartForm | None = None
    name: str | None = None
    trained_on: TrainedOn | None = None
    encoders: dict[str, EncoderForm]
    text_encoders: dict[str, TextEncoderForm] = {}
    images: IndexForm | None = None
    sentences: IndexForm | None = None
    regions: IndexForm | None = None
    words: IndexForm | None = None
    score: Score | None = None
    parse: ParseForm | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        parts = [getattr(self, name) for name in INDEXED[self.kind].values()]
        single = self.kind == "global"
        needed = [self.images] if single else [*parts, self.score, *(part and part.shortlist for part in parts)]
        if None in needed:
            raise ValueError(f"its kind is {self.kind}, and a part of that is missing")
        parts = [part for part in parts if part]
        if any((part.dim, part.metric) != (self.dim, self.metric) for part in parts):
            raise ValueError("its indices are of other dimensions or another metric")
        if self.registered not in {spec.name for spec in MODELS}:
            raise ValueError(f"its model {self.registered} is not a registered one")
        parsed = self.parse is not None and self.parse.engine == "spacy"
        if parsed and (self.parse.max_words is None or "parser" not in self.inputs):
            raise ValueError("its parser is not named")
        return self
