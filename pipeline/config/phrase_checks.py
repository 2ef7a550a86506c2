"""Whether the models in `phrases.models` have vectors of phrases and of regions."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.config.schema.variants import Model

if TYPE_CHECKING:
    from pipeline.config.root import Config


def check_phrases(config: "Config", models: Mapping[str, Model]) -> None:
    """Raises ValueError, in one sentence, for the first that has none."""
    for name in config.phrases.models or ():
        if name not in config.models:
            raise ValueError(f"phrases.models: {name} is not among models; add it there, or leave it out")
        spec, own = models[name].spec, models[name].encoders
        reads_words = spec.made_by == "train" and spec.sentences == "tokens" and not spec.starts_from
        if config.scaled(name) or not (spec.phrases or reads_words):
            raise ValueError(
                f"phrases.models: {name} has no vectors of phrases and regions; take one such as hmlstm, dvsa or lstm"
            )
        if spec.multi_vector and models[name].settings.sum == "positive":
            raise ValueError(
                f"phrases.models: {name} adds up positive products, so a phrase has no vector; leave it out"
            )
        if missing := set(() if spec.multi_vector else own) - set(config.regions.encoders):
            raise ValueError(
                f"phrases.models: {name} looks at regions as images; add {min(missing)} to regions.encoders"
            )
