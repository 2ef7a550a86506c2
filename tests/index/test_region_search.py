"""The nearest regions for some words, against a loop."""

import numpy as np
import pytest

from pipeline.index.region_search import nearest_regions


@pytest.mark.parametrize("share", [None, 0.5, 0.0])
def test_the_best_region_of_each_allowed_image(share: float | None) -> None:
    rng = np.random.default_rng(0)
    rows, vectors, query = rng.integers(9, size=60), rng.standard_normal((60, 5)), rng.standard_normal(5)
    allowed = None if share is None else rng.random(9) < share
    best: dict[int, int] = {}
    for place in np.argsort(-(vectors @ query)):
        if allowed is None or allowed[rows[place]]:
            best.setdefault(int(rows[place]), int(place))
    places, scores = nearest_regions(rows, vectors, query, 4, allowed)
    assert places.tolist() == list(best.values())[:4]
    np.testing.assert_allclose(scores, (vectors @ query)[places])
