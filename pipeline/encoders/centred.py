"""Centres, and optionally whitens, the dense vectors of a text encoder."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from pipeline.encoders.text_encoder import TextEncoder

BLOCK_TEXTS = 4096
"""Number of texts that are encoded at once while the mean is computed."""
MIN_RELATIVE_VARIANCE = 1e-6
"""Smallest variance of the vectors along a direction that is whitened, as a share of the largest variance. Along
directions with a smaller variance, whitened vectors are zero."""
CENTRED = "centred"
"""Prefix of the names of the stored mean and matrix, and name of the setting that is true for a centred encoder."""


class Centred(TextEncoder):
    """Text encoder that returns (y - mean) M for the dense vectors y of another encoder.

    `mean` is (dim,), and `matrix` M is (dim, dim), or None for the identity. The vector of a text that the other
    encoder does not know is zero. The method `save`, and the methods about words, such as `word_factors` and `knows`,
    are the methods of the other encoder.
    """

    def __init__(self, encoder: TextEncoder, mean: np.ndarray, matrix: np.ndarray | None) -> None:
        if mean.shape != (encoder.dim,) or (matrix is not None and matrix.shape != (encoder.dim, encoder.dim)):
            raise ValueError(
                f"the mean has the shape {mean.shape} and the matrix {None if matrix is None else matrix.shape}, but"
                f" the vectors have {encoder.dim} dimensions"
            )
        self.encoder = encoder
        self.mean = mean
        self.matrix = matrix
        self.dim = encoder.dim
        self.terms = encoder.terms
        self.word_factors = encoder.word_factors
        self.knows = encoder.knows
        self.searches = encoder.searches
        self.unknown = encoder.unknown
        self.count_words = encoder.count_words
        self.suggest = encoder.suggest
        self.save = encoder.save

    @classmethod
    def fit(cls, encoder: TextEncoder, texts: Iterable[str], whiten: bool) -> "Centred":
        """Compute the mean of the vectors of `texts`, and wrap the encoder.

        If `whiten` is true, M is the inverse square root of the covariance of these vectors, so that the results for
        `texts` have the identity as covariance. Directions with almost no variance become zero (see
        MIN_RELATIVE_VARIANCE). Texts that the encoder does not know are ignored.
        """
        n = 0
        total = np.zeros(encoder.dim)
        square = np.zeros((encoder.dim, encoder.dim) if whiten else 0)
        known = filter(encoder.knows, texts)
        while block := list(islice(known, BLOCK_TEXTS)):
            n += len(block)
            rows = np.asarray(encoder.encode(block), np.float64)
            total += rows.sum(axis=0)
            if whiten:
                square += rows.T @ rows
        mean = total / max(n, 1)
        matrix = None
        if whiten:
            values, vectors = np.linalg.eigh(square / max(n, 1) - np.outer(mean, mean))
            kept = values > MIN_RELATIVE_VARIANCE * values[-1]
            scale = np.where(kept, 1 / np.sqrt(np.where(kept, values, 1)), 0)
            matrix = ((vectors * scale) @ vectors.T).astype(np.float32)
        return cls(encoder, mean.astype(np.float32), matrix)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        return self._shift_known(texts, np.asarray(self.encoder.encode(texts)))

    def _shift_known(self, texts: Sequence[str], vectors: np.ndarray) -> np.ndarray:
        """Apply `shift` to the vectors (n, dim) of texts. Return zeros for a text that the encoder does not know."""
        rows = self.shift(vectors)
        rows[[not self.knows(text) for text in texts]] = 0
        return rows

    def on_device(self, device: str, precision: str, batch_size: int) -> Callable[[Sequence[str]], np.ndarray]:
        """Return a function that encodes many texts, with the other encoder on a device."""
        encode = self.encoder.on_device(device, precision, batch_size)
        return lambda texts: self._shift_known(texts, np.asarray(encode(texts)))

    def shift(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors `rows` (n, dim) of the other encoder minus the mean, times `matrix` unless it is None.

        `rows` is not changed.
        """
        shifted = rows - self.mean
        return shifted if self.matrix is None else shifted @ self.matrix

    def settings(self) -> dict[str, Any]:
        return {**self.encoder.settings(), CENTRED: True}

    def tensors(self) -> dict[str, np.ndarray]:
        parts = {"mean": self.mean} | ({} if self.matrix is None else {"matrix": self.matrix})
        return {**self.encoder.tensors(), **{f"{CENTRED}/{name}": value for name, value in parts.items()}}

    @classmethod
    def around(cls, encoder: TextEncoder, tensors: Mapping[str, np.ndarray]) -> "Centred":
        """Return a Centred that wraps `encoder`, with the mean and the matrix among the stored `tensors` of both.

        Without a stored matrix, vectors are only shifted by the mean.
        """
        return cls(encoder, tensors[f"{CENTRED}/mean"], tensors.get(f"{CENTRED}/matrix"))
