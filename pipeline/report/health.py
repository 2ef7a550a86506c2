"""What looks wrong in stored features."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RowHealth:
    """Of `sampled` rows: their mean `length` and its standard deviation `spread`, how many are `zero`, how many `equal`
    to another, and how many columns are `constant`."""

    sampled: int
    length: float
    spread: float
    zero: int
    equal: int
    constant: int


def measure_rows(rows: np.ndarray) -> RowHealth:
    """The health of rows (n, dim), at least one."""
    lengths = np.linalg.norm(rows, axis=1)
    return RowHealth(
        sampled=len(rows),
        length=float(lengths.mean()),
        spread=float(lengths.std()),
        zero=int((lengths == 0).sum()),
        equal=len(rows) - len(np.unique(rows, axis=0)),
        constant=int((rows.min(axis=0) == rows.max(axis=0)).sum()) if len(rows) > 1 else 0,
    )
