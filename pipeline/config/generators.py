"""The generators of a configuration, and what their names mean."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ConfigDict

from pipeline.config.models import Models, laid
from pipeline.config.variants import Seeds
from pipeline.errors import UsageError, meant
from pipeline.settings.generators import DescribeSettings, ExtraTextSettings, OptimisationSettings
from pipeline.settings.section import Name, Seed
from pipeline.specs.generators import GENERATORS, GeneratorSpec, generator_spec


class GeneratorVariantDefaults(Seeds):
    section = "generator_variants"
    encoders: tuple[Name, ...] | None
    seed: Seed | None


class GeneratorVariant(GeneratorVariantDefaults):
    """Keys beside these are settings of its generator."""

    model_config = ConfigDict(extra="allow")
    generator: Literal[tuple(spec.name for spec in GENERATORS)]


@dataclass(frozen=True)
class ChosenGenerator:
    """What the name of a generator means: the registered one, on which encoders, with which seed and settings."""

    spec: GeneratorSpec
    encoders: tuple[str, ...]
    seed: int
    settings: Any


class Generators(Models):
    generators: tuple[Name, ...]
    generator_variant_defaults: GeneratorVariantDefaults
    generator_variants: dict[Name, GeneratorVariant]
    language_defaults: OptimisationSettings
    language_text: ExtraTextSettings
    describe: DescribeSettings

    def generator(self, name: str) -> ChosenGenerator:
        """What the generator `name` means: a variant, or a registered one on all encoders. UsageError for a name that
        is neither, and for settings that it does not have."""
        registered = [spec.name for spec in GENERATORS]
        if name not in (known := [*registered, *self.generator_variants]):
            raise UsageError(f"unknown generator {name}; {meant(name, known)}there are {', '.join(known)}")
        plain = self.generator_variant_defaults.model_dump() | {"generator": name}
        chosen = self.generator_variants.get(name) or GeneratorVariant(**plain)
        spec = generator_spec(chosen.generator)
        where, beside = f"generator_variants.{name}", tuple(GeneratorVariant.model_fields)
        return ChosenGenerator(
            spec,
            encoders=tuple(one.name for one in self.encoders) if chosen.encoders is None else chosen.encoders,
            seed=self.seed if chosen.seed is None else chosen.seed,
            settings=laid(self.section(spec), chosen.model_extra or {}, where, beside),
        )
