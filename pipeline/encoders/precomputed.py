"""Encoders of the kind `imported`, whose vectors are precomputed, and the comparison with the encoder that made
them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipeline.encoders.image_encoder import ImageEncoder
from pipeline.encoders.material import EncoderMaterial
from pipeline.encoders.restore import restore_encoder
from pipeline.encoders.text_encoder import TextEncoder
from pipeline.errors import InputError

if TYPE_CHECKING:
    from pipeline.config.encoders import ImportedImagesEntry, ImportedTextsEntry

MIN_COSINE = 0.9
"""Smallest cosine between a precomputed vector and the vector that the encoder computes. Photos that were scaled down
and compressed before they were encoded have a larger cosine, and vectors of another encoder have a smaller cosine. With
a smaller cosine, the encoder is not accepted as the encoder that made the vectors."""


class ImportedEncoder:
    """The kind of encoders whose vectors are precomputed. This kind has no encoder of its own: `prepare` returns the
    encoder that made the vectors. That encoder is stored, and encodes queries."""

    @classmethod
    def prepare(
        cls, entry: "ImportedImagesEntry | ImportedTextsEntry", material: EncoderMaterial
    ) -> ImageEncoder | TextEncoder:
        """Return the encoder that the entry names in `made_by`.

        Raises InputError if the vectors that this encoder computes for the inputs `material.given` differ from their
        precomputed vectors.
        """
        assert material.base is not None and material.given is not None
        given = material.given
        encoder: ImageEncoder | TextEncoder
        if entry.modality == "image":
            encoder = restore_encoder(ImageEncoder, material.base)
            computed = encoder.encode(given.images)
        else:
            encoder = restore_encoder(TextEncoder, material.base)
            computed = np.asarray(encoder.encode(given.texts))
        require_made_by(given.vectors, computed, given.names, entry.path, entry.name, entry.made_by or "")
        return encoder


def require_made_by(
    given: np.ndarray, made: np.ndarray, names: Sequence[str], path: str, entry: str, maker: str
) -> None:
    """Check that the encoder `maker` computes the precomputed vectors.

    `given` (n, dim) are the precomputed vectors in the file `path`, and `made` (n, dim) are the vectors that the
    encoder computes for the same n inputs. `names` are the names of the inputs, and `entry` is the name of the encoder
    whose key made_by names the maker. Raises InputError if the dimensions differ, or if a cosine is below MIN_COSINE.
    """
    remedy = f"Correct the key made_by of {entry}, or remove it."
    if made.shape[1] != given.shape[1]:
        raise InputError(
            f"{path} has vectors of {given.shape[1]} dimensions, but the encoder {maker} computes vectors of"
            f" {made.shape[1]} dimensions. {remedy}"
        )
    pairs = np.stack([given, made]).astype(np.float64)
    lengths = np.linalg.norm(pairs, axis=2)
    cosines = pairs.prod(axis=0).sum(axis=1) / np.maximum(lengths.prod(axis=0), np.finfo(np.float64).tiny)
    cosines[~lengths.any(axis=0)] = 1  # both vectors are zero for a text without known words
    if not (worst := cosines.min()) >= MIN_COSINE:
        raise InputError(
            f"the vector of {names[cosines.argmin()]} in {path} differs from the vector that the encoder {maker}"
            f" computes (their cosine is {worst:.2f}). {remedy}"
        )
