"""Checks of the generators of a configuration."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.config.registry.generators import GENERATORS
from pipeline.config.schema.generators import ChosenGenerator
from pipeline.config.schema.variants import Model
from pipeline.errors import UsageError

if TYPE_CHECKING:
    from pipeline.config.root import Config


def check_generators(config: "Config", models: Mapping[str, Model]) -> None:
    """Raises ValueError, in one sentence, for the first thing that the generators of `config` cannot do."""
    _check_variants(config)
    try:
        chosen = {name: config.generator(name) for name in config.generators}
    except UsageError as error:
        raise ValueError(f"generators: {error}") from error
    if absent := [name for name in config.evaluate.generators if name not in chosen]:
        raise ValueError(f"evaluate.generators: {absent[0]} is not among generators; add it there, or leave it out")
    if silent := [name for name in config.evaluate.generators if not chosen[name].spec.likelihood]:
        known = ", ".join(spec.name for spec in GENERATORS if spec.likelihood)
        raise ValueError(
            f"evaluate.generators: {silent[0]} does not say how probable a sentence is; name one of {known}"
        )
    for name, generator in chosen.items():
        _check_generator(config, models, name, generator)


def _check_variants(config: "Config") -> None:
    registered, encoders = [spec.name for spec in GENERATORS], [one.name for one in config.encoders]
    for name, variant in config.generator_variants.items():
        where = f"generator_variants.{name}"
        if name in registered:
            raise ValueError(f"generator_variants: {name} is the name of a registered generator; choose another")
        if unknown := [one for one in variant.encoders or () if one not in encoders]:
            raise ValueError(f"{where}: unknown encoder {unknown[0]}; there are {', '.join(encoders)}")
        if variant.encoders is not None and len(set(variant.encoders)) != max(1, len(variant.encoders)):
            raise ValueError(f"{where}: name at least one encoder, and each once")
        try:
            config.generator(name)
        except UsageError as error:
            raise ValueError(str(error)) from error


def _check_generator(config: "Config", models: Mapping[str, Model], name: str, generator: ChosenGenerator) -> None:
    spec = generator.spec
    if spec.regions or config.describe.boxes:
        missing = [one for one in generator.encoders if one not in config.regions.encoders]
        if missing:
            raise ValueError(
                f"{name} takes regions of each of its encoders; add {missing[0]} to regions.encoders, or leave it out"
            )
    aligned = [one for one in config.models if models[one].spec.aligned]
    if spec.regions and generator.settings.snippets not in aligned:
        known = ", ".join(aligned) or "none"
        where = f"generator_variants.{name}" if name in config.generator_variants else spec.key
        raise ValueError(f"{where}.snippets: not a model in models with a vector for every word ({known}); name one")
    if spec.treebank and config.language_text.treebank is None:
        raise ValueError(f"{name} needs parts of speech; name a CoNLL-U file in language_text.treebank")
    if generator.settings.in_space:
        _check_space(config, models)


def _check_space(config: "Config", models: Mapping[str, Model]) -> None:
    space = config.describe.space
    if space not in config.models:
        raise ValueError(f"describe.space: {space} is not among models ({', '.join(config.models)}); add it")
    if not (models[space].spec.joint_space and models[space].unit):
        raise ValueError(
            f"describe.space: {models[space].spec.name} has no cosine of an image and words; take one such as ncca"
        )
