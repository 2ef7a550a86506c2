"""Ragged rows against plain lists."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.ragged import Ragged, offsets_of

ROWS = st.lists(st.lists(st.integers(-9, 9), max_size=4), max_size=6)


@dataclass(frozen=True)
class Named(Ragged):
    ONE_A_ROW: ClassVar[tuple[str, ...]] = ("names",)

    values: np.ndarray
    offsets: np.ndarray
    names: np.ndarray | None = None
    nothing: np.ndarray | None = None


def make(rows: list[list[int]]) -> Named:
    values = np.array([value for row in rows for value in row], np.int64)
    return Named(values, offsets_of(list(map(len, rows))), np.arange(100, 100 + len(rows)))


def listed(one: Named) -> list[tuple[int, list[int]]]:
    return list(zip(one.names.tolist(), map(list, one.split("values")), strict=True))


@settings(deadline=None)
@given(ROWS, st.data())
def test_rows_are_those_of_lists(rows: list[list[int]], data: st.DataObject) -> None:
    one, expected = make(rows), [(100 + i, row) for i, row in enumerate(rows)]
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8)) if rows else []
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    assert listed(one) == expected and len(one) == len(rows)
    assert listed(one.take(np.array(chosen, int))) == [expected[i] for i in chosen]
    assert listed(one.between(start, stop)) == expected[start:stop]
    assert listed(Named.concatenate([one, one.between(start, stop)])) == expected + expected[start:stop]
    assert listed(Named.concatenate(one.blocks(2))) == expected
    assert one.owners.tolist() == [i for i, row in enumerate(rows) for _ in row]
    assert one.numbers.tolist() == [k for row in rows for k in range(len(row))]


def test_tensors_are_gathered_as_arrays_are() -> None:
    values = torch.arange(10.0).reshape(5, 2)
    taken = Named(values, np.array([0, 2, 2, 5])).take(np.arange(3)[::-1])
    assert torch.equal(taken.values, values[[2, 3, 4, 0, 1]]) and taken.offsets.tolist() == [0, 3, 3, 5]
