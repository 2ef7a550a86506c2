"""The part of the configuration that says which models there are, and what each name means."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import ConfigDict, Field, ValidationError

from pipeline.config.messages import explain
from pipeline.errors import UsageError
from pipeline.settings.collection import Documents
from pipeline.settings.images import Encoder, EncoderDefaults
from pipeline.settings.models import Ensemble, EnsembleDefaults, Fit, Transfer
from pipeline.settings.section import Name, Section, Seed
from pipeline.specs.generators import GENERATORS
from pipeline.specs.models import MODELS, ModelSpec, combining, model_spec
from pipeline.specs.trainings import TRAININGS

REFIT = "-refit"
"""Ends the name of a model that learns from train and dev, by what the one without it chose on dev."""
CSLS = "-csls"
"""Ends a name, or stands before REFIT, where the scores of the model without it are corrected for hubs."""
PLAIN = "-plain"
"""Ends the name of what a variant with `csls` or `refit` is made of."""

OWN = {spec.key: spec for spec in (*MODELS, *GENERATORS) if spec.section}
"""Key of the configuration -> the model or generator whose settings it holds."""


class VariantDefaults(Section):
    encoders: tuple[Name, ...] | None
    training: Literal[tuple(TRAININGS)]
    documents: Name
    seed: Seed | None
    csls: bool
    refit: bool


class Variant(VariantDefaults):
    """Keys beside these are settings of its model."""

    model_config = ConfigDict(extra="allow")
    model: Literal[tuple(spec.name for spec in MODELS)]
    fit: dict[str, Any] = {}
    transfer: dict[str, Any] = {}

    @property
    def named(self) -> dict[str, Any]:
        """The hyperparameters that it names, by their paths."""
        parts = {"fit": self.fit, "transfer": self.transfer}
        return {
            **self.model_extra, **{f"{part}.{key}": value for part, of in parts.items() for key, value in of.items()}
        }  # fmt: skip


@dataclass(frozen=True)
class Model:
    """What the name of a model means: the registered one, on which encoders, learning from what, with which `settings`
    of its own (None: it has none), by which grids of `fit` and `transfer`."""

    spec: ModelSpec
    encoders: tuple[str, ...]
    training: str
    documents: str
    seed: int
    settings: Any
    fit: Fit
    transfer: Transfer
    named: Mapping[str, Any]
    """Those of its hyperparameters that the variant itself names, by their paths."""

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """All that decides how it is made beside what it reads, as JSON values."""
        found = {"model": self.spec.name, "encoders": self.encoders, "training": self.training, "seed": self.seed}
        if self.training != "target":
            found["documents"] = self.documents
            found["transfer"] = self.transfer.model_dump(include=set(TRAININGS[self.training]))
        if self.spec.made_by == "fit":
            found["fit"] = self.fit.model_dump()
        return found | ({"settings": self.settings.model_dump(exclude={"checkpoint_seconds"})} if self.settings else {})


class Parts(NamedTuple):
    """A name without its endings, and what these, or a variant's options, say."""

    base: str
    csls: bool
    refit: bool


