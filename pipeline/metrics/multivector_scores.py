"""Scores of multi-vector images and sentences: Karpathy and Fei-Fei 2015, eq. 7 and 8."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pipeline.compute.device import upload
from pipeline.compute.multivectors import MultiVectors, ScoreRule
from pipeline.compute.ragged import offsets_of

PRODUCTS = 1 << 22
"""Products of regions and words held at once, 16 MB in float32; one image with one sentence may have more."""
WORDS = 1 << 14
"""Words in a block: enough for fast products, few enough to leave room for several images."""


def multivector_scores(images: MultiVectors, sentences: MultiVectors, rule: ScoreRule) -> Tensor:
    """(n, m) scores of n images by m sentences, differentiable, in the dtype of the vectors, but at least float32.

    Blocks of regions and words are multiplied without padding; the products are then pooled image by image and summed
    sentence by sentence. An item without vectors scores zero.
    """
    cpu = torch.device("cpu")
    images, sentences = (one if isinstance(one.vectors, Tensor) else one.on(cpu) for one in (images, sentences))
    rows = []
    words = max(1, min(int(sentences.offsets[-1]), WORDS))
    for start, stop in _runs(images.lengths, max(1, PRODUCTS // words)):
        block = images.between(start, stop)
        runs = [sentences.between(*run) for run in _runs(sentences.lengths, words)]
        columns = [score_products(_multiply(block.tensor, run.tensor), block, run, rule.sum) for run in runs]
        rows.append(torch.cat(columns, dim=1) if columns else block.tensor.new_zeros(len(block), 0))
    scores = torch.cat(rows) if rows else images.tensor.new_zeros(0, len(sentences))
    if rule.global_weight:
        assert isinstance(images.globals, Tensor) and isinstance(sentences.globals, Tensor)
        scores = scores + rule.global_weight * (images.globals @ sentences.globals.T)
    return scores


def exact_scores(images: MultiVectors, sentences: MultiVectors, rule: ScoreRule) -> np.ndarray:
    """(n, m) scores in double precision."""
    return multivector_scores(_doubled(images), _doubled(sentences), rule).numpy()


def _doubled(items: MultiVectors) -> MultiVectors:
    wholes = None if items.globals is None else np.asarray(items.globals, np.float64)
    return replace(items, vectors=np.asarray(items.vectors, np.float64), globals=wholes)


def _runs(lengths: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Start and stop of consecutive items with at most `most` vectors together, or of one item."""
    offsets, start = offsets_of(lengths), 0
    while start < len(lengths):
        stop = max(start + 1, int(np.searchsorted(offsets[1:], offsets[start] + most, "right")))
        yield start, stop
        start = stop


def score_products(products: Tensor, images: MultiVectors, sentences: MultiVectors, rule: str) -> Tensor:
    """(n, m) scores of images by sentences from the `products` (regions, words) of their vectors: by the rule
    `positive` the sum of the positive ones (eq. 7), else that of each word's greatest (eq. 8), or their mean."""
    pooled = _pool(products, images.lengths, rule)
    pooled = pooled.to(torch.promote_types(pooled.dtype, torch.float32))
    owners = upload(sentences.owners, pooled.device)
    scores = pooled.new_zeros(len(pooled), len(sentences)).index_add(1, owners, pooled)
    return scores / upload(np.maximum(sentences.lengths, 1), scores.device) if rule == "mean-words" else scores


def _pool(products: Tensor, lengths: np.ndarray, rule: str) -> Tensor:
    """(images, words)."""
    if rule == "positive":
        products = products.clamp(min=0)
    pool = torch.sum if rule == "positive" else torch.amax
    if products.device.type != "cpu" and lengths[0] and (lengths == lengths[0]).all():
        return pool(products.unflatten(0, (len(lengths), -1)), dim=1)  # a GPU waits longer per call than it computes
    parts = products.split(lengths.tolist())
    return torch.stack([pool(part, dim=0) if len(part) else part.new_zeros(part.shape[1]) for part in parts])


def _multiply(regions: Tensor, words: Tensor) -> Tensor:
    """(regions, words) all products."""
    if regions.device.type != "cpu" or regions.requires_grad or words.requires_grad or regions.dtype.itemsize < 4:
        return regions @ words.T
    # numpy's OpenBLAS with the kernels of pipeline.compute.runtime is twice as fast as torch on AMD processors.
    return torch.from_numpy(regions.numpy() @ words.numpy().T)
