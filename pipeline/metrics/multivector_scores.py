"""Scores of images and sentences of several vectors each: Karpathy and Fei-Fei 2015, equations 7 and 8."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from pipeline.device import upload
from pipeline.metrics.lattice import to_lattice, unit_of
from pipeline.multivectors import MultiVectors, ScoreRule
from pipeline.ragged import offsets_of

PRODUCTS = 1 << 22
"""Products of regions and words that are held at once, 16 MB in float32; one image with one sentence may have more."""
WORDS = 1 << 14
"""Words in a block: enough for fast products, few enough to leave room for several images."""
EXACT = 53
"""Whole numbers up to 2**53 are added without rounding in double precision."""


def multivector_scores(images: MultiVectors, sentences: MultiVectors, rule: ScoreRule) -> Tensor:
    """(n, m) scores of n images by m sentences, differentiable, in the dtype of the vectors.

    All regions of a block times all its words is one product of matrices without padding; its columns are then pooled
    image by image and summed sentence by sentence. An item without vectors scores zero.
    """
    cpu = torch.device("cpu")
    images, sentences = (one if isinstance(one.vectors, Tensor) else one.on(cpu) for one in (images, sentences))
    rows = []
    words = max(1, min(int(sentences.offsets[-1]), WORDS))
    for start, stop in _runs(images.lengths, max(1, PRODUCTS // words)):
        block = images.between(start, stop)
        runs = [sentences.between(*run) for run in _runs(sentences.lengths, words)]
        columns = [_sum_of_words(_pool(block, run, rule.sum), run) for run in runs]
        rows.append(torch.cat(columns, dim=1) if columns else block.vectors.new_zeros(len(block), 0))
    scores = torch.cat(rows) if rows else images.vectors.new_zeros(0, len(sentences))
    if rule.sum == "mean-words":
        scores = scores / upload(np.maximum(sentences.lengths, 1), scores.device)
    if rule.global_weight:
        scores = scores + rule.global_weight * (images.globals @ sentences.globals.T)
    return scores


def exact_scores(images: MultiVectors, sentences: MultiVectors, rule: ScoreRule) -> np.ndarray:
    """(n, m) float64 scores in which equal pairs are equal, wherever they stand, so that ties are ties.

    See pipeline.metrics.lattice; here, sums of many products are whole numbers that double precision adds exactly.
    """
    longest = max(1, int(sentences.lengths.max(initial=0)))
    if rule.sum == "positive":
        longest *= max(1, int(images.lengths.max(initial=0)))
    bits = (EXACT - int(np.ceil(np.log2(longest)))) // 2
    sides = (images, sentences)
    (left, one), (right, other) = (_rounded(side.vectors, bits) for side in sides)
    whole = MultiVectors(left, images.offsets), MultiVectors(right, sentences.offsets)
    scores = multivector_scores(*whole, ScoreRule(rule.sum, 0)).numpy() * (one * other)
    if rule.global_weight:
        (left, one), (right, other) = (_rounded(side.globals, EXACT // 2) for side in sides)
        scores += rule.global_weight * one * other * (left @ right.T)
    return scores


def _rounded(x: Tensor | np.ndarray, bits: int) -> tuple[np.ndarray, float]:
    """The rows of x as whole numbers of a length up to 2**bits, and what one unit of them is."""
    unit = unit_of(np.asarray(x), bits)
    return to_lattice(np.asarray(x), unit), unit


def _runs(lengths: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Consecutive items, start and stop, with at most `most` vectors together or one item alone."""
    offsets, start = offsets_of(lengths), 0
    while start < len(lengths):
        stop = max(start + 1, int(np.searchsorted(offsets[1:], offsets[start] + most, "right")))
        yield start, stop
        start = stop


def _pool(images: MultiVectors, words: MultiVectors, rule: str) -> Tensor:
    """(images, words) the greatest product of each word with any region, or the sum of the positive ones."""
    products = _multiply(images.vectors, words.vectors)
    if rule == "positive":
        products = products.clamp(min=0)
    lengths = images.lengths
    if products.device.type != "cpu" and lengths[0] and (lengths == lengths[0]).all():
        return _pool_alike(products, len(lengths), rule)
    parts = products.split(lengths.tolist())
    pooled = [_pool_one(part, rule) for part in parts]
    return torch.stack(pooled)


def _pool_alike(products: Tensor, images: int, rule: str) -> Tensor:
    """The same of images with equally many regions, at once: a GPU would wait longer for each than it takes."""
    parts = products.unflatten(0, (images, -1))
    return parts.sum(dim=1) if rule == "positive" else parts.amax(dim=1)


def _multiply(regions: Tensor, words: Tensor) -> Tensor:
    """(regions, words) all products."""
    if regions.device.type != "cpu" or regions.requires_grad or words.requires_grad:
        return regions @ words.T
    # numpy's OpenBLAS, with the kernels that pipeline.runtime chooses, is twice as fast as torch on AMD processors.
    return torch.from_numpy(regions.numpy() @ words.numpy().T)


def _pool_one(products: Tensor, rule: str) -> Tensor:
    if not len(products):
        return products.new_zeros(products.shape[1])
    return products.sum(dim=0) if rule == "positive" else products.amax(dim=0)


def _sum_of_words(pooled: Tensor, words: MultiVectors) -> Tensor:
    """(images, sentences) from (images, words)."""
    owners = upload(words.owners, pooled.device)
    return pooled.new_zeros(len(pooled), len(words)).index_add(1, owners, pooled)
