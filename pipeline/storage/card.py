"""The card of an index shard, `card.json`: the shard's inputs and files, and the measurements of its FAISS indexes.

A card may come from an untrusted source. `read_card` checks its form, and readers use its typed attributes.
`make_card` is the only function that constructs a card for writing.
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
from pipeline.storage.files import REBUILD, inside
from pipeline.storage.json_files import CHECK, Count, File, Finite, Form, Json, check_form, read_json

CARD = "card.json"
INDEXED = {
    "global": {"images": "images", "sentences": "sentences"},
    "fragments": {"images": "regions", "sentences": "words"},
}
"""The name of the FAISS index, for each kind of index shard and each modality."""
Modality = Literal["images", "sentences"]

Dimensions = Annotated[int, Field(gt=0, le=1 << 24)]
Positive = Annotated[int, Field(gt=0, lt=1 << 31)]
Side = Annotated[int, Field(gt=0, le=MAX_SIDE)]
Measure = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Metric = Literal["inner_product", "euclidean"]
MeasuredWith = Literal["captions", "phrases", "images"]
Colours = Annotated[list[Finite], Field(min_length=3, max_length=3)]
MAX_CARD_BYTES = 1 << 24
MAX_FILES = 1 << 10
"""Maximum number of entries in each of the mappings `files`, `inputs`, `encoders` and `text_encoders` of a card. A card
with more entries in one of these mappings is refused."""
FACTORY = r"^(IVF[0-9]{1,6}|[A-Za-z_,()]+[0-9]{0,4})+$"
"""Pattern of the accepted FAISS factory strings. Their numbers are sizes, so the pattern limits their digits."""


class CardPart(Form):
    """A JSON object within a card. Keys that this version does not know are kept."""

    model_config = ConfigDict(extra="allow")

    def to_json(self) -> dict[str, Json]:
        """Return the JSON object from which this part of the card was read or constructed."""
        return self.model_dump(by_alias=True, exclude_unset=True)


class ShortlistCard(CardPart):
    """The settings and the recall of a multi-vector model's shortlist: the items that are scored exactly.

    First, the scores of all items are estimated. If images are searched and the best region for each word counts, the
    estimates contain the exact products of each word with the `nearest` regions. Then the `shortlist` items with the
    best estimates are scored exactly. `nearest` and `shortlist` are null if all items are scored exactly. `recall` is
    the share of a query's 10 best items that the shortlist finds. `queries_per_second` is the speed of searches with
    the shortlist, and `exact_queries_per_second` is the speed of searches that score all items exactly.
    """

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
    """The settings of an image encoder whose form the card checks.

    The report shows `architecture`, `layer` and `weights`. The `preprocessing` has the sizes of resized images, which
    must not be too large. The encoder itself checks its other settings when it is loaded.
    """

    architecture: str
    layer: str
    weights: WeightsCard
    preprocessing: PreprocessingCard | None = None


class TextEncoderCard(CardPart):
    """A text encoder of a model. `kind` is its kind in the configuration, such as tf-idf."""

    kind: str


class ConditionCard(CardPart):
    """The recall of searches under conditions that `share` of the items pass (see pipeline.index.condition_recall).

    `uncorrelated` is the recall if random items pass, and `correlated` is the recall if similar items pass.
    """

    share: Share
    uncorrelated: Share
    correlated: Share


class IndexCard(CardPart):
    """One FAISS index and its measurements.

    The index has `count` vectors of `dim` dimensions, its file has `bytes` bytes, and building it took `build_seconds`.
    `recall` is the share of a query's 10 exact nearest neighbours that are among the 10 results of the index. The
    queries are vectors of captions, phrases or images, as `measured_with` says. `queries_per_second` counts the queries
    of a batch that one core answers per CPU second. `latency_ms` is the 95th percentile of the wall time for a single
    query, in milliseconds. `nprobe`, `efSearch` and `k_factor` are the search parameters to which the index was tuned.
    A parameter is null if the index type does not have it. `shortlist` is null unless the model is a multi-vector
    model. `conditions` has the recall of searches under conditions, one entry per share of allowed items.
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
    measured_with: MeasuredWith | None = None
    shortlist: ShortlistCard | None = None
    conditions: Annotated[list[ConditionCard], Field(max_length=16)] | None = None


class ScoreCard(CardPart):
    """The rule that scores an image and a sentence of a multi-vector model (see pipeline.index.gallery).

    `sum` names how the products of regions and words are summed, and `global_weight` is the weight of the product of
    the global vectors. Both are fields of pipeline.compute.multivectors.ScoreRule.
    """

    sum: str
    global_weight: Finite


class TrainedOn(CardPart):
    """The training data of the model: the name of its run, the splits, how many images and captions they have, and the
    fingerprint of the manifest."""

    run: str
    splits: list[str]
    images: Count
    sentences: Count
    manifest: str


