"""Lifts: columns that a view gains by a map that is not linear, so that moments alone cannot give them."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from scipy import sparse

Rows = np.ndarray | sparse.csr_array
"""Images (n, D) float32, or sentences (n, d) sparse."""


class Lift(Protocol):
    """rows -> (n, dim) float32. The view's own columns stay in front of them where `keep`, else they are replaced."""

    kind: ClassVar[str]
    keep: bool

    @property
    def dim(self) -> int: ...

    def __call__(self, rows: Rows) -> np.ndarray: ...

    def settings(self) -> dict[str, Any]: ...

    def tensors(self) -> dict[str, np.ndarray]: ...

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "Lift": ...


LIFTS: dict[str, str] = {
    "fourier": "pipeline.linear.fourier:FourierLift",
    "kernel": "pipeline.linear.kernels:KernelLift",
    "neighbours": "pipeline.linear.neighbours:NeighbourLift",
}
"""Kind of lift -> where its class stands."""


@dataclass(frozen=True)
class Lifts:
    """What is applied to each view before its projection; None leaves a view as it is."""

    image: Lift | None = None
    text: Lift | None = None

    def settings(self) -> dict[str, Any]:
        """JSON values from which, with `tensors`, `from_parts` makes the lifts again."""
        return {side: {"kind": lift.kind, **lift.settings()} for side, lift in self._present()}

    def tensors(self) -> dict[str, np.ndarray]:
        """The tensors of both lifts, named `image.<name>` and `text.<name>`."""
        return {f"{side}.{name}": value for side, lift in self._present() for name, value in lift.tensors().items()}

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "Lifts":
        """The lifts that `settings` and `tensors` came from; other tensors are left alone."""
        lifts = {}
        for side, value in settings.items():
            own = {name.removeprefix(f"{side}."): t for name, t in tensors.items() if name.startswith(f"{side}.")}
            module, _, attribute = LIFTS[value["kind"]].partition(":")
            lifts[side] = getattr(importlib.import_module(module), attribute).from_parts(value, own)
        return cls(**lifts)

    def _present(self) -> list[tuple[str, Lift]]:
        return [(side, lift) for side, lift in vars(self).items() if lift is not None]


def lifted_columns(rows: Rows, lift: Lift | None) -> list[Rows]:
    """The blocks of columns of a lifted view, left to right."""
    if lift is None:
        return [rows]
    return [rows, lift(rows)] if lift.keep else [lift(rows)]


def project(columns: Sequence[Rows], mean: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """(n, c): (columns - mean) matrix, for the blocks `columns` of a view with `mean` (p,) and `matrix` (p, c)."""
    total = np.zeros((columns[0].shape[0], matrix.shape[1]), np.float32)
    start = 0
    for block in columns:
        part = slice(start, start + block.shape[1])
        # A sparse block stays sparse: its mean is subtracted after the product.
        if sparse.issparse(block):
            total += block @ matrix[part] - mean[part] @ matrix[part]
        else:
            total += (block - mean[part]) @ matrix[part]
        start = part.stop
    return total
