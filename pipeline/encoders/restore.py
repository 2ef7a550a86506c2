"""Restores stored encoders. The settings and files may be from an untrusted source."""

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pipeline.config.registry import EncoderSpec, Modality, encoder_spec, encoder_specs
from pipeline.config.stored import known_form, limited
from pipeline.encoders.material import Settings, StoredEncoder
from pipeline.errors import IntegrityError

if TYPE_CHECKING:
    from pipeline.encoders.image_encoder import ImageEncoder
    from pipeline.encoders.text_encoder import TextEncoder

    AnyEncoder = TypeVar("AnyEncoder", bound=ImageEncoder | TextEncoder)

PREPARE = "prepare-encoder"


def _name_with_class(modality: Modality, where: object) -> str:
    what = "encoder" if modality == "image" else "text encoder"
    return f"{what} in {where}" if where else what


def stored_spec(settings: Settings, modality: Modality, where: object = "") -> EncoderSpec:
    """Return the spec of the kind of a stored encoder. `where` is the location of the encoder for messages.

    Raises IntegrityError if the settings do not name a kind, and UsageError if the kind is unknown, or is a class that
    the user has not allowed.
    """
    with known_form(_name_with_class(modality, where), PREPARE):
        if modality == "text":
            return encoder_spec(settings["kind"], modality)
        # Settings without `kind` are of a network, or of the kind whose name is under `architecture`.
        architecture = settings["architecture"]
        implied = architecture if architecture in {spec.name for spec in encoder_specs(modality)} else "network"
        return encoder_spec(implied if settings.get("kind") is None else settings["kind"], modality)


def restore_encoder(expected: "type[AnyEncoder]", stored: StoredEncoder, where: object = "") -> "AnyEncoder":
    """Restore an image encoder (`expected` is ImageEncoder) or a text encoder (TextEncoder) from its stored parts.

    `where` is the location of the parts for messages. Raises IntegrityError if the parts do not have the form that the
    class of the encoder writes. Raises UsageError if the kind of the encoder is unknown or not allowed, or if the
    library of the encoder is not installed.
    """
    modality = expected.modality
    what = _name_with_class(modality, where)
    spec = stored_spec(stored.settings, modality, where)
    if spec.library and stored.library is None:
        raise IntegrityError(
            f"The stored {what} is from an earlier version of jointspace, without the files of {spec.name}. Run"
            f" the stage {PREPARE} and the stages after it again, and build the indexes that use the encoder again."
        )
    registered = spec.load()
    with known_form(what, PREPARE), limited(stored.tensors, _weight_bytes(stored)):
        encoder = registered.restore(stored)
        if "centred" in stored.settings:
            from pipeline.encoders.centred import Centred

            encoder = Centred.around(encoder, stored.tensors)
        if not isinstance(encoder, expected):
            raise ValueError(f"{type(encoder).__name__} is not an {expected.__name__}")
        return encoder


def _weight_bytes(stored: StoredEncoder) -> int:
    """Return the number of bytes of all weight files that a library has saved for a stored encoder."""
    if stored.library is None:
        return 0
    paths = [Path(stored.library.folder, name) for name in stored.library.names if name.endswith(".safetensors")]
    return sum(path.stat().st_size for path in paths if path.is_file())