class CalibrationCard(CardPart):
    """The threshold above which results count as likely matches.

    The class pipeline.index.calibration.Calibration explains `coverage`, `score` and `nearness`. `photos` lists how
    many photos each index shard had when `jointspace calibrate` set the threshold. It is null if the threshold comes
    from the dev split.
    """

    version: Literal[1]
    coverage: Share
    score: Finite
    nearness: Finite
    photos: Annotated[list[Count], Field(max_length=1 << 16)] | None = None


class PartCard(CardPart):
    """The `number` of an index shard, from 0, among the `of` shards that were built together."""

    number: Count
    of: Annotated[int, Field(gt=0, le=1 << 16)]


class MeasuredIndexes(CardPart):
    """The FAISS indexes of an index shard by name, and the rule that scores the items of a multi-vector model.

    If `kind` is `fragments`, the model is a multi-vector model, and the indexes are `regions` and `words`. If `kind` is
    `global`, the indexes are `images` and perhaps `sentences`. Indexes that the shard does not have are null.
    """

    kind: Literal["global", "fragments"] = "global"
    score: ScoreCard | None = None
    images: IndexCard | None = None
    sentences: IndexCard | None = None
    regions: IndexCard | None = None
    words: IndexCard | None = None

    def index_name(self, modality: Modality) -> str:
        """Return the name of the FAISS index of a modality. A multi-vector model has `regions` for `images`, and
        `words` for `sentences`."""
        return INDEXED[self.kind][modality]

    def index_of(self, modality: Modality) -> IndexCard | None:
        """Return the card of the FAISS index of `images` or `sentences`, or None if the shard has no such index."""
        return getattr(self, self.index_name(modality))


class Card(MeasuredIndexes):
    """The card of an index shard.

    `model` is the name of the model in its run, `registered` its model type, and `trained_on` its training data. The
    vectors have `dim` dimensions and are compared by `metric`. `files` are the files of the shard by name, and `inputs`
    are the digests of the model and of everything else from which the shard was made. `fingerprint` is one hash of the
    shard's origin. `splits` are the splits of its images, and `data_root` is the folder of the photos. `name` is the
    name of the run or of the addition, and `part` is null unless several shards were built together. `encoders` and
    `text_encoders` are the encoders of queries by name. `calibration` is null if the shard is not calibrated.
    """

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

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        indexes = [self.index_of("images"), self.index_of("sentences")]
        needed = [self.images]
        if self.kind == "fragments":
            needed = [*indexes, self.score, *(index and index.shortlist for index in indexes)]
        if None in needed:
            keys = "images, sentences, score and shortlist" if self.kind == "fragments" else "images"
            raise ValueError(f"the card has the kind {self.kind}, but lacks a key that this kind needs ({keys})")
        if any((index.dim, index.metric) != (self.dim, self.metric) for index in indexes if index):
            raise ValueError(
                f"the card has {self.dim} dimensions and the metric {self.metric}, but one of its indexes has other"
                " dimensions or another metric"
            )
        if self.registered not in {spec.name for spec in MODELS} and not re.match(IMPORT_PATH, self.registered):
            raise ValueError(f"the model type {self.registered} is unknown to this version of jointspace")
        return self


class CardFacts(TypedDict, total=False):
    """The keys of a card that its writer passes to `make_card`."""

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
    """Construct the card of an index shard. Nothing is written: `path` is only named in errors.

    `files` are the size and the sha256 of the shard's files by name, `measured` describes its FAISS indexes, and
    `facts` are further keys. All other keys are copied from `source`, the card of the shard from which this shard is
    derived, except the keys in `but`. Raises IntegrityError for a value that `read_card` would not accept, for example
    settings of an encoder that is not part of jointspace.
    """
    own = {"files", CHECK, *but}
    values = {} if source is None else {key: value for key, value in source.to_json().items() if key not in own}
    values |= {} if measured is None else measured.to_json()
    values = json.loads(json.dumps({**values, **facts, "files": files}))
    return check_form(values, Card, path, "Correct the model or the encoder that sets this value.", "cannot be written")


def read_card(folder: Path) -> Card:
    """Read the card of the index shard in `folder`.

    Raises IntegrityError if the card is missing, exceeds MAX_CARD_BYTES, does not have the form of Card, or names a
    file outside the folder.
    """
    path = folder / CARD
    remedy = f"Name the folder of an index. {REBUILD}"
    with suppress(OSError):  # read_json reports this error.
        if path.stat().st_size > MAX_CARD_BYTES:
            raise IntegrityError(
                f"{path} is not the card of an index, because the file exceeds {MAX_CARD_BYTES:,} bytes. {remedy}"
            )
    card = check_form(read_json(path), Card, path, remedy, "is not the card of an index")
    for name in card.files:
        inside(folder, name, path)
    return card
