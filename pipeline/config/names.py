"""The models and generators of a configuration, and what their names mean."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from pipeline.config.keys import OWN, OwnKeys
from pipeline.config.messages import explain
from pipeline.config.registry.generators import GENERATORS, generator_spec
from pipeline.config.registry.models import MODELS, combining, model_spec
from pipeline.config.schema.generators import ChosenGenerator, GeneratorVariant
from pipeline.config.schema.section import Section
from pipeline.config.schema.variants import CSLS, PLAIN, REFIT, EnsembleSettings, Model, Variant
from pipeline.errors import UsageError, meant


class NameParts(NamedTuple):
    """A model's name without its suffixes, and what these, or its variant's options, say."""

    base: str
    csls: bool
    refit: bool


class Names(OwnKeys):
    """What the names of models and generators mean."""

    def model(self, name: str) -> Model:
        """What the model `name` means: a variant, a registered model on all encoders, or an ensemble on the encoders of
        its members; with an ending, what the one without it does. UsageError for a name that is none of these."""
        if reason := self.why_not(name):
            raise UsageError(reason)
        plain = self.name_parts(name).base.removesuffix(PLAIN)
        if plain in self.ensembles:
            members = [self.model(member) for member in self.ensembles[plain].members]
            spec = combining(any(member.spec.multi_vector for member in members))
            encoders = {
                key: tuple(dict.fromkeys(name for member in members for name in getattr(member, key)))
                for key in ("encoders", "text_encoders")
            }
            values = {"model": spec.name, **encoders, "seed": self.seed}
        else:
            values = {"model": plain}
        chosen = self.variants.get(plain) or Variant(**values)
        spec, where = model_spec(chosen.model), f"variants.{plain}"
        texts = tuple(one.name for one in self.text_encoders) if chosen.text_encoders is None else chosen.text_encoders
        fit = laid(self.fit, chosen.fit, f"{where}.fit")
        weights = {one.name: one.weight for one in self.text_encoders} | fit.text_weights
        return Model(
            spec,
            encoders=tuple(one.name for one in self.encoders) if chosen.encoders is None else chosen.encoders,
            text_encoders=texts,
            text_weights={name: weights[name] for name in texts if name in weights},
            training=chosen.training,
            documents=chosen.documents,
            seed=self.seed if chosen.seed is None else chosen.seed,
            settings=laid(self.section(spec), chosen.model_extra, where, tuple(Variant.model_fields)),
            fit=fit,
            transfer=laid(self.transfer, chosen.transfer, f"{where}.transfer"),
            word_vectors=laid(self.word_vectors, chosen.word_vectors, f"{where}.word_vectors"),
            named=chosen.named,
        )

    def refitted(self, name: str) -> str | None:
        """The model that the model `name` is a refit of; None for all others."""
        parts = self.name_parts(name)
        return self._name(parts._replace(refit=False)) if parts.refit else None

    def scaled(self, name: str) -> str | None:
        """The model whose scores the model `name` corrects, a refit for a refit; None for all others."""
        parts = self.name_parts(name)
        return self._name(parts._replace(csls=False)) if parts.csls else None

    def members(self, name: str) -> tuple[str, ...]:
        """The models that the ensemble `name` adds up, refits for a refit; nothing for a model of another kind."""
        ensemble = self.ensemble(name)
        return tuple(self._alike(name, member) for member in ensemble.members) if ensemble else ()

    def ensemble(self, name: str) -> EnsembleSettings | None:
        """The ensemble `name`, or the one that it refits; None for a model of another kind."""
        return self.ensembles.get(self.name_parts(name).base)

    def start(self, name: str) -> str | None:
        """The model on the same encoders that the model `name` starts from, a refit for a refit; None where it starts
        from none. UsageError where there is no such model."""
        model = self.model(name)
        start = model.spec.starts_from
        if start is None or self.scaled(name):
            return None
        for other in [start, *(other for other, variant in self.variants.items() if variant.model == start)]:
            found, parts = self.model(other), self.name_parts(other)
            if found.learns_like(model) and not parts.csls:
                return self._name(parts._replace(refit=self.name_parts(name).refit))
        raise UsageError(f"{name} starts from a model of {start} on the same encoders; add one to variants")

    def every_model(self) -> list[str]:
        """`models`, and those that these start from, add up, refit or correct, and so on. Raises as `start`."""
        found = list(self.models)
        for name in found:  # which grows meanwhile
            needed = (*self.members(name), self.refitted(name), self.scaled(name), self.start(name))
            found += [other for other in dict.fromkeys(needed) if other and other not in found]
        return found

    def made_by(self, stage: str) -> list[str]:
        """Those of `every_model` that the stage `fit`, `train` or `combine` makes; `fit-csls` makes all corrected."""
        every = self.every_model()
        return [name for name in every if self.model(name).spec.made_by == stage and not self.scaled(name)]

    def section(self, spec: Any) -> Any:
        """The settings that only the registered model or generator has; None where it has none."""
        return getattr(self, spec.key) if spec.key in OWN else None

    def name_parts(self, name: str) -> NameParts:
        """The name of the model without endings and options, and what these say."""
        base, refit = name.removesuffix(REFIT), name.endswith(REFIT)
        base, csls = base.removesuffix(CSLS), base.endswith(CSLS)
        options = self.variants.get(base)
        if options and (options.csls or options.refit):
            return NameParts(base + PLAIN, csls or options.csls, refit or options.refit)
        return NameParts(base, csls, refit)

    def _name(self, parts: NameParts) -> str:
        base, csls, refit = parts
        options = self._options(base)
        if options and csls >= options.csls and refit >= options.refit:
            base, csls, refit = base.removesuffix(PLAIN), csls > options.csls, refit > options.refit
        return base + CSLS * csls + REFIT * refit

    def _options(self, base: str) -> Variant | None:
        """The variant that `base`, a name with PLAIN, is the plain form of."""
        return self.variants.get(base.removesuffix(PLAIN)) if base.endswith(PLAIN) else None

    def _alike(self, name: str, other: str) -> str:
        """`other`, or its refit where `name` is one."""
        return self._name(self.name_parts(other)._replace(refit=True)) if self.name_parts(name).refit else other

    def generator(self, name: str) -> ChosenGenerator:
        """What the generator `name` means: a variant, or a registered one on all encoders. UsageError for a name that
        is neither, and for settings that it does not have."""
        registered = [spec.name for spec in GENERATORS]
        if name not in (known := [*registered, *self.generator_variants]):
            raise UsageError(f"unknown generator {name}; {meant(name, known)}there are {', '.join(known)}")
        chosen = self.generator_variants.get(name) or GeneratorVariant(generator=name)
        spec = generator_spec(chosen.generator)
        where, beside = f"generator_variants.{name}", tuple(GeneratorVariant.model_fields)
        return ChosenGenerator(
            spec,
            encoders=tuple(one.name for one in self.encoders) if chosen.encoders is None else chosen.encoders,
            seed=self.seed if chosen.seed is None else chosen.seed,
            settings=laid(self.section(spec), chosen.model_extra or {}, where, beside),
        )

    @property
    def single(self) -> list[str]:
        """The models that are not ensembles: registered ones and variants."""
        return [*(spec.name for spec in MODELS if spec.made_by != "combine"), *self.variants]

    def why_not(self, name: str) -> str | None:
        """Why there is no model `name`; None where there is."""
        parts, known = self.name_parts(name), [*self.single, *self.ensembles]
        options = self._options(parts.base)
        if parts.base not in known and not (options and (options.csls or options.refit)):
            ending = name.removeprefix(parts.base)
            return f"unknown model {name}; {meant(name, [one + ending for one in known])}there are {', '.join(known)}"
        if parts.csls and parts.base in self.ensembles:
            return f"{name}: the scores of an ensemble are not scaled; give {CSLS} to its members"
        if (whole := self._name(parts)) != name:
            return f"{name}: the variant has this ending as an option; say {whole}"
        return None


def laid(section: Section | None, values: Mapping[str, Any], where: str, beside: tuple[str, ...] = ()) -> Any:
    """`section` with `values` over it. UsageError names the key, by the place `where` these stand."""
    if not values:
        return section
    try:
        return (section or Section()).changed(values)
    except ValidationError as error:
        raise UsageError(explain(error, type(section or Section()), where=where, beside=beside)) from error
