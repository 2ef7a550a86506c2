"""Vectors of sentences that were made elsewhere, and the text encoder that makes such vectors of queries."""

from typing import Any

from pipeline.given_vectors import require_made_by
from pipeline.text.encoders import TextEncoder, TextMaterial


class ImportedTextEncoder:
    """The kind of vectors made elsewhere. What is stored of one is the encoder that its entry says has made them."""

    @classmethod
    def prepare(cls, entry: Any, material: TextMaterial) -> TextEncoder:
        """The text encoder `made_by`. Raises InputError where it encodes some sentences otherwise than was given."""
        own = entry.own
        encoder, given = material.encoder(own.made_by), material.given(entry)
        made = encoder.encode(given.texts)
        require_made_by(given.vectors, made, given.texts, own.path, entry.name, own.made_by)
        return encoder
