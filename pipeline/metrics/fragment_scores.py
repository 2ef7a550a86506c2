"""Scores between images and sentences that are sets of fragments: regions and words (seed 000, equations 7 and 8)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.device import upload
from pipeline.errors import IntegrityError

SUMS = ("words", "mean-words", "positive")
PRODUCTS = 1 << 22
"""Products of regions and words that are held at once, 16 MB in float32; one image with one sentence may have more."""
WORDS = 1 << 14
"""Words in a block: enough for fast products, few enough to leave room for several images."""
BITS = 53
"""Whole numbers up to 2**53 are added without rounding in double precision."""


@dataclass(frozen=True)
class FragmentSets:
    """n sets of fragments: set i has the rows [offsets[i], offsets[i + 1]) of `vectors` (total, c).

    `offsets` (n + 1,) int64. `globals` (n, g) is one more vector of each set, None where the model has none. Vectors
    are tensors in a network and arrays on their way to and from files.
    """

    vectors: Tensor | np.ndarray
    offsets: np.ndarray
    globals: Tensor | np.ndarray | None = None

    @property
    def lengths(self) -> np.ndarray:
        """(n,) fragments in each set."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def on(self, device: torch.device) -> "FragmentSets":
        """The same as tensors on `device`."""
        whole = None if self.globals is None else upload(self.globals, device)
        return FragmentSets(upload(self.vectors, device), self.offsets, whole)

    def arrays(self) -> "FragmentSets":
        """The same as arrays, from tensors wherever they are."""
        whole = None if self.globals is None else self.globals.cpu().numpy()
        return FragmentSets(self.vectors.cpu().numpy(), self.offsets, whole)

    def take(self, rows: np.ndarray) -> "FragmentSets":
        """The sets `rows` (k,), in that order."""
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        inside = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][rows] - offsets[:-1], lengths)
        whole = None if self.globals is None else self.globals[rows.copy()]
        return FragmentSets(self.vectors[inside], offsets, whole)

    def between(self, start: int, stop: int) -> "FragmentSets":
        """The sets `start` to `stop` - 1."""
        first, last = self.offsets[start], self.offsets[stop]
        whole = None if self.globals is None else self.globals[start:stop]
        return FragmentSets(self.vectors[first:last], self.offsets[start : stop + 1] - first, whole)


class ScoreRule(NamedTuple):
    """How products v_i . s_t of the regions of an image and the words of a sentence become one score.

    `sum`: `words`, the sum over words of the greatest product of any region (seed 000, equation 8); `mean-words`, the
    mean in place of the sum; `positive`, the sum of all positive products (equation 7). `global_weight` times the
    product of the two sets' globals is added where it is not zero.
    """

    sum: str
    global_weight: float

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> "ScoreRule":
        """Raises IntegrityError where `sum` is none of SUMS."""
        if value["sum"] not in SUMS:
            raise IntegrityError(f"unknown score {value['sum']}; there are {', '.join(SUMS)}")
        return cls(value["sum"], value["global_weight"])


def fragment_scores(images: FragmentSets, sentences: FragmentSets, rule: ScoreRule) -> Tensor:
    """(n, m) scores of n images by m sentences, differentiable, in the dtype of the vectors.

    All regions of a block times all its words is one product of matrices without padding; its columns are then pooled
    image by image and summed sentence by sentence. A set without fragments scores zero.
    """
    images, sentences = _as_tensors(images), _as_tensors(sentences)
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


def exact_scores(images: FragmentSets, sentences: FragmentSets, rule: ScoreRule) -> np.ndarray:
    """(n, m) float64 scores in which equal pairs are equal, wherever they stand, so that ties are ties.

    As in pipeline.metrics.ranks, every vector is rounded to whole multiples of a small share of the greatest length on
    its side: so small that all products and sums are whole numbers which double precision adds exactly.
    """
    longest = max(1, int(sentences.lengths.max(initial=0)))
    if rule.sum == "positive":
        longest *= max(1, int(images.lengths.max(initial=0)))
    bits = (BITS - int(np.ceil(np.log2(longest)))) // 2
    sides = [_lattice(np.asarray(sets.vectors), bits) for sets in (images, sentences)]
    local = [FragmentSets(side, sets.offsets) for (side, _), sets in zip(sides, (images, sentences), strict=True)]
    scores = fragment_scores(*local, ScoreRule(rule.sum, 0)).numpy() * (sides[0][1] * sides[1][1])
    if rule.global_weight:
        left, right = (_lattice(np.asarray(sets.globals), BITS // 2) for sets in (images, sentences))
        scores += rule.global_weight * left[1] * right[1] * (left[0] @ right[0].T)
    return scores


def _lattice(x: np.ndarray, bits: int) -> tuple[np.ndarray, float]:
    """The rows of x as whole numbers of a length up to 2**bits, and what one unit of them is."""
    length = np.sqrt(np.einsum("ij,ij->i", x, x, dtype=np.float64).max(initial=0))
    unit = 2.0 ** (int(np.frexp(length)[1]) - bits)
    return np.rint(np.divide(x, unit, dtype=np.float64)), unit


def _as_tensors(sets: FragmentSets) -> FragmentSets:
    whole = None if sets.globals is None else torch.as_tensor(sets.globals)
    return FragmentSets(torch.as_tensor(sets.vectors), sets.offsets, whole)


def _runs(lengths: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Consecutive sets, start and stop, with at most `most` fragments together or one set alone."""
    ends = np.cumsum(lengths)
    start = 0
    while start < len(lengths):
        before = ends[start] - lengths[start]
        stop = max(start + 1, int(np.searchsorted(ends, before + most, "right")))
        yield start, stop
        start = stop


def _pool(images: FragmentSets, words: FragmentSets, rule: str) -> Tensor:
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


def _sum_of_words(pooled: Tensor, words: FragmentSets) -> Tensor:
    """(images, sentences) from (images, words)."""
    owners = upload(np.repeat(np.arange(len(words)), words.lengths), pooled.device)
    return pooled.new_zeros(len(pooled), len(words)).index_add(1, owners, pooled)
