"""The whole configuration."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipeline.config.checks import check
from pipeline.config.collection import Auxiliary, Collection, Demo, Documents, Text, TokenVocabulary
from pipeline.config.generators import (
    Describe,
    ExtraText,
    LogBilinear,
    Nearest,
    Optimisation,
    Recurrent,
    RegionRecurrent,
)
from pipeline.config.images import Encoder, Extract, Finetune, ImageView, Regions
from pipeline.config.models import (
    Align,
    AlignedTrain,
    Csls,
    DenseTrain,
    Fit,
    FragmentTrain,
    Kernels,
    Phrases,
    RecurrentTrain,
    RelationTrain,
    Study,
    Train,
    Transfer,
    WordVectors,
    Wsabie,
)
from pipeline.config.parse import Parse
from pipeline.config.places import check_places
from pipeline.config.rows import Rows
from pipeline.config.section import AboveZero, Count, Described, Device, Name, Positive, PositiveShare, Section, Split
from pipeline.errors import UsageError
from pipeline.specs import GENERATORS, TRAININGS

SCHEDULER = r"^(local|slurm|kubernetes|\w+://.+)$"


class Shortlist(Section):
    nearest: Positive
    shortlist: Positive


class Index(Section):
    splits: tuple[Split, ...]
    exact_limit: Positive
    recall_floor: PositiveShare
    memory: Positive | None
    on_disk: bool
    latency_ms: AboveZero | None
    candidates: Literal["auto"] | Annotated[tuple[str, ...], Field(min_length=1)]
    sample: Annotated[Positive, Field(ge=1000)]
    workload: Positive
    shortlist: Shortlist


class Evaluate(Section):
    splits: tuple[Described, ...]
    protocols: tuple[Literal["all-sentences", "first-sentence"], ...]
    bootstrap: Count
    folds: Positive


class Plan(Section):
    sample: Annotated[Positive, Field(ge=8)]


class Reproduce(Section):
    collection: Literal["flickr8k", "flickr30k", "coco", "pascal1k"] | None
    gong: bool


class Serve(Section):
    top: Positive
    max_top: Positive
    among: Count
    max_upload_bytes: Positive
    head_seconds: AboveZero
    upload_seconds: AboveZero
    answer_seconds: AboveZero
    max_connections: Positive
    max_requests: Positive
    max_descriptions: Positive
    thumbnail_side: Positive


class Cluster(Section):
    workers: Positive
    options: dict[str, Any]


class Config(Rows):
    name: Name
    data_root: str
    weights_root: str
    results_root: str
    shard_size: Positive
    shards_per_job: Positive | None
    device: Device
    workers: Positive
    scheduler: Annotated[str, Field(pattern=SCHEDULER)] | None
    cluster: Cluster
    demo: Demo
    collection: Collection
    plan: Plan
    extract: Extract
    regions: Regions
    finetune: Finetune
    text: Text
    image_view: ImageView
    fit: Fit
    auxiliary: Auxiliary
    transfer: Transfer
    kcca: Kernels
    wsabie_sgd: Wsabie
    wsabie_adagrad: Wsabie
    tokens: TokenVocabulary
    parse: Parse
    word_vectors: WordVectors
    train_defaults: Train
    bow: Train
    devise: Train
    rnn: Train
    gru: Train
    lstm: Train
    ctrnn: Train
    dtrnn: Train
    sdtrnn: RelationTrain
    hmlstm: DenseTrain
    dvsa: AlignedTrain
    defrag: AlignedTrain
    fragments: FragmentTrain
    ncca_refined: Train
    ncca_recurrent: RecurrentTrain
    study: Study
    csls: Csls
    align: Align
    phrases: Phrases
    index: Index
    evaluate: Evaluate
    serve: Serve
    reproduce: Reproduce
    generators: tuple[Literal[tuple(GENERATORS)], ...]
    language_defaults: Optimisation
    language_text: ExtraText
    nearest: Nearest
    mrnn: Recurrent
    mrnn_regions: RegionRecurrent
    lbl: LogBilinear
    mnlm: LogBilinear
    sc_nlm: LogBilinear
    describe: Describe

    @model_validator(mode="after")
    def _can_be_done(self) -> "Config":
        if unknown := set(self.study.noise) - set(self.documents):
            raise ValueError(f"study.noise: unknown documents {min(unknown)}; there are {', '.join(self.documents)}")
        self._check_rows()
        check(self)
        check_places(self)
        return self

    def judged_splits(self, row: str) -> tuple[str, ...]:
        """The splits that a row is evaluated on; not on dev for a refit, which has learned from it."""
        return tuple(split for split in self.evaluate.splits if split != "dev" or not self.refitted(row))

    def transfer_of(self, training: str) -> dict[str, Any]:
        """The keys of `transfer` that matter to `training`."""
        return self.transfer.model_dump(include=set(TRAININGS[training]))

    def own_section(self, model: str) -> dict[str, Any] | None:
        """The settings that only the registered `model` has; None where it has none."""
        section = getattr(self, model.replace("-", "_"), None)
        return section.model_dump() if isinstance(section, Section) else None

    def documents_named(self, name: str) -> Documents:
        if name not in self.documents:
            raise UsageError(f"no documents {name} in the configuration; there are {', '.join(self.documents)}")
        return self.documents[name]

    @property
    def every_encoder(self) -> tuple[Encoder, ...]:
        """The encoders of the run, and those that only the study measures with."""
        return (*self.encoders, *self.study.encoders)

    def encoder(self, name: str) -> Encoder:
        for encoder in self.every_encoder:
            if encoder.name == name:
                return encoder
        raise UsageError(
            f"no encoder {name} in the configuration; there are {', '.join(e.name for e in self.encoders)}"
        )
