"""The whole configuration, and what the names of models and generators in it mean."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import product
from typing import Any

from pydantic import ValidationError

from pipeline.config.encoders import EncoderEntry, TextEntry
from pipeline.config.generators import ChosenGenerator, GeneratorVariant
from pipeline.config.keys import OWN, OwnKeys
from pipeline.config.messages import explain
from pipeline.config.models import EnsembleSettings, Model, Variant
from pipeline.config.registry import MODELS, combining, find, generator_spec, model_spec, ranker
from pipeline.config.section import DESCRIBED, Section
from pipeline.errors import UsageError, meant

UNIT, ROOTS = ("l2",), ("sqrt", "l2")
"""What is done to features by default: on Flickr8k, roots add 8 to 10 to the sum of recalls of a normalized CCA if no
feature is negative, and take 1 to 7 from it if half of them are (docs/own-data.md)."""


class Config(OwnKeys):
    """All keys, and what the names of models and generators mean.

    A model with `hubness` is made of the same one without, and one with `refit` learns by what the same one without has
    chosen on dev. That is the variant, or registered model, that is written so, or else one that is added.
    """

    def model(self, name: str) -> Model:
        """What the model `name` means: a variant, a registered model on all encoders, or an ensemble on the encoders of
        its members. UsageError for a name that is none of these, and for settings that its model does not have."""
        one = self._written(name)
        return self.meaning(name, one) if isinstance(one, Variant) else self._ensemble_meaning(one)

    def _ensemble_meaning(self, ensemble: EnsembleSettings) -> Model:
        members = [self.model(member) for member in ensemble.members]
        spec = combining(any(member.spec.multi_vector for member in members))
        encoders = {
            key: tuple(dict.fromkeys(name for member in members for name in getattr(member, key)))
            for key in ("encoders", "text_encoders")
        }
        return self.meaning("", Variant.model_construct(model=spec.name, **encoders))

    def meaning(self, name: str, variant: Variant) -> Model:
        """What `variant` means, of this name."""
        spec, where = model_spec(variant.model), f"variants.{name}"
        texts = _listed(variant.text_encoders, self.text_encoders)
        fit = laid(self.fit, variant.fit, f"{where}.fit")
        weights = {one.name: one.weight for one in self.text_encoders} | fit.text_weights
        return Model(
            spec,
            encoders=_listed(variant.encoders, self.encoders),
            text_encoders=texts,
            text_weights={name: weights[name] for name in texts if name in weights},
            training=variant.training,
            documents=variant.documents,
            seed=self.seed if variant.seed is None else variant.seed,
            settings=laid(self.section(spec), variant.model_extra or {}, where, tuple(Variant.model_fields)),
            fit=fit,
            transfer=laid(self.transfer, variant.transfer, f"{where}.transfer"),
            word_vectors=laid(self.word_vectors, variant.word_vectors, f"{where}.word_vectors"),
            named=variant.named,
        )

    def refits(self, name: str) -> bool:
        """Whether the model has learned from dev too."""
        return self._written(name).refit

    def refitted(self, name: str) -> str | None:
        """The model that the model `name` is a refit of; None for all others."""
        return self._twin(name, refit=False) if self.refits(name) else None

    def hubness_method(self, name: str) -> str:
        """How the model's scores are corrected for hubs; `none` for an ensemble, whose members may be."""
        return getattr(self._written(name), "hubness", "none")

    def uncorrected(self, name: str) -> str | None:
        """The model whose scores the model `name` corrects, a refit for a refit; None for all others."""
        return self._twin(name, hubness="none") if self.hubness_method(name) != "none" else None

    def members(self, name: str) -> tuple[str, ...]:
        """The models that the ensemble `name` adds up, refits for a refit; nothing for a model of another kind."""
        ensemble = self.ensemble(name)
        return tuple(self._twin(one, refit=ensemble.refit) for one in ensemble.members) if ensemble else ()

    def ensemble(self, name: str) -> EnsembleSettings | None:
        """The ensemble `name`; None for a model of another kind."""
        one = self._written(name)
        return None if isinstance(one, Variant) else one

    def start(self, name: str) -> str | None:
        """The model on the same encoders that the model `name` starts from, a refit for a refit; None where it starts
        from none. UsageError where there is no such model."""
        model = self.model(name)
        if model.spec.starts_from is None or self.uncorrected(name):
            return None
        for other, one in self._models.items():
            begins = isinstance(one, Variant) and one.model == model.spec.starts_from and not one.refit
            if begins and one.hubness == "none" and self.meaning(other, one).learns_like(model):
                return self._twin(other, refit=self.refits(name))
        raise UsageError(
            f"{name} starts from a model of {model.spec.starts_from} on the same encoders; add one to variants"
        )

    def every_model(self) -> list[str]:
        """`models`, and those that these start from, add up, refit or correct, and so on. Raises as `start`."""
        found = list(self.models)
        for name in found:  # which grows meanwhile
            found += [other for other in self._needed(name) if other not in found]
        return found

    def _needed(self, name: str) -> list[str]:
        needed = (*self.members(name), self.refitted(name), self.uncorrected(name), self.start(name))
        return [other for other in dict.fromkeys(needed) if other]

    def made_by(self, stage: str) -> list[str]:
        """Those of `every_model` that the stage `fit`, `train` or `combine` makes; none that is corrected for hubs."""
        every = self.every_model()
        return [name for name in every if self.model(name).spec.made_by == stage and not self.uncorrected(name)]

    def section(self, spec: Any) -> Any:
        """The settings that only the registered model or generator has; None where it has none."""
        return getattr(self, spec.key) if spec.key in OWN else None

    def generator(self, name: str) -> ChosenGenerator:
        """What the generator `name` means: a variant, or a registered one on all encoders. UsageError for a name that
        is neither, and for settings that it does not have."""
        chosen = self.generator_variants.get(name) or GeneratorVariant(generator=generator_spec(name).name)
        spec = generator_spec(chosen.generator)
        where, beside = f"generator_variants.{name}", tuple(GeneratorVariant.model_fields)
        return ChosenGenerator(
            spec,
            encoders=_listed(chosen.encoders, self.encoders),
            seed=self.seed if chosen.seed is None else chosen.seed,
            settings=laid(self.section(spec), chosen.model_extra or {}, where, beside),
        )

    @property
    def single(self) -> dict[str, Variant]:
        """The models that are written and no ensembles: registered ones and variants."""
        registered = {spec.name: Variant(model=spec.name) for spec in MODELS if spec.made_by != "combine"}
        return registered | self.variants

    def _written(self, name: str) -> Variant | EnsembleSettings:
        if name not in self._models:
            known = [*self.single, *self.ensembles]
            raise UsageError(
                f"unknown model {name}; {meant(name, known)}there are {', '.join(known)}; write others into variants"
            )
        return self._models[name]

    @cached_property
    def _models(self) -> dict[str, Variant | EnsembleSettings]:
        """Every model by its name: those that are written, and those that these need."""
        models = self.__dict__["_models"] = {**self.single, **self.ensembles}  # which grows by what is asked below
        names = list(models)
        for name in names:
            before = len(models)
            with suppress(UsageError):  # which who asks for this one meets
                self._needed(name)
            names += list(models)[before:]
        return models

    def _twin(self, name: str, **options: bool | str) -> str:
        """The model that is as `name` but for `options`, of `hubness` and `refit`: the first that is written so;
        where there is none, one is added."""
        one = self._written(name)
        twin = one.model_copy(update=options)
        if twin == one:
            return name
        for other, found in self._models.items():
            if type(found) is type(twin) and self._alike(found, twin):
                return other
        new = f"{name}-plain"
        method = getattr(twin, "hubness", "none")
        if endings := [*([method] if method != "none" else []), *(["refit"] if twin.refit else [])]:
            plain = {"hubness": "none"} if isinstance(one, Variant) else {}
            new = "-".join([self._twin(name, refit=False, **plain), *endings])
        while new in self._models:
            new += "_"
        self._models[new] = twin
        return new

    def _alike(self, one: Variant | EnsembleSettings, other: Variant | EnsembleSettings) -> bool:
        if isinstance(one, EnsembleSettings):
            return one == other
        if (one.model, one.hubness, one.refit) != (other.model, other.hubness, other.refit):
            return False
        return self.meaning("", one) == self.meaning("", other)

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
    def every_encoder(self) -> tuple[EncoderEntry, ...]:
        """The encoders of the run, and those that only the study measures with."""
        return (*self.encoders, *self.study.encoders)

    def image_steps(self, encoders: Iterable[str]) -> tuple[str, ...] | tuple[tuple[str, ...], ...]:
        """The steps of an ImageView: those of all `encoders` if they are the same, else of each."""
        makers = (self._maker(name) for name in encoders)
        chosen, specs = self.image_view.normalise, (self.encoder(name).spec for name in makers)
        steps = tuple(chosen if chosen is not None else ROOTS if spec.roots else UNIT for spec in specs)
        return steps[0] if len(set(steps)) == 1 else steps

    def _maker(self, name: str) -> str:
        """Return the encoder whose features the encoder `name` has: another encoder for precomputed features."""
        entry = self.encoder(name)
        return entry.base or name if entry.spec.reads == "vectors" else name

    @property
    def prepared_encoders(self) -> tuple[EncoderEntry, ...]:
        """The encoders of images that can encode a new image, with the encoders that only queries use."""
        return tuple(entry for entry in (*self.every_encoder, *self.query_encoders) if entry.prepared)

    def encoder(self, name: str) -> EncoderEntry:
        """Return the entry of an encoder of images. Raises UsageError that lists the known names."""
        return find("encoder", name, (*self.every_encoder, *self.query_encoders))

    def text_encoder(self, name: str) -> TextEntry:
        """Return the entry of an encoder of texts. Raises UsageError that lists the known names."""
        return find("text encoder", name, (*self.text_encoders, *self.query_text_encoders))

    def entry(self, path: str) -> EncoderEntry:
        """Return the entry of the encoder whose artefact, or vectors, lie in the folder `path` of the run."""
        folder, _, name = path.rpartition("/")
        return self.encoder(name) if folder in ("encoders", "features") else self.text_encoder(name)

    @property
    def prepared_text_encoders(self) -> tuple[TextEntry, ...]:
        """The encoders of texts that can encode a new text, with the encoders that only queries use."""
        return tuple(entry for entry in (*self.text_encoders, *self.query_text_encoders) if entry.prepared)


def _listed(names: tuple[str, ...] | None, entries: Sequence[Any]) -> tuple[str, ...]:
    """The `names` of some of the `entries`; of all where they are None."""
    return tuple(entry.name for entry in entries) if names is None else names


def laid(section: Section | None, values: Mapping[str, Any], where: str, beside: tuple[str, ...] = ()) -> Any:
    """`section` with `values` over it. UsageError names the key, by the place `where` these stand."""
    if not values:
        return section
    try:
        return (section or Section()).changed(values)
    except ValidationError as error:
        raise UsageError(explain(error, type(section or Section()), where=where, beside=beside)) from error
