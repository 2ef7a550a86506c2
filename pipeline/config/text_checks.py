"""Checks of the text encoders of a configuration."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pipeline.config.schema.text_encoders import RESERVED
from pipeline.config.schema.variants import Model

if TYPE_CHECKING:
    from pipeline.config.root import Config


def check_text_encoders(config: "Config") -> None:
    """Raises ValueError, in one sentence, for the first entry that is wrong."""
    every = (*config.text_encoders, *config.query_text_encoders)
    names = [encoder.name for encoder in every]
    if len(set(names)) < len(names):
        raise ValueError(f"two text encoders of one name among {', '.join(names)}")
    if taken := [name for name in names if name.partition(".")[0].lower() in RESERVED]:
        raise ValueError(f"text_encoders: {taken[0]} is the name of something else among a run's texts; choose another")
    makers = [one.name for one in every if one.spec.reads == "texts" and not one.spec.sparse]
    for encoder in every:
        if encoder.own.lacks:
            raise ValueError(f"text encoder {encoder.name} needs {encoder.spec.key}.{encoder.own.lacks}; give it")
        if encoder.spec.sparse and encoder.centre != "none":
            raise ValueError(f"text encoder {encoder.name}: sparse vectors are not centred; set centre to none")
        if encoder.spec.reads == "vectors" and encoder.centre != "none":
            raise ValueError(
                f"text encoder {encoder.name}: vectors made elsewhere are taken as they are; set centre to none"
            )
        if encoder.own.maker not in (None, *makers):
            raise ValueError(
                f"text encoder {encoder.name}: made_by {encoder.own.maker} is not a dense encoder of texts; name one of"
                f" {', '.join(makers) or 'query_text_encoders, where there is none'}"
            )
    for encoder in config.query_text_encoders:
        if encoder.spec.reads == "vectors":
            raise ValueError(f"query_text_encoders: {encoder.name} encodes no text; give it among text_encoders")


def check_text_weights(config: "Config", name: str, given: Iterable[str], used: Mapping[str, Iterable]) -> None:
    """Raises ValueError where a model has weights `given` of no text encoder, or none `used` that is positive."""
    if unknown := set(given) - {one.name for one in config.text_encoders}:
        raise ValueError(f"{name}: fit.text_weights has weights of {min(unknown)}, which is not among text_encoders")
    if not any(weight > 0 for tried in used.values() for weight in tried):
        raise ValueError(f"{name}: no text encoder has a positive weight; give one to {' or '.join(used)}")


def require_documents(config: "Config", name: str, model: Model) -> None:
    """Raises ValueError where a model learns from weak texts, and a text encoder has vectors of sentences only."""
    missing = [one.name for one in config.text_encoders if not one.prepared]
    if model.training != "target" and missing:
        raise ValueError(
            f"{name} learns from titles and tags, and the text encoder {missing[0]} has vectors of sentences only; name"
            f" the encoder that made them in its made_by, or leave {name} out"
        )
