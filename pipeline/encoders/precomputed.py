"""Precomputed vectors: the kind `imported`, of images and of texts, and their comparison with an encoder's vectors."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipeline.encoders.image_encoder import ImageEncoder
from pipeline.encoders.material import EncoderMaterial
from pipeline.encoders.restore import restore_encoder
from pipeline.encoders.text_encoder import TextEncoder
from pipeline.errors import InputError

if TYPE_CHECKING:
    from pipeline.config.encoders import EncoderEntry

MIN_COSINE = 0.9
"""Least cosine between a precomputed vector and the encoder's own. Photos that were scaled down and compressed before
they were encoded differ by less; the vectors of another encoder differ by more."""


class ImportedEncoder:
    """The kind of precomputed vectors. The stored encoder is the encoder that made them, which the entry names."""

    @classmethod
    def prepare(cls, entry: "EncoderEntry", material: EncoderMaterial) -> ImageEncoder | TextEncoder:
        """Return the encoder `made_by`. Raises InputError if its vectors of some inputs differ from the given ones."""
        from pipeline.config.encoders import PrecomputedKeys

        assert isinstance(entry, PrecomputedKeys) and material.base is not None and material.given is not None
        given = material.given
        encoder: ImageEncoder | TextEncoder
        if entry.modality == "image":
            encoder = restore_encoder(ImageEncoder, material.base)
            ours = encoder.encode(given.images)
        else:
            encoder = restore_encoder(TextEncoder, material.base)
            ours = np.asarray(encoder.encode(given.texts))
        require_made_by(given.vectors, ours, given.names, entry.path, entry.name, entry.made_by or "")
        return encoder


def require_made_by(
    given: np.ndarray, made: np.ndarray, names: Sequence[str], path: str, entry: str, maker: str
) -> None:
    """Compare precomputed vectors (n, dim) in `path` with the vectors (n, dim) that the encoder `maker` makes.

    `names` (n,) name the inputs, and `entry` is the encoder whose made_by names the maker. Raises InputError if the
    dimensions or the directions differ.
    """
    remedy = f"correct made_by of {entry}, or leave it out"
    if made.shape[1] != given.shape[1]:
        raise InputError(f"{path} has {given.shape[1]} dimensions, the encoder {maker} {made.shape[1]}; {remedy}")
    pairs = np.stack([given, made]).astype(np.float64)
    lengths = np.linalg.norm(pairs, axis=2)
    cosines = pairs.prod(axis=0).sum(axis=1) / np.maximum(lengths.prod(axis=0), np.finfo(np.float64).tiny)
    cosines[~lengths.any(axis=0)] = 1  # a text without a word that the encoder knows
    if not (worst := cosines.min()) >= MIN_COSINE:
        raise InputError(
            f"{path} has other features of {names[cosines.argmin()]} than the encoder {maker} makes (their cosine is"
            f" {worst:.2f}); {remedy}"
        )
