"""The part of the configuration that says what rows of results there are, and what each of them means."""

from typing import Annotated

from pydantic import Field

from pipeline.config.collection import Documents
from pipeline.config.images import Encoder, EncoderDefaults
from pipeline.config.models import Ensemble, EnsembleDefaults, Variant, VariantDefaults
from pipeline.config.section import Name, Section, Seed
from pipeline.errors import UsageError
from pipeline.specs import COMBINED, REGISTRY, SETS, STARTED

REFIT = "-refit"
"""What the name of a row ends with that learns from train and dev, by what the row without it chose on dev."""
CSLS = "-csls"
"""What the name of a row ends with, or has before REFIT, that scales the scores of the row without it."""


def _plain(name: str) -> str:
    """A row's name without its endings."""
    return name.removesuffix(REFIT).removesuffix(CSLS)


class Rows(Section):
    models: Annotated[tuple[Name, ...], Field(min_length=1)]
    seed: Seed
    encoder_defaults: EncoderDefaults
    encoders: Annotated[tuple[Encoder, ...], Field(min_length=1)]
    documents: dict[Name, Documents]
    variant_defaults: VariantDefaults
    variants: dict[Name, Variant]
    ensemble_defaults: EnsembleDefaults
    ensembles: dict[Name, Ensemble]

    def row(self, name: str) -> Variant:
        """What the row `name` of results means: a variant, a registered model on all encoders, or an ensemble on the
        encoders of its members; with an ending, what the row without it does. UsageError for a name that is none of
        these."""
        if reason := self._why_not_scaled(name):
            raise UsageError(reason)
        name = _plain(name)
        if name not in self._row_names:
            raise UsageError(f"no row {name} in the configuration; there are {', '.join(self._row_names)}")
        if name in self.ensembles:
            members = [self.row(member) for member in self.ensembles[name].members]
            kind = "fragment-ensemble" if any(member.model in SETS for member in members) else "ensemble"
            encoders = tuple(dict.fromkeys(encoder for member in members for encoder in member.encoders))
            values = self.variant_defaults.model_dump() | {"model": kind, "encoders": encoders}
        elif name in self.variants:
            values = self.variants[name].model_dump()
        else:
            values = {**self.variant_defaults.model_dump(), "model": name}
        if values["encoders"] is None:
            values["encoders"] = tuple(encoder.name for encoder in self.encoders)
        if values["seed"] is None or name in self.ensembles:
            values["seed"] = self.seed
        return Variant.model_validate(values)

    def refitted(self, name: str) -> str | None:
        """The row that the row `name` is a refit of; None for all others."""
        return name.removesuffix(REFIT) if name.endswith(REFIT) else None

    def scaled(self, name: str) -> str | None:
        """The row whose scores the row `name` scales, a refit for a refit; None for all others."""
        once, ending = name.removesuffix(REFIT), REFIT if self.refitted(name) else ""
        return once.removesuffix(CSLS) + ending if once.endswith(CSLS) else None

    def members(self, name: str) -> tuple[str, ...]:
        """The rows that the ensemble `name` adds up, refits for a refit; nothing for a row of another kind."""
        ensemble, ending = self.ensemble(name), REFIT if self.refitted(name) else ""
        return tuple(member + ending for member in ensemble.members) if ensemble else ()

    def ensemble(self, name: str) -> Ensemble | None:
        """The ensemble `name`, or the one that it refits; None for a row of another kind."""
        return self.ensembles.get(self.refitted(name) or name)

    def start(self, name: str) -> str | None:
        """The row on the same encoders that the row `name` starts from, a refit for a refit; None where it starts from
        none. UsageError where there is no such row."""
        row, ending = self.row(name), REFIT if self.refitted(name) else ""
        if row.model not in STARTED or self.scaled(name):
            return None
        start = STARTED[row.model]
        alike = row.model_copy(update={"model": start, "seed": self.seed})
        for other in [start, *(other for other, variant in self.variants.items() if variant.model == start)]:
            if self.row(other).model_copy(update={"seed": self.seed}) == alike:
                return other + ending
        raise UsageError(f"{name} starts from a row of {start} on the same encoders; add one to variants")

    def every_row(self) -> list[str]:
        """`models`, and the rows that these start from, add up, refit or scale, and so on. Raises as `start`."""
        found = list(self.models)
        for name in found:  # which grows meanwhile
            needed = (*self.members(name), self.refitted(name), self.scaled(name), self.start(name))
            found += [other for other in dict.fromkeys(needed) if other and other not in found]
        return found

    @property
    def _single_rows(self) -> list[str]:
        """The rows that are no ensembles: registered models and variants."""
        return [*(name for name in REGISTRY if name not in COMBINED), *self.variants]

    @property
    def _row_names(self) -> list[str]:
        return [*self._single_rows, *self.ensembles]

    def _check_rows(self) -> None:
        for section in ("variants", "ensembles"):
            if ending := [name for name in getattr(self, section) if _plain(name) != name]:
                raise ValueError(f"{section}: {ending[0]} has an ending that makes it a row of another; leave it out")
        self._check_variants([encoder.name for encoder in self.encoders])
        self._check_ensembles()
        for name in self.models:
            if _plain(name) not in self._row_names:
                raise ValueError(f"models: unknown model {name}; there are {', '.join(self._row_names)}")
            if reason := self._why_not_scaled(name):
                raise ValueError(reason)

    def _why_not_scaled(self, name: str) -> str | None:
        """Why there can be no row `name`, which ends as a scaled one; None where there can."""
        if self.scaled(name) is None or _plain(name) not in self.ensembles:
            return None
        return f"{name}: the scores of an ensemble are not scaled; give {CSLS} to its members"

    def _check_variants(self, encoders: list[str]) -> None:
        for name, variant in self.variants.items():
            if name in REGISTRY:
                raise ValueError(f"variants: {name} is the name of a registered model; choose another")
            if variant.model in COMBINED:
                raise ValueError(f"variants.{name}: an {variant.model} is no variant; name it in ensembles")
            if unknown := set(variant.encoders or ()) - set(encoders):
                raise ValueError(f"variants.{name}: unknown encoder {min(unknown)}; there are {', '.join(encoders)}")
            if variant.documents not in self.documents:
                known = ", ".join(self.documents)
                raise ValueError(f"variants.{name}: unknown documents {variant.documents}; there are {known}")

    def _check_ensembles(self) -> None:
        for name, ensemble in self.ensembles.items():
            if name in REGISTRY or name in self.variants:
                raise ValueError(f"ensembles: {name} is the name of another row; choose another")
            if unknown := [m for m in ensemble.members if m.removesuffix(CSLS) not in self._single_rows]:
                known = ", ".join(self._single_rows)
                raise ValueError(f"ensembles.{name}: unknown member {unknown[0]}; there are {known}")
            if len(set(ensemble.members)) < len(ensemble.members):
                raise ValueError(f"ensembles.{name}: a member is named twice; name each once")
            if not any(ensemble.weights):
                raise ValueError(f"ensembles.{name}: no weight is positive; put one into weights")
