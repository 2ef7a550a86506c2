"""Where regions lie: against a loop, at any scale, and as it is beside normalised features."""

import numpy as np
from made_up_models import Block, draw_boxes

from pipeline.models.linear.views import ImageView
from pipeline.models.neural.task import WHOLE, RegionView, locate

LENGTHS = (4, 1, 0, 7)
FEATURES = ImageView(("one", "two"), (3, 2), ("sqrt", "l2"))


def make_block(*scales: float) -> Block:
    """Images of LENGTHS regions, image after image; each image is as many times as large as `scales` says."""
    boxes = np.concatenate([scale * draw_boxes(k) for k, scale in zip(LENGTHS, scales, strict=True)])
    features = np.random.default_rng(0).standard_normal((len(boxes), 5), dtype=np.float32)
    return Block(features, boxes.astype(np.float32), np.ones(len(boxes)), np.cumsum([0, *LENGTHS]))


def test_a_region_lies_where_its_corners_are() -> None:
    block = make_block(1, 1, 1, 1)
    found = locate(block.boxes, block.offsets)
    for (x1, y1, x2, y2), row in zip(block.boxes, found, strict=True):
        width, height = (x2 - x1) / 30, (y2 - y1) / 20
        shares = [x1 / 30, y1 / 20, x2 / 30, y2 / 20, width, height, (width * height) ** 0.5]
        np.testing.assert_allclose(row, np.sqrt(shares) / sum(shares) ** 0.5, rtol=1e-5)
    np.testing.assert_array_equal(found[[0, 4, 5]], np.tile(WHOLE, (3, 1)))
    assert found.dtype == np.float32 and locate(np.zeros((0, 4)), np.zeros(1, np.int64)).shape == (0, 7)


def test_geometry_stands_unchanged_beside_normalised_features() -> None:
    block = make_block(1, 2, 1, 1)
    bare, view = RegionView(FEATURES, geometry=False), RegionView(FEATURES, geometry=True)
    assert (bare.dim, view.dim, view.encoders) == (5, 12, ("one", "two"))
    features, x = bare.stack(block), view.stack(block)
    np.testing.assert_array_equal(features, FEATURES.stack(FEATURES.split(block.features)))
    np.testing.assert_array_equal(x, np.hstack([features, locate(block.boxes, block.offsets)]))
    rows = np.array([9, 1, 1])
    np.testing.assert_array_equal(view.stack(block, rows), x[rows])
    through = view.stack(block, rows, through=FEATURES.select(["two"]))
    np.testing.assert_array_equal(through, x[rows][:, 3:])
