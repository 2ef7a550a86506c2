"""The images that Figure 3 of Gong et al. 2014 lays beside a query."""

import numpy as np
import pytest

from pipeline.report.transfer import find_nearest


@pytest.mark.parametrize("size", [1, 7, 40])
def test_the_nearest_images_are_those_of_a_plain_sort_whatever_the_blocks(size: int) -> None:
    rng = np.random.default_rng(0)
    queries, gallery, ids = rng.standard_normal((3, 5)), rng.standard_normal((40, 5)), rng.permutation(100)[:40]
    blocks = [(ids[i : i + size], gallery[i : i + size].astype(np.float32)) for i in range(0, 40, size)]
    for query, found in zip(queries, find_nearest(queries, blocks, 4), strict=True):
        assert found.tolist() == ids[np.argsort(np.linalg.norm(gallery - query, axis=1))[:4]].tolist()


def test_a_small_gallery_has_fewer() -> None:
    assert find_nearest(np.ones((2, 3)), [(np.array([5, 9]), np.eye(3)[:2])], 4).shape == (2, 2)
