"""The whole configuration."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipeline.config.collection import Auxiliary, Collection, Demo, Documents, Text, TokenVocabulary
from pipeline.config.images import Encoder, Extract, Finetune, ImageView, Regions
from pipeline.config.models import Fit, Kernels, Study, Train, Transfer, Variant, VariantDefaults, WordVectors, Wsabie
from pipeline.config.section import Name, Positive, Section, Split
from pipeline.errors import UsageError
from pipeline.models import REGISTRY, TRAININGS


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
    variant_defaults: VariantDefaults
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
        if unknown := set(self.study.noise) - set(self.documents):
            raise ValueError(f"study.noise: unknown documents {min(unknown)}; there are {', '.join(self.documents)}")
        legal = [*REGISTRY, *self.variants]
        if unknown := set(self.models) - set(legal):
            raise ValueError(f"models: unknown model {min(unknown)}; there are {', '.join(legal)}")
        return self

    def row(self, name: str) -> Variant:
        """What the row `name` of results means: a variant, or a registered model on all encoders."""
        values = (
            self.variants[name].model_dump()
            if name in self.variants
            else {**self.variant_defaults.model_dump(), "model": name}
        )
        if values["encoders"] is None:
            values["encoders"] = tuple(encoder.name for encoder in self.encoders)
        return Variant.model_validate(values)

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

    def encoder(self, name: str) -> Encoder:
        for encoder in (*self.encoders, *self.study.encoders):
            if encoder.name == name:
                return encoder
        raise UsageError(
            f"no encoder {name} in the configuration; there are {', '.join(e.name for e in self.encoders)}"
        )
