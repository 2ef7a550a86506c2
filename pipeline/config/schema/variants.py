"""A variant: a registered model under a name of its own, with hyperparameters of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from pipeline.config.registry.models import MODELS, TRAININGS, ModelSpec
from pipeline.config.schema.models import FitSettings, TransferSettings
from pipeline.config.schema.section import Name, Names, NonNegatives, Section, Seed, Seeds, key
from pipeline.config.schema.text import WordVectorsSettings


class Variant(Seeds):
    """Keys beside these are settings of its model."""

    model_config = ConfigDict(extra="allow")
    model: Literal[tuple(spec.name for spec in MODELS if spec.made_by != "combine")] = key(..., "a registered model")
    encoders: Names | None = key(None, "some of the above; null: all of them, side by side")
    text_encoders: Names | None = key(None, "likewise, of text_encoders")
    training: Literal[tuple(TRAININGS)] = key(
        "target", "target | auxiliary | joint | text-feature | stacked | sae-linear | sae"
    )
    documents: Name = key("all", "the weak texts that training uses")
    seed: Seed | None = key(
        None, "of the model's random numbers; null: `seed`, so that variants differ in what they name"
    )
    csls: bool = key(False, "scores corrected for hubs (section csls)")
    refit: bool = key(False, "fitted again to train and dev, by what the same model without it chose on dev")
    fit: dict[str, Any] = key({}, "any keys of the section fit")
    transfer: dict[str, Any] = key({}, "any keys of the section transfer")
    word_vectors: dict[str, Any] = key({}, "any keys of the section word_vectors")

    @property
    def named(self) -> dict[str, Any]:
        """The hyperparameters that it names, by their paths."""
        parts = {"fit": self.fit, "transfer": self.transfer, "word_vectors": self.word_vectors}
        return {
            **self.model_extra, **{f"{part}.{key}": value for part, of in parts.items() for key, value in of.items()}
        }  # fmt: skip


@dataclass(frozen=True)
class Model:
    """What the name of a model means: the registered one, on which encoders of images and of text (each with the
    weights of its block that are tried), learning from what, with which `settings` of its own (None: it has none), by
    which grids of `fit` and `transfer`, and on which first word vectors where it reads words."""

    spec: ModelSpec
    encoders: tuple[str, ...]
    text_encoders: tuple[str, ...]
    text_weights: Mapping[str, tuple[float, ...]]
    training: str
    documents: str
    seed: int
    settings: Any
    fit: FitSettings
    transfer: TransferSettings
    word_vectors: WordVectorsSettings
    named: Mapping[str, Any] = field(compare=False)
    """Those of its hyperparameters that the variant itself names, by their paths."""

    def learns_like(self, other: "Model") -> bool:
        """Whether it learns from the same features as `other`, in the same way."""
        ours, theirs = ((one.encoders, one.text_encoders, one.training) for one in (self, other))
        return ours == theirs

    @property
    def unit(self) -> bool:
        """Whether it compares unit vectors."""
        own = self.settings.model_dump() if self.settings else {}
        cosine = own.get("loss") != "squared" and own.get("score", "cosine") == "cosine"
        return self.spec.metric == "inner_product" and cosine

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """All that decides how it is made beside what it reads, as JSON values."""
        found = {"model": self.spec.name, "encoders": self.encoders, "training": self.training, "seed": self.seed}
        if self.spec.sentences == "vectors":
            found["text_encoders"] = self.text_encoders
        if self.training != "target":
            found["documents"] = self.documents
            found["transfer"] = self.transfer.model_dump(include=set(TRAININGS[self.training]))
        if self.spec.made_by == "fit":
            found["fit"] = self.fit.model_dump(include=self.spec.fit_keys - {"text_weights"})
            found["text_weights"] = self.text_weights
        return found | ({"settings": self.settings.model_dump(exclude={"checkpoint_seconds"})} if self.settings else {})


class EnsembleSettings(Section):
    members: Annotated[Names, Field(min_length=2)] = key(..., "models whose scores are added up")
    refit: bool = key(False, "of refits of its members, with the weights that the same ensemble without it has")
    weights: NonNegatives = key(
        (0, 0.25, 0.5, 1), "grid for a member's scores, divided by their standard deviation; 0 leaves it out"
    )
