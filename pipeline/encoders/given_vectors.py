"""Vectors that were made elsewhere against what an encoder makes of the same."""

from collections.abc import Sequence

import numpy as np

from pipeline.errors import InputError

LEAST_COSINE = 0.9
"""Between a given vector and what the encoder makes of the same. Photographs that were scaled down and compressed
before they were described differ by less; another encoder's vectors by more."""


def require_made_by(given: np.ndarray, made: np.ndarray, names: Sequence[str], path: str, entry: str, by: str) -> None:
    """Raises InputError where the rows `given` (n, dim) in `path`, of `names` (n,), are not those `made` (n, dim) by
    the encoder `by`, as the `entry` says."""
    remedy = f"correct made_by of {entry}, or leave it out"
    if made.shape[1] != given.shape[1]:
        raise InputError(f"{path} has {given.shape[1]} dimensions, the encoder {by} {made.shape[1]}; {remedy}")
    pairs = np.stack([given, made]).astype(np.float64)
    lengths = np.linalg.norm(pairs, axis=2)
    cosines = pairs.prod(axis=0).sum(axis=1) / np.maximum(lengths.prod(axis=0), np.finfo(np.float64).tiny)
    cosines[~lengths.any(axis=0)] = 1  # such as of a text without a word that the encoder knows
    if not (worst := cosines.min()) >= LEAST_COSINE:
        raise InputError(
            f"{path} has other features of {names[cosines.argmin()]} than the encoder {by} makes (their cosine is"
            f" {worst:.2f}); {remedy}"
        )
