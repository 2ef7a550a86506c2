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
"""Maximum number of products of regions and words in memory at once (16 MB in float32). One image and one block of
words may have more."""
BLOCK_WORDS = 1 << 14
"""Maximum number of words in a block of sentences. A single longer sentence is a block of its own. A block of this size
is large enough for fast products, but so small that it can be multiplied with several images at once."""


def multivector_scores(images: MultiVectors, sentences: MultiVectors, rule: ScoreRule) -> Tensor:
    """Score n images by m sentences, and return the scores (n, m) as a differentiable tensor.

    The scores have the dtype of the vectors, but at least float32. Blocks of regions and words are multiplied without
    padding. `rule` says how the products of an image's regions and a sentence's words are then combined to a score. If
    the rule has a `global_weight`, the product of the global vectors of the image and the sentence (`globals` of
    MultiVectors), times this weight, is added. The score of an image or a sentence without other vectors is this
    product alone, or zero.
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
    """Score n images by m sentences in double precision, and return an array (n, m) float64."""
    return multivector_scores(_to_float64(images), _to_float64(sentences), rule).numpy()


def _to_float64(items: MultiVectors) -> MultiVectors:
    item_globals = None if items.globals is None else np.asarray(items.globals, np.float64)
    return replace(items, vectors=np.asarray(items.vectors, np.float64), globals=item_globals)


def _blocks_of_items(lengths: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Divide items into blocks of consecutive items, and yield the start and the stop of each block.

    A block has at most `most` vectors, unless a single item has more.
    """
    offsets = offsets_of(lengths)
    start = 0
    while start < len(lengths):
        stop = max(start + 1, int(np.searchsorted(offsets[1:], offsets[start] + most, "right")))
        yield start, stop
        start = stop


def score_products(products: Tensor, images: MultiVectors, sentences: MultiVectors, rule: str) -> Tensor:
    """Combine the `products` (regions, words) of the vectors of n images and m sentences to scores (n, m).

    The rule `positive` sums the positive products (Karpathy and Fei-Fei 2015, eq. 7). `words` sums, over the words of a
    sentence, the greatest product with a region of the image (eq. 8). `mean-words` and `mean-positive` divide these
    sums by the number of words. An image without regions and a sentence without words have the score zero.
    """
    pooled = _pool(products, images.lengths, rule)
    pooled = pooled.to(torch.promote_types(pooled.dtype, torch.float32))
    owners = upload(sentences.owners, pooled.device)
    scores = pooled.new_zeros(len(pooled), len(sentences)).index_add(1, owners, pooled)
    return scores / upload(np.maximum(sentences.lengths, 1), scores.device) if rule.startswith("mean") else scores


def _pool(products: Tensor, lengths: np.ndarray, rule: str) -> Tensor:
    """Combine the products (regions, words) of the regions of each image. Return (images, words).

    `lengths` (images,) are the numbers of regions. The rules `positive` and `mean-positive` sum the positive products,
    and the other rules take the greatest product. An image without regions has zeros.
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
