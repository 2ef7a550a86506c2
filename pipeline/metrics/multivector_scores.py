"""Scores of multi-vector images and sentences (Karpathy and Fei-Fei 2015, eq. 7 and 8)."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pipeline.compute.device import upload
from pipeline.compute.multivectors import MultiVectors, ScoreRule
from pipeline.compute.ragged import offsets_of

MAX_PRODUCTS = 1 << 22
"""Maximum number of products of regions and words that are computed at once (16 MB in float32). A single image and one
block of words may have more products."""
BLOCK_WORDS = 1 << 14
"""Maximum number of words in a block of sentences. A longer sentence is a block of its own. A block of this size is
large enough for fast products, but small enough to be multiplied with several images at once."""


def multivector_scores(images: MultiVectors, sentences: MultiVectors, rule: ScoreRule) -> Tensor:
    """Score n images by m sentences, and return the scores (n, m) as a differentiable tensor.

    The scores have the dtype of the vectors, but at least float32. Blocks of regions and words are multiplied without
    padding. `rule` says how the products of an image's regions and a sentence's words are combined to a score. If the
    `global_weight` of the rule is not 0, the product of the global vectors of the image and the sentence (`globals` of
    MultiVectors), times this weight, is added to the score. If the image has no regions or the sentence has no words,
    the score is this added product alone, or zero if the `global_weight` is 0.
    """
    cpu = torch.device("cpu")
    images, sentences = (items if isinstance(items.vectors, Tensor) else items.on(cpu) for items in (images, sentences))
    rows = []
    words = max(1, min(int(sentences.offsets[-1]), BLOCK_WORDS))
    for start, stop in _blocks_of_items(images.lengths, max(1, MAX_PRODUCTS // words)):
        block = images.between(start, stop)
        runs = [sentences.between(*run) for run in _blocks_of_items(sentences.lengths, words)]
        columns = [score_products(_multiply(block.tensor, run.tensor), block, run, rule.sum) for run in runs]
        rows.append(torch.cat(columns, dim=1) if columns else block.tensor.new_zeros(len(block), 0))
    scores = torch.cat(rows) if rows else images.tensor.new_zeros(0, len(sentences))
    if rule.global_weight:
        assert isinstance(images.globals, Tensor) and isinstance(sentences.globals, Tensor)
        scores = scores + rule.global_weight * (images.globals @ sentences.globals.T)
    return scores


def exact_scores(images: MultiVectors, sentences: MultiVectors, rule: ScoreRule) -> np.ndarray:
    """Score n images by m sentences by `multivector_scores` in double precision, and return an array (n, m) float64."""
    return multivector_scores(_to_float64(images), _to_float64(sentences), rule).numpy()


def _to_float64(items: MultiVectors) -> MultiVectors:
    item_globals = None if items.globals is None else np.asarray(items.globals, np.float64)
    return replace(items, vectors=np.asarray(items.vectors, np.float64), globals=item_globals)


def _blocks_of_items(lengths: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Divide items into blocks of consecutive items, and yield the start and the stop of each block.

    Item i has `lengths[i]` vectors. A block has at most `most` vectors, unless a single item has more.
    """
    offsets = offsets_of(lengths)
    start = 0
    while start < len(lengths):
        stop = max(start + 1, int(np.searchsorted(offsets[1:], offsets[start] + most, "right")))
        yield start, stop
        start = stop


def score_products(products: Tensor, images: MultiVectors, sentences: MultiVectors, rule: str) -> Tensor:
    """Combine the `products` (regions, words) of the regions of n images with the words of m sentences to scores
    (n, m).

    The rule `positive` sums the positive products (Karpathy and Fei-Fei 2015, eq. 7). The rule `words` takes the
    greatest product of each word with a region of the image, and sums over the words of the sentence (eq. 8).
    `mean-positive` and `mean-words` divide these two sums by the number of words of the sentence. The score is zero if
    the image has no regions or the sentence has no words.
    """
    pooled = _pool(products, images.lengths, rule)
    pooled = pooled.to(torch.promote_types(pooled.dtype, torch.float32))
    owners = upload(sentences.owners, pooled.device)
    scores = pooled.new_zeros(len(pooled), len(sentences)).index_add(1, owners, pooled)
    return scores / upload(np.maximum(sentences.lengths, 1), scores.device) if rule.startswith("mean") else scores


def _pool(products: Tensor, lengths: np.ndarray, rule: str) -> Tensor:
    """Combine the `products` (regions, words) over the regions of each image. Return (images, words).

    `lengths` (images,) are the numbers of regions of the images. The rules `positive` and `mean-positive` sum the
    positive products, and the other rules take the greatest product. The row of an image without regions is zero.
    """
    if rule.endswith("positive"):
        products = products.clamp(min=0)
    pool = torch.sum if rule.endswith("positive") else torch.amax
    if products.device.type != "cpu" and lengths[0] and (lengths == lengths[0]).all():
        # All images have equally many regions here. A GPU needs more time to start a computation per image than for
        # the computation, so all images are pooled at once.
        return pool(products.unflatten(0, (len(lengths), -1)), dim=1)
    parts = products.split(lengths.tolist())
    return torch.stack([pool(part, dim=0) if len(part) else part.new_zeros(part.shape[1]) for part in parts])


def _multiply(regions: Tensor, words: Tensor) -> Tensor:
    """Compute the products (regions, words) of all regions (regions, c) with all words (words, c)."""
    if regions.device.type != "cpu" or regions.requires_grad or words.requires_grad or regions.dtype.itemsize < 4:
        return regions @ words.T
    # NumPy's OpenBLAS with the kernels of pipeline.compute.runtime is twice as fast as PyTorch on AMD CPUs.
    return torch.from_numpy(regions.numpy() @ words.numpy().T)