class Variants(Section):
    models: Annotated[tuple[Name, ...], Field(min_length=1)]
    seed: Seed
    encoder_defaults: EncoderDefaults
    encoders: Annotated[tuple[Encoder, ...], Field(min_length=1)]
    documents: dict[Name, Documents]
    fit: Fit
    transfer: Transfer
    variant_defaults: VariantDefaults
    variants: dict[Name, Variant]
    ensemble_defaults: EnsembleDefaults
    ensembles: dict[Name, Ensemble]

    def model(self, name: str) -> Model:
        """What the model `name` means: a variant, a registered model on all encoders, or an ensemble on the encoders of
        its members; with an ending, what the one without it does. UsageError for a name that is none of these."""
        if reason := self._why_not(name):
            raise UsageError(reason)
        plain = self._parts(name).base.removesuffix(PLAIN)
        if plain in self.ensembles:
            members = [self.model(member) for member in self.ensembles[plain].members]
            spec = combining(any(member.spec.multi_vector for member in members))
            encoders = dict.fromkeys(encoder for member in members for encoder in member.encoders)
            values = {"model": spec.name, "encoders": tuple(encoders), "seed": self.seed}
        else:
            values = {"model": plain}
        chosen = self.variants.get(plain) or Variant(**self.variant_defaults.model_dump() | values)
        spec, where = model_spec(chosen.model), f"variants.{plain}"
        return Model(
            spec,
            encoders=tuple(one.name for one in self.encoders) if chosen.encoders is None else chosen.encoders,
            training=chosen.training,
            documents=chosen.documents,
            seed=self.seed if chosen.seed is None else chosen.seed,
            settings=_laid(self.section(spec), chosen.model_extra, where, tuple(Variant.model_fields)),
            fit=_laid(self.fit, chosen.fit, f"{where}.fit"),
            transfer=_laid(self.transfer, chosen.transfer, f"{where}.transfer"),
            named=chosen.named,
        )

    def refitted(self, name: str) -> str | None:
        """The model that the model `name` is a refit of; None for all others."""
        parts = self._parts(name)
        return self._name(parts._replace(refit=False)) if parts.refit else None

    def scaled(self, name: str) -> str | None:
        """The model whose scores the model `name` corrects, a refit for a refit; None for all others."""
        parts = self._parts(name)
        return self._name(parts._replace(csls=False)) if parts.csls else None

    def members(self, name: str) -> tuple[str, ...]:
        """The models that the ensemble `name` adds up, refits for a refit; nothing for a model of another kind."""
        ensemble = self.ensemble(name)
        return tuple(self._alike(name, member) for member in ensemble.members) if ensemble else ()

    def ensemble(self, name: str) -> Ensemble | None:
        """The ensemble `name`, or the one that it refits; None for a model of another kind."""
        return self.ensembles.get(self._parts(name).base)

    def start(self, name: str) -> str | None:
        """The model on the same encoders that the model `name` starts from, a refit for a refit; None where it starts
        from none. UsageError where there is no such model."""
        model = self.model(name)
        start = model.spec.starts_from
        if start is None or self.scaled(name):
            return None
        for other in [start, *(other for other, variant in self.variants.items() if variant.model == start)]:
            found, parts = self.model(other), self._parts(other)
            if (found.encoders, found.training) == (model.encoders, model.training) and not parts.csls:
                return self._name(parts._replace(refit=self._parts(name).refit))
        raise UsageError(f"{name} starts from a model of {start} on the same encoders; add one to variants")

    def every_model(self) -> list[str]:
        """`models`, and those that these start from, add up, refit or correct, and so on. Raises as `start`."""
        found = list(self.models)
        for name in found:  # which grows meanwhile
            needed = (*self.members(name), self.refitted(name), self.scaled(name), self.start(name))
            found += [other for other in dict.fromkeys(needed) if other and other not in found]
        return found

    def section(self, spec: Any) -> Any:
        """The settings that only the registered model or generator has; None where it has none."""
        return getattr(self, spec.key) if spec.key in OWN else None

    def _parts(self, name: str) -> Parts:
        base, refit = name.removesuffix(REFIT), name.endswith(REFIT)
        base, csls = base.removesuffix(CSLS), base.endswith(CSLS)
        options = self.variants.get(base)
        if options and (options.csls or options.refit):
            return Parts(base + PLAIN, csls or options.csls, refit or options.refit)
        return Parts(base, csls, refit)

    def _name(self, parts: Parts) -> str:
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
        return self._name(self._parts(other)._replace(refit=True)) if self._parts(name).refit else other

    @property
    def _single(self) -> list[str]:
        """The models that are no ensembles: registered ones and variants."""
        return [*(spec.name for spec in MODELS if spec.made_by != "combine"), *self.variants]

    def _why_not(self, name: str) -> str | None:
        """Why there is no model `name`; None where there is."""
        parts, known = self._parts(name), [*self._single, *self.ensembles]
        options = self._options(parts.base)
        if parts.base not in known and not (options and (options.csls or options.refit)):
            return f"unknown model {name}; there are {', '.join(known)}"
        if parts.csls and parts.base in self.ensembles:
            return f"{name}: the scores of an ensemble are not scaled; give {CSLS} to its members"
        if (whole := self._name(parts)) != name:
            return f"{name}: the variant has this ending as an option; say {whole}"
        return None

    def _check_models(self) -> None:
        """Raises ValueError, in one sentence, for the first name or variant that is wrong."""
        self._check_variants([encoder.name for encoder in self.encoders])
        self._check_ensembles()
        for name in self.models:
            if reason := self._why_not(name):
                raise ValueError(f"models: {reason}" if reason.startswith("unknown") else reason)

    def _check_variants(self, encoders: list[str]) -> None:
        registered = {spec.name for spec in MODELS}
        for name, variant in self.variants.items():
            if name.endswith((REFIT, CSLS, PLAIN)):
                raise ValueError(f"variants: {name} has an ending that makes it a model of another; leave it out")
            if name in registered:
                raise ValueError(f"variants: {name} is the name of a registered model; choose another")
            spec = model_spec(variant.model)
            if spec.made_by == "combine":
                raise ValueError(f"variants.{name}: an {spec.name} is no variant; name it in ensembles")
            if unknown := set(variant.encoders or ()) - set(encoders):
                raise ValueError(f"variants.{name}: unknown encoder {min(unknown)}; there are {', '.join(encoders)}")
            if variant.documents not in self.documents:
                known = ", ".join(self.documents)
                raise ValueError(f"variants.{name}: unknown documents {variant.documents}; there are {known}")
            if variant.fit and not spec.grid:
                raise ValueError(f"variants.{name}.fit: {spec.name} is not chosen by the grids of fit; leave it out")
            if variant.transfer and variant.training == "target":
                raise ValueError(f"variants.{name}.transfer: training target has no auxiliary pairs; leave it out")
            self.model(name)

    def _check_ensembles(self) -> None:
        for name, ensemble in self.ensembles.items():
            if name.endswith((REFIT, CSLS)):
                raise ValueError(f"ensembles: {name} has an ending that makes it a model of another; leave it out")
            if name in self._single:
                raise ValueError(f"ensembles: {name} is the name of another model; choose another")
            members = {member: self._parts(member) for member in ensemble.members}
            if unknown := [m for m in members if m.removesuffix(CSLS) not in self._single or self._why_not(m)]:
                known = ", ".join(self._single)
                raise ValueError(f"ensembles.{name}: unknown member {unknown[0]}; there are {known}")
            if refits := [member for member, parts in members.items() if parts.refit]:
                raise ValueError(
                    f"ensembles.{name}: {refits[0]} has learned from dev, on which weights are chosen; take"
                    f" {self.refitted(refits[0])}, and name {name}{REFIT}"
                )
            if len(members) < len(ensemble.members):
                raise ValueError(f"ensembles.{name}: a member is named twice; name each once")
            if not any(ensemble.weights):
                raise ValueError(f"ensembles.{name}: no weight is positive; put one into weights")


def _laid(section: Section | None, values: Mapping[str, Any], where: str, beside: tuple[str, ...] = ()) -> Any:
    """`section` with `values` over it. UsageError names the key, by the place `where` these stand."""
    if not values:
        return section
    try:
        return (section or Section()).changed(values)
    except ValidationError as error:
        raise UsageError(explain(error, type(section or Section()), where, beside)) from error
