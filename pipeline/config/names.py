"""The whole configuration, and the models and generators that the names in it refer to."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import NamedTuple, TypeVar

from pydantic import ValidationError

from pipeline.config.encoders import EncoderEntry, ImageVectorsEntry, TextEntry
from pipeline.config.keys import OWN, OwnKeys
from pipeline.config.messages import explain
from pipeline.config.models import ChosenHubness, EnsembleSettings, Model, TrainSettings, Variant
from pipeline.config.registry import (
    MODELS,
    GeneratorSpec,
    ModelSpec,
    Named,
    combining,
    find,
    generator_spec,
    model_spec,
    ranker,
)
from pipeline.config.results import ChosenGenerator, GeneratorVariant
from pipeline.config.section import DESCRIBED, Section
from pipeline.errors import UsageError, did_you_mean

UNIT = ("l2",)
"""Default transforms of the features of an image encoder whose entry does not have `roots`."""
ROOTS = ("sqrt", "l2")
"""Default transforms of the features of an image encoder whose entry has `roots`, because few of the features are
negative. On Flickr8k, signed square roots raise the sum of the recalls of a normalized CCA by 8 to 10 points if no
feature is negative. If half of the features are negative, the roots lower this sum by 1 to 7 points (docs/vectors.md).
"""


def weighted(steps: tuple[str, ...], weight: float) -> tuple[str, ...]:
    """Return the transforms `steps`. Unless `weight` is 1, a product with `weight` is added as the last transform."""
    return steps if weight == 1 else (*steps, f"times {weight!r}")


AnySection = TypeVar("AnySection", bound=Section)


Base = Model | EnsembleSettings
"""A model or an ensemble before the optional steps that follow its fit."""


class Steps(NamedTuple):
    """The optional steps after the fit of a base model."""

    refit: bool = False
    """Whether the base is fitted again to train and dev together, with the parameters that were chosen on dev."""
    hubness: ChosenHubness = "none"
    """The correction of the scores for hubs."""

    @property
    def endings(self) -> list[str]:
        """The steps as parts of a name, such as `["csls", "refit"]`."""
        return [*([self.hubness] if self.hubness != "none" else []), *(["refit"] if self.refit else [])]


@dataclass(frozen=True)
class Recipe:
    """The way in which a model is made: its base, its steps, and the names of the models that it needs.

    `members` are the members of an ensemble, `refitted` is the model whose parameters a refit uses, `uncorrected` is
    the model whose scores are corrected for hubs, and `start` is the model from which the training starts. Without such
    models, `members` is empty, and `refitted`, `uncorrected` and `start` are None.
    """

    base: Base
    steps: Steps
    members: tuple[str, ...]
    refitted: str | None
    uncorrected: str | None
    start: str | None

    @property
    def starts_from(self) -> str | None:
        """The name of the registered model from which the training starts.

        It is None if the training starts from scratch, and for a model corrected for hubs, which is not trained.
        """
        return self.base.spec.starts_from if isinstance(self.base, Model) and self.steps.hubness == "none" else None


class Config(OwnKeys):
    """All keys, and the models and generators that the names in them refer to.

    A model is a base with optional steps: a refit, and a correction for hubs. A corrected model is made from the same
    model without the correction. A refit uses the parameters of the same model without the refit. All of these models
    are artefacts of the run. The name of a model is the first name that the configuration gives it, or a name such as
    `ncca-csls-refit` if the configuration does not name it.
    """

    def model(self, name: str) -> Model:
        """Return the model with this name. An ensemble has the encoders of all of its members.

        Raises UsageError for an unknown name.
        """
        base = self._recipe(name).base
        if isinstance(base, Model):
            return base
        members = [self.model(member) for member in base.members]
        spec = combining(any(member.spec.multi_vector for member in members))
        encoders = dict.fromkeys(encoder for member in members for encoder in member.encoders)
        texts = dict.fromkeys(encoder for member in members for encoder in member.text_encoders)
        return self.meaning(
            "", Variant.model_construct(model=spec.name, encoders=tuple(encoders), text_encoders=tuple(texts))
        )

    def meaning(self, name: str, variant: Variant) -> Model:
        """Return the model that a variant describes.

        `name` is the name of the variant for messages. Raises UsageError for settings that the registered model of the
        variant does not have.
        """
        spec = model_spec(variant.model)
        where = f"variants.{name}"
        texts = _listed(variant.text_encoders, self.text_encoders)
        fit = laid(self.fit, variant.fit, f"{where}.fit")
        weights = {one.name: one.weight for one in self.text_encoders} | fit.text_weights
        own = self.section(spec)
        settings = laid(own or Section(), variant.model_extra or {}, where, tuple(Variant.model_fields))
        return Model(
            spec,
            encoders=_listed(variant.encoders, self.encoders),
            text_encoders=texts,
            text_weights={name: weights[name] for name in texts if name in weights},
            training=variant.training,
            documents=variant.documents,
            seed=self.seed if variant.seed is None else variant.seed,
            settings=settings if own else None,
            fit=fit,
            transfer=laid(self.transfer, variant.transfer, f"{where}.transfer"),
            word_vectors=laid(self.word_vectors, variant.word_vectors, f"{where}.word_vectors"),
            named=variant.named,
        )

    def refits(self, name: str) -> bool:
        """Return whether the model with this name is a refit, which is fitted to the splits train and dev together.
        Raises UsageError for an unknown name."""
        return self._recipe(name).steps.refit

    def refitted(self, name: str) -> str | None:
        """Return the name of the model whose parameters the refit `name` uses, or None if `name` is not a refit."""
        return self._recipe(name).refitted

    def hubness_method(self, name: str) -> ChosenHubness:
        """Return the hubness correction of a model, or `none` for a model without a correction.

        The correction of an ensemble is `none`, but members of the ensemble may have a correction.
        """
        return self._recipe(name).steps.hubness

    def uncorrected(self, name: str) -> str | None:
        """Return the name of the same model without correction for hubs, or None if `name` has no correction."""
        return self._recipe(name).uncorrected

    def members(self, name: str) -> tuple[str, ...]:
        """Return the members of an ensemble, or () for another model. The members of a refitted ensemble are refits."""
        return self._recipe(name).members

    def ensemble(self, name: str) -> EnsembleSettings | None:
        """Return the settings of an ensemble, or None for a model of another kind."""
        recipe = self._recipe(name)
        base = recipe.base
        return base.model_copy(update={"refit": recipe.steps.refit}) if isinstance(base, EnsembleSettings) else None

    def start(self, name: str) -> str | None:
        """Return the name of the model from which the training of `name` starts, or None for a start from scratch.

        If `name` is a refit, the returned model is a refit too. Raises UsageError if the configuration does not have
        the required model.
        """
        recipe = self._recipe(name)
        if recipe.starts_from and not recipe.start:
            raise UsageError(
                f"{name} starts from a model {recipe.starts_from} with the same encoders, but the configuration has"
                " none. Add such a model to variants"
            )
        return recipe.start

    def rate_source(self, name: str) -> str | None:
        """Return the name of the model whose learning rate is also used in the training of `name`, or None.

        The configuration can have models that differ only in their seeds and have several learning rates to try. For
        such models, dev chooses the rate of the first model, and the other models use this rate. The result is None if
        `name` is the first of these models, has one learning rate or none, or is a refit.
        """
        model = self.model(name)
        if not isinstance(model.settings, TrainSettings) or len(model.settings.rates) == 1 or self.refits(name):
            return None
        plain = (one for one in self.variants if not (self.refits(one) or self.uncorrected(one)))
        first = next((one for one in plain if replace(self.model(one), seed=model.seed) == model), name)
        return None if first == name else first

    def every_model(self) -> list[str]:
        """Return the names of the models in the key `models`, and of all models that are needed to make these models.

        Raises UsageError if the configuration does not have a model from which another model starts.
        """
        found = dict.fromkeys(self.models)
        queue = deque(found)
        while queue:
            name = queue.popleft()
            needed = (self.refitted(name), self.uncorrected(name), self.start(name), self.rate_source(name))
            new = [other for other in dict.fromkeys([*self.members(name), *needed]) if other and other not in found]
            found.update(dict.fromkeys(new))
            queue += new
        return list(found)

    def made_by(self, stage: str) -> list[str]:
        """Return the names of all models of `every_model` that a stage (`fit`, `train`, `adopt` or `combine`) makes.

        Models that are corrected for hubs are not among them, because another stage makes them.
        """
        every = self.every_model()
        return [name for name in every if self.model(name).spec.made_by == stage and not self.uncorrected(name)]

    def section(self, spec: ModelSpec | GeneratorSpec) -> Section | None:
        """Return the section with the settings of a registered model or generator, or None without such settings."""
        return getattr(self, spec.key) if spec.key in OWN else None

    def generator(self, name: str) -> ChosenGenerator:
        """Return the generator with this name: a variant, or a registered generator with all encoders.

        Raises UsageError for an unknown name, and for settings that the generator does not have.
        """
        chosen = self.generator_variants.get(name) or GeneratorVariant(generator=generator_spec(name).name)
        spec = generator_spec(chosen.generator)
        beside = tuple(GeneratorVariant.model_fields)
        return ChosenGenerator(
            spec,
            encoders=_listed(chosen.encoders, self.encoders),
            seed=self.seed if chosen.seed is None else chosen.seed,
            settings=laid(getattr(self, spec.key), chosen.model_extra or {}, f"generator_variants.{name}", beside),
        )

    @property
    def single(self) -> dict[str, Variant]:
        """The registered models and the variants by name, without ensembles. A registered model is a plain Variant."""
        registered = {spec.name: Variant(model=spec.name) for spec in MODELS if spec.made_by != "combine"}
        return registered | self.variants

    def _recipe(self, name: str) -> Recipe:
        if name not in self._recipes:
            known = [*self.single, *self.ensembles]
            raise UsageError(
                f"Unknown model {name}. {did_you_mean(name, known)}The known names are {', '.join(known)}. Define other"
                " models in variants."
            )
        return self._recipes[name]

    @cached_property
    def _recipes(self) -> dict[str, Recipe]:
        """The recipes of all models that the configuration names, and of all models that these models need."""
        written: dict[str, tuple[Base, Steps]] = {}
        for name, variant in self.single.items():
            written[name] = self.meaning(name, variant), Steps(variant.refit, variant.hubness)
        for name, ensemble in self.ensembles.items():
            written[name] = ensemble.model_copy(update={"refit": False}), Steps(ensemble.refit)
        return make_recipes(written)

    def judged_splits(self, name: str) -> tuple[str, ...]:
        """Return the splits on which a model is evaluated. A refit is fitted to dev, so it is not evaluated on dev.
        Raises UsageError for an unknown name."""
        return tuple(split for split in self.evaluate.splits if split != "dev" or not self.refits(name))

    def bundle_names(self, model: str) -> list[str]:
        """Return the names of a model's index shards: MODEL, or MODEL/00 and so on if index.bundles is more than 1."""
        count = self.index.bundles
        return [model] if count == 1 else [f"{model}/{number:02d}" for number in range(count)]

    def evaluations(self) -> list[tuple[str, str, str]]:
        """Return (model, split, protocol) for each evaluation.

        A generator that is evaluated by perplexity counts as a model with the name that `ranker` returns.
        """
        judged = [(name, split) for name in self.models for split in self.judged_splits(name)]
        ranked = product(map(ranker, self.evaluate.generators), self.evaluate.splits)
        judgements = [*judged, *ranked]
        return [(name, split, protocol) for name, split in judgements for protocol in self.evaluate.protocols]

    def aligned_splits(self, splits: Sequence[str] = DESCRIBED) -> list[tuple[str, str]]:
        """Return all pairs (model, split) of the models that can align words with regions, and of `splits`.

        These are the models in the key `models` that have a vector for each region of an image and for each word of a
        caption.
        """
        return list(product([name for name in self.models if self.model(name).spec.aligned], splits))

    def phrase_splits(self, splits: Sequence[str] = DESCRIBED) -> list[tuple[str, str]]:
        """Return all pairs (model, split) of the models that embed noun phrases, and of `splits`.

        The models are `phrases.models`, or, if this key is null, the models in `models` that learn from phrases.
        """
        learned = [name for name in self.models if self.model(name).spec.phrases]
        return list(product(learned if self.phrases.models is None else self.phrases.models, splits))

    def descriptions(self, splits: Sequence[str] = DESCRIBED) -> list[tuple[str, str]]:
        """Return all pairs (generator, subject) of the generators of the run and the subjects of `splits`.

        Each split is a subject. If the key `describe.boxes` is true, `<split>.boxes` is a further subject for each
        split.
        """
        boxes = [f"{split}.boxes" for split in splits] if self.describe.boxes else []
        return list(product(self.generators, [*splits, *boxes]))

    @property
    def study_text_weights(self) -> dict[str, tuple[float, ...]]:
        """The weights that the study tries for each text encoder."""
        return {one.name: one.weight for one in self.text_encoders} | self.study.fit.text_weights

    @property
    def every_encoder(self) -> tuple[ImageVectorsEntry, ...]:
        """The image encoders of the run, and the image encoders that only the study uses."""
        return (*self.encoders, *self.study.encoders)

    def image_steps(self, encoders: Iterable[str]) -> tuple[str, ...] | tuple[tuple[str, ...], ...]:
        """Return the transforms of the features of the `encoders`: one tuple of transforms per encoder, or a single
        tuple of transforms if all encoders have the same transforms.

        The last transform of an encoder with a `weight` other than 1 is the product with the weight, `times WEIGHT`.
        """
        steps = []
        for name in encoders:
            chosen = self.image_view.normalise
            if chosen is None:
                chosen = ROOTS if self.encoder(self._maker(name)).roots else UNIT
            steps.append(weighted(chosen, self.encoder(name).weight))
        return steps[0] if len(set(steps)) == 1 else tuple(steps)

    def _maker(self, name: str) -> str:
        """Return the name of the encoder that made the features of the image encoder `name`.

        The result is the value of the key `made_by` if the features are precomputed and this key is set. Otherwise the
        result is `name`.
        """
        entry = self.encoder(name)
        return entry.base or name if entry.spec.reads == "vectors" else name

    @property
    def prepared_encoders(self) -> tuple[ImageVectorsEntry, ...]:
        """The image encoders that can encode new images, including the encoders that only encode queries."""
        return tuple(entry for entry in (*self.every_encoder, *self.query_encoders) if entry.prepared)

    def encoder(self, name: str) -> ImageVectorsEntry:
        """Return the entry of an image encoder. Raises UsageError, with the known names, if it does not exist."""
        return find("encoder", name, (*self.every_encoder, *self.query_encoders))

    def text_encoder(self, name: str) -> TextEntry:
        """Return the entry of a text encoder. Raises UsageError, with the known names, if it does not exist."""
        return find("text encoder", name, (*self.text_encoders, *self.query_text_encoders))

    def entry(self, path: str) -> EncoderEntry:
        """Return the entry of the encoder that a path names.

        The path is `encoders/NAME` or `features/NAME` for an image encoder, and `text/encoders/NAME` or `text/NAME` for
        a text encoder.
        """
        folder, _, name = path.rpartition("/")
        return self.encoder(name) if folder in ("encoders", "features") else self.text_encoder(name)

    @property
    def prepared_text_encoders(self) -> tuple[TextEntry, ...]:
        """The text encoders that can encode new texts, including the encoders that only encode queries."""
        return tuple(entry for entry in (*self.text_encoders, *self.query_text_encoders) if entry.prepared)


