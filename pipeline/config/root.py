"""The whole configuration."""

from collections.abc import Sequence
from itertools import product

from pydantic import model_validator

from pipeline.config.checks import problems
from pipeline.config.names import Names
from pipeline.config.places import check_places
from pipeline.config.registry.generators import ranker
from pipeline.config.registry.spec import find
from pipeline.config.schema.encoders import Encoder
from pipeline.config.schema.section import DESCRIBED
from pipeline.config.schema.text_encoders import TextEncoderEntry


class Config(Names):
    @model_validator(mode="after")
    def _can_be_done(self) -> "Config":
        if found := [*check_places(self), *problems(self)]:
            raise ValueError("\n".join(found))
        return self

    def judged_splits(self, name: str) -> tuple[str, ...]:
        """The splits that a model is evaluated on; not on dev for a refit, which has learned from it."""
        return tuple(split for split in self.evaluate.splits if split != "dev" or not self.refits(name))

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
