"""The card of an index shard, `card.json`: its inputs, its files, and the measurements of its FAISS indexes.

A card may come from a stranger. `read_card` checks its form, and readers use its typed attributes. `make_card` is the
one function that constructs a card.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, Self, TypedDict, Unpack

from pydantic import ConfigDict, Field, model_validator

from pipeline.config.registry import IMPORT_PATH, MAX_SIDE, MODELS
from pipeline.errors import IntegrityError
from pipeline.storage.batch import FileSum
from pipeline.storage.files import inside
from pipeline.storage.json_files import CHECK, Count, File, Finite, Form, Json, check_form, read_json

CARD = "card.json"
INDEXED = {
    "global": {"images": "images", "sentences": "sentences"},
    "fragments": {"images": "regions", "sentences": "words"},
}
"""Kind of index -> modality -> the name of its FAISS index."""
Modality = Literal["images", "sentences"]

Dimensions = Annotated[int, Field(gt=0, le=1 << 24)]
Positive = Annotated[int, Field(gt=0, lt=1 << 31)]
Side = Annotated[int, Field(gt=0, le=MAX_SIDE)]
Measure = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Metric = Literal["inner_product", "euclidean"]
Colours = Annotated[list[Finite], Field(min_length=3, max_length=3)]
MAX_CARD_BYTES = 1 << 24
MAX_FILES = 1 << 10
"""Maximum number of files, of inputs and of encoders on a card."""
FACTORY = r"^(IVF[0-9]{1,6}|[A-Za-z_,()]+[0-9]{0,4})+$"
"""Pattern of FAISS's factory strings in which all numbers are small, because they are sizes."""


class CardPart(Form):
    """A part of a card. Keys that this version does not know are kept."""

    model_config = ConfigDict(extra="allow")

    def to_json(self) -> dict[str, Json]:
        """Return the JSON object that the part was read or constructed from."""
        return self.model_dump(by_alias=True, exclude_unset=True)


class ShortlistCard(CardPart):
    """The shortlist of a multi-vector model's index, and its recall. It is null if all items are scored."""

    nearest: Positive | None
    shortlist: Positive | None
    recall: Share = Field(alias="recall@10")
    queries_per_second: Measure | None = None
    exact_queries_per_second: Measure | None = None


class WeightsCard(CardPart):
    """The origin of an encoder's weights."""

    origin: str


class PreprocessingCard(CardPart):
    """The settings of pipeline.images.preprocess.Preprocessing."""

    resize: Side
    crop: Side | None
    mean: Colours
    std: Annotated[list[Annotated[float, Field(gt=0, allow_inf_nan=False)]], Field(min_length=3, max_length=3)]
    interpolation: Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"] = "bilinear"


class EncoderCard(CardPart):
    """The settings of an image encoder: the keys that the report shows, and the keys that hold sizes.

    The encoder checks its other settings.
    """

    architecture: str
    layer: str
    weights: WeightsCard
    preprocessing: PreprocessingCard | None = None


class TextEncoderCard(CardPart):
    """The kind of a text encoder."""

    kind: str


class IndexCard(CardPart):
    """One FAISS index, and its measurements.

    `recall` is the share of a query's true nearest neighbours that the index finds. It was measured with vectors of
    captions or of images, as `measured_with` says. `queries_per_second` is the number of queries of a batch that one
    core answers, in CPU seconds. `latency_ms` is the 95th percentile of one query alone. `nprobe`, `efSearch` and
    `k_factor` are the search parameters that the index was tuned to; an index without a parameter has null.
    """

    factory: Annotated[str, Field(pattern=FACTORY, max_length=256)]
    metric: Metric
    dim: Dimensions
    count: Annotated[int, Field(ge=0, lt=1 << 40)]
    bytes: Count
    nprobe: Annotated[int, Field(gt=0, lt=10**6)] | None
    efSearch: Annotated[int, Field(gt=0, le=1 << 15)] | None  # noqa: N815  FAISS's own name
    k_factor: Annotated[int, Field(gt=0, le=1 << 10)] | None
    queries_per_second: Measure
    latency_ms: Measure
    build_seconds: Measure
    recall: Share = Field(alias="recall@10")
    measured_with: Literal["images", "captions"] | None = None
    shortlist: ShortlistCard | None = None


class ScoreCard(CardPart):
    """The rule that scores two items of a multi-vector model."""

    sum: str
    global_weight: Finite


class TrainedOn(CardPart):
    """The training data of the model: `images` with `sentences` of the `splits` of the run `run`, and the fingerprint
    of its manifest."""

    run: str
    splits: list[str]
    images: Count
    sentences: Count
    manifest: str