def make_recipes(written: Mapping[str, tuple[Base, Steps]]) -> dict[str, Recipe]:
    """Return the recipes of all models by name: the models in `written`, and all models that these need.

    `written` has the base and the steps of each model that the configuration names. The base of a model with steps is a
    model without steps, which needs a name too. If `written` has an equal model without steps, the base has the name of
    this model, or of the first of several. Otherwise, the base of the model NAME has the name `NAME-plain`. Any other
    needed model without a name is named after its base and its steps. If the model to start from does not exist,
    `start` of the recipe is None, and `Config.start` raises an error.
    """
    bases = {name: base for name, (base, steps) in written.items() if not steps.endings}
    models: dict[str, tuple[str, Steps]] = {}
    for name, (base, steps) in written.items():
        base_name = next((other for other, known in bases.items() if known == base), None) if steps.endings else name
        if base_name is None:
            base_name = _unused(f"{name}-plain", [*written, *bases])
            bases[base_name] = base
        models[name] = base_name, steps
    models |= {name: (name, Steps()) for name in bases}
    queue = deque(models)
    names: dict[tuple[str, Steps], str] = {}
    for name, model in models.items():
        names.setdefault(model, name)

    def name_of(base_name: str, steps: Steps) -> str:
        """Return the first name of the model with this base and these steps.

        If the model has no name yet, it gets a name and is added to the queue.
        """
        if (base_name, steps) not in names:
            name = _unused("-".join([base_name, *steps.endings]), models)
            names[base_name, steps] = name
            models[name] = base_name, steps
            queue.append(name)
        return names[base_name, steps]

    recipes: dict[str, Recipe] = {}
    while queue:
        name = queue.popleft()
        base_name, steps = models[name]
        base = bases[base_name]
        members = base.members if isinstance(base, EnsembleSettings) else ()
        start = _find_start(base, bases) if steps.hubness == "none" else None
        if steps.refit:
            members = tuple(name_of(models[member][0], models[member][1]._replace(refit=True)) for member in members)
        recipes[name] = Recipe(
            written[name][0] if name in written else base,
            steps,
            members,
            refitted=name_of(base_name, steps._replace(refit=False)) if steps.refit else None,
            uncorrected=name_of(base_name, steps._replace(hubness="none")) if steps.hubness != "none" else None,
            start=name_of(start, Steps(steps.refit)) if start else None,
        )
    return recipes


