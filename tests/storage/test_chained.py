"""Arrays one after another, against their concatenation."""

import numpy as np
import pytest

from pipeline.storage.shards import Chained


@pytest.mark.parametrize("rows", [[], [0], [6, 0, 3, 3, 2], [1, 2, 3], [6, 5], [2, 2, 6]])
def test_rows_are_those_of_the_whole(rows: list[int]) -> None:
    parts = [np.arange(4).reshape(2, 2), np.empty((0, 2), int), 10 + np.arange(10).reshape(5, 2)]
    chained, rows = Chained(parts), np.array(rows, int)
    np.testing.assert_array_equal(chained[rows], np.concatenate(parts)[rows])
    assert chained.shape == (7, 2) and chained[rows].dtype == parts[0].dtype
    assert Chained(parts, np.float32)[rows].dtype == np.float32
