"""A random sample of blocks: every row as likely, whatever the blocks, in little memory."""

from collections import Counter

import numpy as np
import pytest
from scipy import sparse

from pipeline.models.linear.feature_maps import ReservoirSample

ROWS = np.arange(60, dtype=np.float32)[:, None] * np.ones(3, np.float32)


def draw(count: int, seed: int, bounds: list[int], rows: np.ndarray | sparse.csr_array = ROWS):
    sample = ReservoirSample(count, np.random.default_rng(seed))
    for start, stop in zip([0, *bounds], [*bounds, rows.shape[0]], strict=True):
        sample.add(rows[start:stop])
        assert sample.rows().shape[0] <= count
    return sample.rows()


def test_every_row_of_every_block_is_as_likely() -> None:
    times = 3000
    counts = Counter(int(row) for seed in range(times) for row in draw(6, seed, [1, 40])[:, 0])
    expected = times * 6 / 60
    spread = np.sqrt(expected)
    assert set(counts) == set(range(60))
    assert max(abs(count - expected) for count in counts.values()) < 5 * spread


@pytest.mark.parametrize("bounds", [[], [1], [0, 30, 30, 59], list(range(1, 60))])
def test_where_blocks_end_does_not_matter(bounds: list[int]) -> None:
    np.testing.assert_array_equal(draw(20, 1, bounds), draw(20, 1, [17]))
    words = sparse.csr_array(np.random.default_rng(0).random((60, 5)) < 0.3, dtype=np.float32)
    found = draw(20, 1, bounds, words)
    assert sparse.issparse(found)
    np.testing.assert_array_equal(found.toarray(), words.toarray()[draw(20, 1, bounds)[:, 0].astype(int)])


def test_a_sample_of_more_than_there_are_is_all_of_them() -> None:
    np.testing.assert_array_equal(draw(100, 0, [13]), ROWS)
