"""A picture's descriptors pooled to one vector: codebooks, VLAD, and the order of the parts."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.images.descriptors import GLOBAL, LOCAL, PatchGrid, one_thread


class Codebook(NamedTuple):
    """Descriptors x (n, raw_dim) are reduced to (x - mean) @ directions.T (n, dim); `words` is (n_words, dim)."""

    mean: np.ndarray
    directions: np.ndarray
    words: np.ndarray

    def pool(self, descriptors: np.ndarray) -> np.ndarray:
        """The VLAD (n_words * dim,) of descriptors (n, raw_dim)."""
        return vlad((descriptors - self.mean) @ self.directions.T, self.words)


def vlad(descriptors: np.ndarray, words: np.ndarray) -> np.ndarray:
    """(n_words * dim,) float32 of unit length (or zero): for each word, the sum of its residuals.

    descriptors (n, dim), words (n_words, dim). Jégou et al. ([26] in Gong et al. 2014), with the signed square root of
    their later version.
    """
    nearest = (descriptors @ words.T - (words**2).sum(axis=1) / 2).argmax(axis=1)
    chosen = np.zeros((len(words), len(descriptors)), np.float32)
    chosen[nearest, np.arange(len(descriptors))] = 1
    residuals = (chosen @ descriptors - chosen.sum(axis=1, keepdims=True) * words).ravel()
    pooled = np.sign(residuals) * np.sqrt(np.abs(residuals))
    return (pooled / (np.linalg.norm(pooled) or 1)).astype(np.float32)


@dataclass(frozen=True)
class DescriptorSampler:
    """`sampler(pixels)`: kind -> at most `count` of a picture's local descriptors, sampled by the seed and the pixels.

    Can be pickled.
    """

    grid: PatchGrid
    count: int
    seed: int

    def __call__(self, pixels: np.ndarray) -> dict[str, np.ndarray]:
        generator = np.random.default_rng([self.seed, zlib.crc32(pixels.tobytes())])
        with one_thread():
            described = {kind: describe(pixels, self.grid) for kind, describe in LOCAL.items()}
        return {kind: generator.permutation(descriptors)[: self.count] for kind, descriptors in described.items()}


@dataclass(frozen=True)
class StandardDescriber:
    """`describer(pixels)`: one float32 vector, the parts GLOBAL and LOCAL concatenated.

    With `flip`, the mean over the picture and its mirror image.
    """

    grid: PatchGrid
    flip: bool
    codebooks: Mapping[str, Codebook]

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        return np.concatenate(list(self.parts(pixels).values()))

    def parts(self, pixels: np.ndarray) -> dict[str, np.ndarray]:
        """Kind -> (size,) float32."""
        with one_thread():
            parts = self._describe(pixels)
            if not self.flip:
                return parts
            mirrored = self._describe(np.ascontiguousarray(pixels[:, ::-1]))
        return {kind: (part + mirrored[kind]) / 2 for kind, part in parts.items()}

    def _describe(self, pixels: np.ndarray) -> dict[str, np.ndarray]:
        parts = {kind: describe(pixels) for kind, describe in GLOBAL.items()}
        return parts | {
            kind: self.codebooks[kind].pool(describe(pixels, self.grid)) for kind, describe in LOCAL.items()
        }
