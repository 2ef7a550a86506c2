"""Moments against the dense float64 sums that they stand for."""

import numpy as np
import pytest
from scipy import sparse

from pipeline.models.linear.accumulation import MomentsAccumulator
from pipeline.models.linear.moments import Moments


def make_pairs(seed: int, n: int, dim_x: int = 12, dim_y: int = 9) -> tuple[np.ndarray, sparse.csr_array, np.ndarray]:
    """Images, sparse sentences, and owners with 0 to 4 sentences an image."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, dim_x)).astype(np.float32) + 3
    owners = np.repeat(np.arange(n), rng.integers(0, 5, n))
    y = sparse.random_array((len(owners), dim_y), density=0.4, rng=rng, dtype=np.float32, format="csr")
    return x, y, owners


def accumulate(*blocks: tuple[np.ndarray, sparse.csr_array, np.ndarray]) -> Moments:
    accumulator = MomentsAccumulator(blocks[0][0].shape[1], blocks[0][1].shape[1], threads=2)
    for block in blocks:
        accumulator.add(*block)
    return accumulator.result()


def dense(x: np.ndarray, y: sparse.csr_array, owners: np.ndarray, weight: float = 1) -> Moments:
    """The oracle: one row for every pair, in float64, centred after the fact."""
    a, b = x[owners].astype(np.float64), y.toarray().astype(np.float64)
    mean_x, mean_y = a.mean(axis=0), b.mean(axis=0)
    a, b = a - mean_x, b - mean_y
    return Moments(weight * len(a), mean_x, mean_y, weight * a.T @ a, weight * a.T @ b, weight * b.T @ b)


def assert_same(left: Moments, right: Moments, tolerance: float = 1e-5) -> None:
    assert left.n == pytest.approx(right.n)
    for name in ("mean_x", "mean_y", "xx", "xy", "yy"):
        expected = getattr(right, name)
        np.testing.assert_allclose(getattr(left, name), expected, atol=tolerance * np.abs(expected).max(), err_msg=name)


def test_subtraction_leaves_a_shard_out() -> None:
    first, second = make_pairs(4, 80), make_pairs(5, 70)
    total = accumulate(first, second)
    assert_same(total - accumulate(second), dense(*first), 1e-4)


def test_a_distant_mean_does_not_cost_the_variance() -> None:
    rng = np.random.default_rng(9)
    x = (100 + 0.1 * rng.standard_normal((5000, 3))).astype(np.float32)
    y = sparse.csr_array(rng.random((5000, 2), dtype=np.float32))
    blocks = [(x[i : i + 500], y[i : i + 500], np.arange(500)) for i in range(0, 5000, 500)]
    variance = np.diag(accumulate(*blocks).xx) / 5000
    np.testing.assert_allclose(variance, x.astype(np.float64).var(axis=0), rtol=1e-4)