class CalibrationCard(CardPart):
    """The line above which answers are likely: see pipeline.index.calibration."""

    version: Literal[1]
    coverage: Share
    score: Finite
    nearness: Finite


class PartCard(CardPart):
    """The number of an index shard among the shards that were built together."""

    number: Count
    of: Annotated[int, Field(gt=0, le=1 << 16)]


class MeasuredIndexes(CardPart):
    """The FAISS indexes of an index shard by their names, and how their items score."""

    kind: Literal["global", "fragments"] = "global"
    score: ScoreCard | None = None
    images: IndexCard | None = None
    sentences: IndexCard | None = None
    regions: IndexCard | None = None
    words: IndexCard | None = None

    def index_name(self, modality: Modality) -> str:
        """Return the name of the FAISS index of `images` or `sentences`: `regions` or `words` for a multi-vector
        model."""
        return INDEXED[self.kind][modality]

    def index_of(self, modality: Modality) -> IndexCard | None:
        """Return the index of `images` or `sentences`, or None if there is none."""
        return getattr(self, self.index_name(modality))


class Card(MeasuredIndexes):
    """The card of an index shard."""

    model: str
    registered: str
    metric: Metric
    dim: Dimensions
    files: Annotated[dict[str, File], Field(max_length=MAX_FILES)]
    inputs: Annotated[dict[str, str], Field(max_length=MAX_FILES)]
    fingerprint: str
    splits: list[str]
    data_root: str
    part: PartCard | None = None
    name: str | None = None
    trained_on: TrainedOn | None = None
    encoders: Annotated[dict[str, EncoderCard], Field(max_length=MAX_FILES)]
    text_encoders: Annotated[dict[str, TextEncoderCard], Field(max_length=MAX_FILES)] = {}
    calibration: CalibrationCard | None = None

    @property
    def says_likely(self) -> bool:
        """Whether the shard was built by a version that calibrates; `calibration` is null if that was impossible."""
        return "calibration" in self.model_fields_set

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        indexes = [self.index_of("images"), self.index_of("sentences")]
        needed = [self.images]
        if self.kind == "fragments":
            needed = [*indexes, self.score, *(index and index.shortlist for index in indexes)]
        if None in needed:
            raise ValueError(f"its kind is {self.kind}, and a part of that is missing")
        if any((index.dim, index.metric) != (self.dim, self.metric) for index in indexes if index):
            raise ValueError("its indexes are of other dimensions or another metric")
        if self.registered not in {spec.name for spec in MODELS} and not re.match(IMPORT_PATH, self.registered):
            raise ValueError(f"its model {self.registered} is not a registered one")
        return self


class CardFacts(TypedDict, total=False):
    """The keys of a card that a writer gives."""

    model: str
    registered: str
    metric: str
    dim: int
    inputs: Mapping[str, str]
    fingerprint: str
    splits: Sequence[str]
    data_root: str
    part: Mapping[str, int]
    name: str | None
    trained_on: Mapping[str, Json]
    encoders: Mapping[str, Mapping[str, Json]]
    text_encoders: Mapping[str, Mapping[str, Json]]
    calibration: Mapping[str, Json] | None
    commit: Mapping[str, Json]


def make_card(
    path: Path,
    files: Mapping[str, FileSum],
    measured: MeasuredIndexes | None = None,
    source: Card | None = None,
    but: Collection[str] = (),
    **facts: Unpack[CardFacts],
) -> Card:
    """Construct the card `path` of an index shard with the `files`.

    `measured` describes its FAISS indexes, and `facts` are further keys. All other keys are copied from `source`, the
    card of the shard that this shard is made from, except the keys in `but`. Raises IntegrityError for a value that no
    reader would accept, for example of an encoder that is not part of jointspace.
    """
    own = {"files", CHECK, *but}
    values = {} if source is None else {key: value for key, value in source.to_json().items() if key not in own}
    values |= {} if measured is None else measured.to_json()
    values = json.loads(json.dumps({**values, **facts, "files": files}))
    return check_form(values, Card, path, "correct what makes this value", "cannot be written")


def read_card(folder: Path) -> Card:
    """Read the card of the index shard in `folder`.

    Raises IntegrityError if it does not have the form of Card, or names a file outside of the folder.
    """
    path = folder / CARD
    remedy = "name the folder of an index, or run build-index again"
    with suppress(OSError):  # read_json explains it
        if path.stat().st_size > MAX_CARD_BYTES:
            raise IntegrityError(f"{path} is not an index's card: it has more than {MAX_CARD_BYTES:,} bytes; {remedy}")
    card = check_form(read_json(path), Card, path, remedy, "is not an index's card")
    for name in card.files:
        inside(folder, name, path)
    return card
