"""The whole configuration."""

from collections.abc import Sequence
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import Field, create_model, model_validator

from pipeline.config.checks import check
from pipeline.config.encoders import Encoder, StudyWithEncoders
from pipeline.config.generators import Generators
from pipeline.config.places import check_places
from pipeline.config.text_encoders import TextEncoderEntry
from pipeline.config.variants import OWN
from pipeline.errors import UsageError
from pipeline.settings.collection import (
    AuxiliarySettings,
    CollectionSettings,
    DemoSettings,
    TextSettings,
    TokenVocabularySettings,
)
from pipeline.settings.images import ExtractSettings, FinetuneSettings, ImageViewSettings, RegionsSettings
from pipeline.settings.models import AlignSettings, CslsSettings, PhrasesSettings, TrainSettings
from pipeline.settings.parse import ParseSettings
from pipeline.settings.section import (
    DESCRIBED,
    AboveZero,
    Count,
    Described,
    Device,
    Name,
    Positive,
    PositiveShare,
    Protocol,
    Section,
    Split,
)
from pipeline.specs.generators import ranker
from pipeline.specs.places import find, import_place

SCHEDULER = r"^(local|slurm|kubernetes|\w+://.+)$"


class ShortlistSettings(Section):
    nearest: Positive
    shortlist: Positive


class IndexSettings(Section):
    splits: tuple[Split, ...]
    exact_limit: Positive
    recall_floor: PositiveShare
    memory: Positive | None
    bundles: Annotated[Positive, Field(le=10_000)]
    latency_ms: AboveZero | None
    candidates: Literal["auto"] | Annotated[tuple[str, ...], Field(min_length=1)]
    sample: Annotated[Positive, Field(ge=1000)]
    shortlist: ShortlistSettings


class EvaluateSettings(Section):
    splits: tuple[Described, ...]
    protocols: tuple[Protocol, ...]
    bootstrap: Count
    folds: Positive
    generators: tuple[Name, ...]
    prior_images: Count


PaperCollection = Literal["flickr8k", "flickr30k", "coco", "coco-region", "pascal1k", "sbu"]


class ReproduceSettings(Section):
    collection: PaperCollection | None
    others: tuple[PaperCollection, ...]
    gong: bool
    trees: bool
    in_place_of: dict[str, str]


class ServeSettings(Section):
    top: Positive
    max_top: Positive
    among: Count
    max_upload_bytes: Positive
    max_upload_pixels: Positive
    upload_seconds: AboveZero
    max_connections: Positive
    max_requests: Positive
    max_descriptions: Positive
    thumbnail_side: Positive
    originals: bool | None


class ClusterSettings(Section):
    workers: Positive
    options: dict[str, Any]


class RemoteSettings(Section):
    scratch: str | None
    scratch_gb: AboveZero


class Keys(Generators):
    name: Name
    data_root: str
    weights_root: str
    results_root: str
    shard_size: Positive
    parts: Annotated[Positive, Field(le=99_999)]
    device: Device
    workers: Positive
    scheduler: Annotated[str, Field(pattern=SCHEDULER)] | None
    cluster: ClusterSettings
    remote: RemoteSettings
    demo: DemoSettings
    collection: CollectionSettings
    extract: ExtractSettings
    regions: RegionsSettings
    finetune: FinetuneSettings
    text: TextSettings
    image_view: ImageViewSettings
    auxiliary: AuxiliarySettings
    tokens: TokenVocabularySettings
    parse: ParseSettings
    train_defaults: TrainSettings
    study: StudyWithEncoders
    csls: CslsSettings
    align: AlignSettings
    phrases: PhrasesSettings
    index: IndexSettings
    evaluate: EvaluateSettings
    serve: ServeSettings
    reproduce: ReproduceSettings


OwnKeys = create_model(
    "OwnKeys", __base__=Keys, **{key: (import_place(spec.section), ...) for key, spec in OWN.items()}
)
"""With the section of every registered model and generator that has settings of its own."""


class Config(OwnKeys):
    @model_validator(mode="after")
    def _can_be_done(self) -> "Config":
        if unknown := set(self.study.noise) - set(self.documents):
            raise ValueError(f"study.noise: unknown documents {min(unknown)}; there are {', '.join(self.documents)}")
        try:
            check(self)
        except UsageError as error:
            raise ValueError(str(error)) from error
        check_places(self)
        return self

    def judged_splits(self, name: str) -> tuple[str, ...]:
        """The splits that a model is evaluated on; not on dev for a refit, which has learned from it."""
        return tuple(split for split in self.evaluate.splits if split != "dev" or not self.refitted(name))

    def bundle_names(self, model: str) -> list[str]:
        """The bundles of a model: itself, or, where `index.bundles` is more than 1, `<model>/00` and so on."""
        count = self.index.bundles
        return [model] if count == 1 else [f"{model}/{number:02d}" for number in range(count)]

    def evaluations(self) -> list[tuple[str, str, str]]:
        """Model, split and protocol of each evaluation."""
        judged = [(name, split) for name in self.models for split in self.judged_splits(name)]
        ranked = product(map(ranker, self.evaluate.generators), self.evaluate.splits)
        return [(*one, protocol) for one in (*judged, *ranked) for protocol in self.evaluate.protocols]

    def aligned_splits(self, splits: Sequence[str] = DESCRIBED) -> list[tuple[str, str]]:
        """Each of `models` that gives regions and words vectors of their own, with each split; no ensembles."""
        return list(product([name for name in self.models if self.model(name).spec.aligned], splits))

    def phrase_splits(self, splits: Sequence[str] = DESCRIBED) -> list[tuple[str, str]]:
        """Each of `models` that embeds noun phrases, with each split."""
        learned = [name for name in self.models if self.model(name).spec.phrases]
        return list(product(learned if self.phrases.models is None else self.phrases.models, splits))

    def descriptions(self, splits: Sequence[str] = DESCRIBED) -> list[tuple[str, str]]:
        """Each of `generators` with each subject: a split and, where boxes are described, `<split>.boxes`."""
        boxes = [f"{split}.boxes" for split in splits] if self.describe.boxes else []
        return list(product(self.generators, [*splits, *boxes]))

    @property
    def study_text_weights(self) -> dict[str, tuple[float, ...]]:
        """The weights of each text encoder that the study tries."""
        return {one.name: one.weight for one in self.text_encoders} | self.study.fit.text_weights

    @property
    def every_encoder(self) -> tuple[Encoder, ...]:
        """The encoders of the run, and those that only the study measures with."""
        return (*self.encoders, *self.study.encoders)

    @property
    def prepared_encoders(self) -> tuple[Encoder, ...]:
        """Those that can describe an image, with those that only queries use."""
        return tuple(one for one in (*self.every_encoder, *self.query_encoders) if one.prepared)

    def encoder(self, name: str) -> Encoder:
        return find("encoder", name, (*self.every_encoder, *self.query_encoders))

    def text_encoder(self, name: str) -> TextEncoderEntry:
        return find("text encoder", name, (*self.text_encoders, *self.query_text_encoders))

    @property
    def prepared_text_encoders(self) -> tuple[TextEncoderEntry, ...]:
        """Those that can encode a text, with those that only queries use."""
        return tuple(one for one in (*self.text_encoders, *self.query_text_encoders) if one.prepared)
