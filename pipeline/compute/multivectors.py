"""Images or sentences that have several vectors each, one per region or word, and how an image and a sentence score."""

import math
from collections.abc import Mapping, Sequence
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
"""Modality -> the word for one item in the names of arrays."""
SUMS = ("words", "mean-words", "positive")
"""The ways in which products of regions and words become one score."""


class ScoreRule(NamedTuple):
    """A rule by which the products v_i . s_t of an image's regions and a sentence's words become one score.

    `sum` is one of SUMS. `words` is the sum over words of the greatest product of any region (Karpathy and Fei-Fei
    2015, eq. 8). `mean-words` is the mean in place of the sum. `positive` is the sum of all positive products (eq. 7).
    If `global_weight` is not zero, it is multiplied by the product of the two items' globals and added.
    """

    sum: str
    global_weight: float

    @classmethod
    def from_dict(cls, value: Mapping[str, object]) -> "ScoreRule":
        """Read a rule that was stored in JSON.

        Raises IntegrityError if `sum` is not one of SUMS, or if `global_weight` is not a finite number.
        """
        sum_rule = value.get("sum")
        weight = value.get("global_weight")
        if sum_rule not in SUMS:
            raise IntegrityError(f"unknown score {sum_rule}. The known scores are {', '.join(SUMS)}")
        if not isinstance(weight, int | float) or not math.isfinite(weight):
            raise IntegrityError(f"the global_weight of the score is {weight!r}, not a finite number")
        return cls(str(sum_rule), float(weight))


Comparison = str | ScoreRule
"""The way in which an image and a sentence compare: the metric of two vectors, or the rule for several of each."""


@dataclass(frozen=True)
class MultiVectors(Ragged):
    """n items with several vectors each. Item i has the rows [offsets[i], offsets[i + 1]) of `vectors` (total, c).

    `globals` (n, g) is one more vector of each item, or None if the model has no such vectors. `boxes` (total, 4) are
    the boxes of regions. Items are tensors in a network, and arrays on their way to and from files. `vectors` is None
    if an index holds the vectors.
    """

    ONE_A_ROW: ClassVar[tuple[str, ...]] = ("globals",)

    vectors: "Tensor | np.ndarray | None"
    offsets: np.ndarray
    globals: "Tensor | np.ndarray | None" = None
    boxes: np.ndarray | None = None

    @property
    def box_array(self) -> np.ndarray:
        """The boxes (total, 4) of images."""
        assert self.boxes is not None
        return self.boxes

    def __getitem__(self, rows: slice | np.ndarray) -> Self:
        """Return some items, as indexing an array returns some rows."""
        return self.between(*rows.indices(len(self))[:2]) if isinstance(rows, slice) else self.take(rows)

    def on(self, device: "torch.device") -> Self:
        """Return the items as tensors on `device`."""
        assert self.vectors is not None
        item_globals = None if self.globals is None else upload(self.globals, device)
        return replace(self, vectors=upload(self.vectors, device), globals=item_globals)

    def arrays(self) -> Self:
        """Return the items as arrays, from tensors on any device."""
        assert self.vectors is not None
        item_globals = None if self.globals is None else to_numpy(self.globals)
        return replace(self, vectors=to_numpy(self.vectors), globals=item_globals)

    @property
    def array(self) -> np.ndarray:
        """The vectors (total, c) of items that are arrays."""
        assert isinstance(self.vectors, np.ndarray)
        return self.vectors

    @property
    def tensor(self) -> "Tensor":
        """The vectors (total, c) of items that are tensors."""
        assert self.vectors is not None and not isinstance(self.vectors, np.ndarray)
        return self.vectors

    def without(self, rows: np.ndarray) -> Self:
        """Return the same items after all vectors of `rows` are removed."""
        kept = np.delete(np.arange(self.offsets[-1]), self.places(rows))
        lengths = self.lengths
        lengths[rows] = 0
        less = self._select(kept, slice(None), np.concatenate([[0], np.cumsum(lengths)]))
        if less.globals is None:
            return less
        item_globals = to_numpy(less.globals).copy()
        item_globals[rows] = 0
        return replace(less, globals=item_globals)


Items = np.ndarray | MultiVectors
"""Images or sentences that have one vector each, (n, c), or several."""


def one_vector_each(items: Items) -> np.ndarray:
    """Return the vectors (n, c) of items that have one vector each."""
    assert isinstance(items, np.ndarray)
    return items


def several_vectors_each(items: Items) -> MultiVectors:
    """Return items that have several vectors each."""
    assert isinstance(items, MultiVectors)
    return items


def concatenate(parts: Sequence[Items]) -> Items:
    """Return all items of `parts`, at least one, which are all arrays or all MultiVectors."""
    multiple = [part for part in parts if isinstance(part, MultiVectors)]
    single = [part for part in parts if isinstance(part, np.ndarray)]
    return MultiVectors.concatenate(multiple) if multiple else np.concatenate(single)


def read_outline(
    path: Path, arrays: Mapping[str, np.ndarray], one: str, count: int, total: int | None = None
) -> MultiVectors:
    """Read which vectors belong to which of `count` items, without the vectors.

    The arrays are `<one>_offsets`, `<one>_globals` if there are any, and `boxes` if `one` is `image`. Raises
    IntegrityError naming `path` unless the offsets divide `total` vectors (None: any number).
    """
    offsets = arrays.get(f"{one}_offsets")
    item_globals = arrays.get(f"{one}_globals")
    boxes = arrays.get("boxes") if one == "image" else None
    if offsets is None or not divides(offsets, count, total):
        raise IntegrityError(f"{path}: its offsets are not of {count} {one}s; make it again")
    if item_globals is not None and (
        item_globals.ndim != 2 or len(item_globals) != count or item_globals.dtype.kind != "f"
    ):
        raise IntegrityError(f"{path}: its globals are not one vector for each of {count} {one}s; make it again")
    if one == "image" and (boxes is None or boxes.shape != (offsets[-1], 4) or boxes.dtype.kind != "f"):
        raise IntegrityError(f"{path}: its boxes are not of {offsets[-1]} regions; make it again")
    return MultiVectors(None, np.asarray(offsets, np.int64), item_globals, boxes)
