"""What a collection of so many images will take: hours of extraction, bytes on disk and in memory.

The hours come from images a second that were measured here; the rest is counted from the arrays that a run holds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pipeline.config.encoders import EncoderEntry
    from pipeline.config.names import Config

WIDEST = 2048
"""Dimensions of features that nothing states."""
WORD = 300
"""Dimensions of published word vectors."""
PROCESS = 1.5e9
"""Bytes of a process that has loaded torch, with a shard of photographs on their way."""
MOMENTS_HELD, EMBEDDINGS_HELD = 12, 3
"""Copies of the moments that `fit` holds, and of a model's embeddings that `build-index` does, at most."""
TERM_BYTES, TERMS = 12, 10
"""Bytes of a term of a sentence in a sparse row, and terms of a sentence."""


@dataclass(frozen=True)
class Speed:
    """Images a second that one encoder's features take here, and their dimension."""

    images_per_second: float
    dim: int


@dataclass(frozen=True)
class Estimate:
    """`hours` of each measured encoder's extraction, in one job; bytes on `disk` and in `memory` (of one job) by what
    they are of; the encoders that were `not_measured`."""

    images: int
    sentences: int
    hours: Mapping[str, float]
    disk: Mapping[str, float]
    memory: Mapping[str, float]
    not_measured: tuple[str, ...]


def estimate(config: "Config", images: int, sentences: int, speeds: Mapping[str, Speed]) -> Estimate:
    """By the configuration and what was measured of its encoders."""
    dims = {encoder.name: _dim(config, encoder, speeds) for encoder in config.encoders}
    terms = [_text_dim(config, encoder) for encoder in config.text_encoders]
    width = sum(dims.values()) + sum(terms)
    joint = max(config.fit.dimensions)
    shards = -(-images // config.shard_size)
    jobs = min(shards, 64)
    moments = 4.0 * width**2
    embeddings = 4.0 * joint * (images + sentences)
    stored = np.dtype(config.extract.storage).itemsize
    pixels = [encoder.name for encoder in config.encoders if encoder.spec.reads == "pixels"]
    return Estimate(
        images=images,
        sentences=sentences,
        hours={name: images / speed.images_per_second / 3600 for name, speed in speeds.items()},
        disk={
            "features": stored * images * sum(dims.values()),
            "text": TERM_BYTES * TERMS * sentences * len(terms),
            "moments": moments * (shards + jobs),
            "embeddings": embeddings * len(config.models),
            "indices": embeddings * len(config.models),
        },
        memory={
            "extract": PROCESS + 8.0 * min(images, config.shard_size) * max(dims.values(), default=0),
            "fit": PROCESS + MOMENTS_HELD * moments,
            "build-index": PROCESS + EMBEDDINGS_HELD * embeddings,
        },
        not_measured=tuple(name for name in pixels if name not in speeds),
    )


def _dim(config: "Config", encoder: "EncoderEntry", speeds: Mapping[str, Speed]) -> int:
    """The dimension of an encoder's features: measured, stated, or the most that it can be."""
    if encoder.name in speeds:
        return speeds[encoder.name].dim
    if encoder.base is not None:
        return _dim(config, config.encoder(encoder.base), speeds)
    return encoder.max_dim(WORD) or WIDEST


def _text_dim(config: "Config", encoder: "EncoderEntry") -> int:
    """The most dimensions that the vectors of an encoder of texts can have."""
    return encoder.max_dim(config.word_vectors.dim if encoder.corpus else WORD) or WIDEST


def lines_of(found: Estimate) -> list[str]:
    """The estimate for a person."""
    lines = [f"{found.images:,} images, {found.sentences:,} sentences"]
    lines += [f"extract {name}: {hours:,.2f} hours in one job" for name, hours in found.hours.items()]
    lines += [f"not measured before it is prepared: {name}" for name in found.not_measured]
    for title, sizes in (("disk", found.disk), ("memory of one job", found.memory)):
        lines.append(f"{title}: " + ", ".join(f"{name} {size / 1e9:,.2f} GB" for name, size in sizes.items()))
    return [*lines, f"disk in all: {sum(found.disk.values()) / 1e9:,.2f} GB"]
