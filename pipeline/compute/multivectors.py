"""Images and sentences with several vectors each, one per region or word, and the rule that scores them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

import numpy as np

from pipeline.compute.device import upload
from pipeline.compute.precision import to_numpy
from pipeline.compute.ragged import Ragged, divides
from pipeline.errors import IntegrityError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SIDES = {"images": "image", "sentences": "sentence"}
"""Modality -> the word for one item in the names of stored arrays, as in `image_offsets`."""
SUMS = ("words", "mean-words", "positive", "mean-positive")
"""Names of the ways in which ScoreRule combines the products of regions and words to one score."""


class ScoreRule(NamedTuple):
    """The rule that combines the products v_i . s_t of an image's regions and a sentence's words to one score.

    `sum` is one of SUMS. `words` sums, over the words, the greatest product with any region (Karpathy and Fei-Fei 2015,
    eq. 8). `positive` sums all positive products (eq. 7). `mean-words` and `mean-positive` divide these sums by the
    number of words. If the model has global vectors, the inner product of the global vectors of image and sentence,
    times `global_weight`, is added to the score.
    """

    sum: str
    global_weight: float

    @classmethod
    def from_dict(cls, value: Mapping[str, object]) -> "ScoreRule":
        """Restore a rule from the values `sum` and `global_weight` that were stored in JSON.

        Raises IntegrityError if `sum` is not one of SUMS, or if `global_weight` is not a finite number. The message
        does not name the file.
        """
        sum_rule = value.get("sum")
        weight = value.get("global_weight")
        if sum_rule not in SUMS:
            raise IntegrityError(
                f"The stored rule of a multi-vector model has the unknown score {sum_rule}. The known scores are"
                f" {', '.join(SUMS)}. Compute the model, its embeddings and its index again."
            )
        if not isinstance(weight, int | float) or not math.isfinite(weight):
            raise IntegrityError(
                "In the stored rule of a multi-vector model, the global_weight of the score is"
                f" {weight!r}, but must be a finite number. Compute the model, its embeddings and its index again."
            )
        return cls(str(sum_rule), float(weight))


Comparison = str | ScoreRule
"""The comparison of an image and a sentence: the name of a metric (inner_product or euclidean) if each has one vector,
or a ScoreRule if each has several vectors."""


@dataclass(frozen=True)
class MultiVectors(Ragged):
    """n images or sentences with several vectors each: one per region of an image, or one per word of a sentence.

    `vectors` (total, c) has the vectors of all items, one item after another. With `offsets` (n + 1,) int64, item i has
    the rows offsets[i] to offsets[i + 1] - 1. `globals` (n, g) has one additional vector for each item, or is None if
    the model has no global vectors. `boxes` (total, 4) are the boxes of images' regions, x1, y1, x2, y2 in pixels of
    the original image, and None for sentences. `vectors` and `globals` are tensors in a network, and arrays when they
    are read or written. `vectors` is None if the vectors are stored in a FAISS index instead.
    """

    ONE_PER_ROW: ClassVar[tuple[str, ...]] = ("globals",)

    vectors: "Tensor | np.ndarray | None"
    offsets: np.ndarray
    globals: "Tensor | np.ndarray | None" = None
    boxes: np.ndarray | None = None

    @property
    def box_array(self) -> np.ndarray:
        """The boxes (total, 4) of the regions of images. An assertion fails for sentences, which have no boxes."""
        assert self.boxes is not None
        return self.boxes

    def __getitem__(self, rows: slice | np.ndarray) -> Self:
        """Return some of the items: `rows` has their numbers (k,), or is a slice with the step 1."""
        return self.between(*rows.indices(len(self))[:2]) if isinstance(rows, slice) else self.take(rows)

    def on(self, device: "torch.device") -> Self:
        """Return the same items with `vectors` and `globals` as tensors on `device`. `vectors` must not be None."""
        assert self.vectors is not None
        item_globals = None if self.globals is None else upload(self.globals, device)
        return replace(self, vectors=upload(self.vectors, device), globals=item_globals)

    def arrays(self) -> Self:
        """Return the same items with `vectors` and `globals` as NumPy arrays. `vectors` must not be None."""
        assert self.vectors is not None
        item_globals = None if self.globals is None else to_numpy(self.globals)
        return replace(self, vectors=to_numpy(self.vectors), globals=item_globals)

    @property
    def array(self) -> np.ndarray:
        """The `vectors` (total, c), which must be a NumPy array."""
        assert isinstance(self.vectors, np.ndarray)
        return self.vectors

    @property
    def tensor(self) -> "Tensor":
        """The `vectors` (total, c), which must be a tensor."""
        assert self.vectors is not None and not isinstance(self.vectors, np.ndarray)
        return self.vectors

    def without(self, rows: np.ndarray) -> Self:
        """Return a copy of all n items, in which the items with the numbers `rows` (k,) have no vectors and boxes any
        more. The global vectors of these items are zero in the copy, and all other items keep their numbers."""
        kept = np.delete(np.arange(self.offsets[-1]), self.positions(rows))
        lengths = self.lengths
        lengths[rows] = 0
        remaining = self._select(kept, slice(None), np.concatenate([[0], np.cumsum(lengths)]))
        if remaining.globals is None:
            return remaining
        item_globals = to_numpy(remaining.globals).copy()
        item_globals[rows] = 0
        return replace(remaining, globals=item_globals)


Items = np.ndarray | MultiVectors
"""Images or sentences, with one vector each as an array (n, c), or with several vectors each."""


def one_vector_each(items: Items) -> np.ndarray:
    """Return `items` unchanged as an array (n, c). An assertion fails if they have several vectors each."""
    assert isinstance(items, np.ndarray)
    return items


def several_vectors_each(items: Items) -> MultiVectors:
    """Return `items` unchanged as MultiVectors. An assertion fails if they have one vector each."""
    assert isinstance(items, MultiVectors)
    return items


def read_outline(
    path: Path, arrays: Mapping[str, np.ndarray], item: str, count: int, total: int | None, remedy: str
) -> MultiVectors:
    """Return `count` items without their vectors: their offsets, global vectors and boxes, from the stored `arrays`.

    `item` is `image` or `sentence`. The arrays are ITEM_offsets, ITEM_globals if the model has global vectors, and
    `boxes` for images. `total` is the number of vectors of all items, or None if it is not known. Raises IntegrityError
    if an array is missing or has a wrong shape or type, or if the offsets do not divide `total` vectors among the
    items. The message names the file `path`, and ends with the sentence `remedy`.
    """
    offsets = arrays.get(f"{item}_offsets")
    item_globals = arrays.get(f"{item}_globals")
    boxes = arrays.get("boxes") if item == "image" else None
    if offsets is None or not divides(offsets, count, total):
        raise IntegrityError(
            f"{path} is damaged: the array {item}_offsets must divide {'the' if total is None else total} vectors among"
            f" {count} {item}s, but this array is missing or wrong. {remedy}"
        )
    if item_globals is not None and (
        item_globals.ndim != 2 or len(item_globals) != count or item_globals.dtype.kind != "f"
    ):
        raise IntegrityError(
            f"{path} is damaged: {item}_globals has the shape {item_globals.shape} and the type {item_globals.dtype},"
            f" but must have one vector of floating-point numbers for each of {count} {item}s. {remedy}"
        )
    if item == "image" and (boxes is None or boxes.shape != (offsets[-1], 4) or boxes.dtype.kind != "f"):
        raise IntegrityError(
            f"{path} is damaged: the array boxes must be a table of {offsets[-1]} rows and 4 columns of floating-point"
            " numbers, but"
            f" {'is missing' if boxes is None else f'has the shape {boxes.shape} and the type {boxes.dtype}'}."
            f" {remedy}"
        )
    return MultiVectors(None, np.asarray(offsets, np.int64), item_globals, boxes)
