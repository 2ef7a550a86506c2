"""What the index of a model takes from its run, so that queries can be embedded without it."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.config import Config
    from pipeline.run.layout import Artefact, Layout
    from pipeline.storage.parameters import Parameters


def read_encoders(
    model: Any, details: Mapping[str, Any], model_folder: Path, encoders_root: Path
) -> "dict[str, Parameters]":
    """The encoders that made the features of the model, and of its regions, by name."""
    from pipeline.storage.provenance import encoders_of, read_own_encoders

    used = {"encoders": model.encoders, **({"regions": model.region_encoders} if model.multi_vector else {})}
    found = {}
    for key, names in used.items():
        origins = encoders_of(model_folder, details[key], names)
        found |= read_own_encoders(encoders_root, origins)
        _warn_of_imported(origins.keys() - found.keys(), "features", "encoder", "with new photographs")
    return found


def read_text_encoders(
    model: Any, details: Mapping[str, Any], model_folder: Path, layout: "Layout"
) -> "dict[str, Parameters]":
    """The text encoders that made the vectors of the model's sentences, by name."""
    from pipeline.storage.parameters import TEXT_ENCODER
    from pipeline.storage.provenance import encoders_of, read_own_encoders

    names = getattr(model, "text_encoders", ())
    origins = encoders_of(model_folder, details.get("text_encoders") or {}, names)
    found = read_own_encoders(layout.text_encoder("").path, origins, TEXT_ENCODER)
    _warn_of_imported(origins.keys() - found.keys(), "vectors", "text encoder", "in words")
    return found


def _warn_of_imported(names: Iterable[str], what: str, encoder: str, how: str) -> None:
    import logging

    for name in sorted(names):
        logging.getLogger(__name__).warning(
            "the %s of %s were imported, and no %s of this run makes them: the index cannot be searched %s; name the %s"
            " that made them in made_by", what, name, encoder, how, encoder,
        )  # fmt: skip


def vocabulary_of(config: "Config", layout: Any, model: str) -> "Artefact | None":
    """The words of a model that reads tokens or trees; an ensemble of such has its own."""
    if members := config.members(model):
        reads = any(config.model(member).spec.words for member in members)
        return layout.model_vocabulary(model) if reads else None
    return layout.token_vocabulary if config.model(model).spec.words else None
