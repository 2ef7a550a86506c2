"""Features that were made elsewhere, and the encoder that makes such features of further images."""

from typing import Any

from pipeline.config.registry.stored import restore_encoder
from pipeline.given_vectors import require_made_by
from pipeline.images.encoders import EncoderMaterial, ImageEncoder


class ImportedEncoder:
    """The kind of features made elsewhere. What is stored of one is the encoder that its entry says has made them."""

    @classmethod
    def prepare(cls, entry: Any, material: EncoderMaterial) -> ImageEncoder:
        """The encoder `entry.made_by`. Raises InputError where it describes some images otherwise than was given."""
        parts = material.encoder(entry.made_by)
        encoder, given = restore_encoder(parts.settings, parts.tensors), material.given(entry)
        made = encoder.encode(given.images)
        require_made_by(given.features, made, given.names, entry.path, entry.name, entry.made_by)
        return encoder
