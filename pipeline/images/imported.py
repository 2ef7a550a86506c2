"""Features that were made elsewhere, and the encoder that makes such features of further images."""

from typing import Any

import numpy as np

from pipeline.errors import InputError
from pipeline.images.encoders import EncoderMaterial, ImageEncoder
from pipeline.specs.stored import restore_encoder

LEAST_COSINE = 0.9
"""Between a given feature and what the encoder makes of the same image. Photographs that were scaled down and
compressed before they were described differ by less; another encoder's features by more."""


class ImportedEncoder:
    """The kind of features made elsewhere. What is stored of one is the encoder that its entry says has made them."""

    @classmethod
    def prepare(cls, entry: Any, material: EncoderMaterial) -> ImageEncoder:
        """The encoder `entry.made_by`. Raises InputError where it describes some images otherwise than was given."""
        parts = material.encoder(entry.made_by)
        encoder, given = restore_encoder(parts.settings, parts.tensors), material.given(entry)
        if encoder.dim != given.features.shape[1]:
            raise InputError(
                f"{entry.path} has {given.features.shape[1]} dimensions, the encoder {entry.made_by} {encoder.dim};"
                f" correct made_by of {entry.name}, or leave it out"
            )
        pairs = np.stack([given.features, encoder.encode(given.images)])
        lengths = np.linalg.norm(pairs, axis=2)
        cosines = pairs.prod(axis=0).sum(axis=1) / np.maximum(lengths.prod(axis=0), np.finfo(np.float32).tiny)
        if not (worst := cosines.min()) >= LEAST_COSINE:
            raise InputError(
                f"{entry.path} has other features of {given.names[cosines.argmin()]} than the encoder {entry.made_by}"
                f" makes (their cosine is {worst:.2f}); correct made_by of {entry.name}, or leave it out"
            )
        return encoder
