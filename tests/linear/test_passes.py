"""Products that keep no lock, and blocks that are made ahead."""

import numpy as np
import pytest

from pipeline.models.linear.accumulation import add_gram


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 1), (0, 5), (7, 3), (40, 65)])
def test_the_upper_triangle_gains_the_products(dtype: type, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    z, before = rng.standard_normal(shape).astype(dtype), rng.standard_normal((shape[1], shape[1])).astype(dtype)
    for rows in (z, np.asfortranarray(z), z[::-1]):
        total = np.array(before, order="F")
        add_gram(total, rows, 3)
        expected = before.astype(np.float64) + 3 * (z.astype(np.float64).T @ z.astype(np.float64))
        np.testing.assert_allclose(np.triu(total), np.triu(expected), rtol=1e-4, atol=1e-4)
        assert (np.tril(total, -1) == np.tril(before, -1)).all()