def _find_start(model: Base, bases: Mapping[str, Base]) -> str | None:
    """Return the name of the base from which the training of `model` starts, or None if there is no such base.

    The result is the first base of the required registered model that has the same encoders and the same training.
    """
    if isinstance(model, Model):
        for name, base in bases.items():
            if isinstance(base, Model) and base.spec.name == model.spec.starts_from and base.learns_like(model):
                return name
    return None


def _unused(name: str, taken: Iterable[str]) -> str:
    """Return `name`, with underscores appended until it is not in `taken`."""
    while name in taken:
        name += "_"
    return name


def _listed(names: tuple[str, ...] | None, entries: Sequence[Named]) -> tuple[str, ...]:
    """Return `names`, or the names of all `entries` if `names` is None."""
    return tuple(entry.name for entry in entries) if names is None else names


def laid(section: AnySection, values: Mapping[str, object], where: str, beside: tuple[str, ...] = ()) -> AnySection:
    """Return a copy of `section` in which `values` replace the present values, and nested mappings are merged.

    If `values` is empty, `section` itself is returned. For messages, `where` is the key of the section, and `beside`
    are legal keys that the section does not have. Raises UsageError, with the key, if a value is wrong.
    """
    if not values:
        return section
    try:
        return section.changed(values)
    except ValidationError as error:
        raise UsageError(explain(error, type(section), where=where, beside=beside)) from error
