"""Images or sentences that have several vectors each, one a region or a word, and how two of them score."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from pipeline.compute.device import upload
from pipeline.compute.ragged import Ragged, divides
from pipeline.errors import IntegrityError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SIDES = {"images": "image", "sentences": "sentence"}
"""Modality -> what one item of it is called in the names of arrays."""
SUMS = ("words", "mean-words", "positive")


class ScoreRule(NamedTuple):
    """How products v_i . s_t of the regions of an image and the words of a sentence become one score.

    `sum`: `words`, the sum over words of the greatest product of any region (Karpathy and Fei-Fei 2015, eq. 8);
    `mean-words`, the mean in place of the sum; `positive`, the sum of all positive products (eq. 7). `global_weight`
    times the product of the two items' globals is added where it is not zero.
    """

    sum: str
    global_weight: float

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "ScoreRule":
        """Raises IntegrityError where `sum` is none of SUMS."""
        if value["sum"] not in SUMS:
            raise IntegrityError(f"unknown score {value['sum']}; there are {', '.join(SUMS)}")
        return cls(value["sum"], value["global_weight"])


Comparison = str | ScoreRule
"""How an image and a sentence compare: the metric of their two vectors, or the rule for several of each."""


@dataclass(frozen=True)
class MultiVectors(Ragged):
    """n items: item i has the rows [offsets[i], offsets[i + 1]) of `vectors` (total, c).

    `globals` (n, g) is one more vector of each item, None where the model has none; `boxes` (total, 4) are those of
    regions. Items are tensors in a network and arrays on their way to and from files; where an index has them, they
    are None here.
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
        """Some items, as an array of one vector each is indexed."""
        return self.between(*rows.indices(len(self))[:2]) if isinstance(rows, slice) else self.take(rows)

    def on(self, device: "torch.device") -> Self:
        """The same as tensors on `device`."""
        whole = None if self.globals is None else upload(self.globals, device)
        return replace(self, vectors=upload(self.vectors, device), globals=whole)

    def arrays(self) -> Self:
        """The same as arrays, from tensors wherever they are."""
        whole = None if self.globals is None else self.globals.cpu().numpy()
        return replace(self, vectors=self.vectors.cpu().numpy(), globals=whole)

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
        """The same items, of which `rows` have nothing left."""
        kept = np.delete(np.arange(self.offsets[-1]), self.places(rows))
        lengths = self.lengths
        lengths[rows] = 0
        less = self._select(kept, slice(None), np.concatenate([[0], np.cumsum(lengths)]))
        if less.globals is not None:
            less = replace(less, globals=less.globals.copy())
            less.globals[rows] = 0
        return less


Items = np.ndarray | MultiVectors
"""Images or sentences: of one vector each, (n, c), or of several."""


def one_vector_each(items: Items) -> np.ndarray:
    """Return the vectors (n, c) of items that have one vector each."""
    assert isinstance(items, np.ndarray)
    return items


def several_vectors_each(items: Items) -> MultiVectors:
    """Return items that have several vectors each."""
    assert isinstance(items, MultiVectors)
    return items


def concatenate(parts: Sequence[Items]) -> Items:
    """All items of `parts`, at least one, which have one vector each or several."""
    return MultiVectors.concatenate(parts) if isinstance(parts[0], MultiVectors) else np.concatenate(parts)


def read_outline(
    path: Path, arrays: Mapping[str, np.ndarray], one: str, count: int, total: int | None = None
) -> MultiVectors:
    """Which vectors are of which of `count` items, without the vectors: `<one>_offsets`, `<one>_globals` where there
    are any, and, of an `image`, `boxes`.

    Raises IntegrityError naming `path` unless they divide `total` vectors (None: as many as they say).
    """
    offsets, whole = arrays.get(f"{one}_offsets"), arrays.get(f"{one}_globals")
    boxes = arrays.get("boxes") if one == "image" else None
    if not divides(offsets, count, total):
        raise IntegrityError(f"{path}: its offsets are not of {count} {one}s; make it again")
    if whole is not None and (whole.ndim != 2 or len(whole) != count or whole.dtype.kind != "f"):
        raise IntegrityError(f"{path}: its globals are not one vector for each of {count} {one}s; make it again")
    if one == "image" and (boxes is None or boxes.shape != (offsets[-1], 4) or boxes.dtype.kind != "f"):
        raise IntegrityError(f"{path}: its boxes are not of {offsets[-1]} regions; make it again")
    return MultiVectors(None, np.asarray(offsets, np.int64), whole, boxes)
