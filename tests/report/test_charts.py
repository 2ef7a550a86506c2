"""Tests of charts: the points are inside the frame, the ticks enclose the values, and the labels are escaped."""

import re

import numpy as np
import pytest

from pipeline.report.charts import (
    HEIGHT,
    NAMES_WIDTH,
    ROW_WIDTH,
    VALUES_WIDTH,
    WIDTH,
    Chart,
    Line,
    draw_bars,
    draw_intervals,
)

PLOT = ROW_WIDTH - NAMES_WIDTH - VALUES_WIDTH


@pytest.mark.parametrize("values", [(3.0,), (0.0, 0.0), (-2.0, 5.5, 1.0), (0.31, 0.32), (1e-7, 3e-7)])
def test_points_are_inside_the_frame_in_the_order_of_their_values(values: tuple[float, ...]) -> None:
    svg = Chart("a", "x", "y", [Line("l", list(enumerate(values)))]).svg
    path = re.search(r'class="line line-0" d="M([^"]+)"', svg)[1]
    points = np.array([tuple(map(float, point.split())) for point in path.split("L")])
    assert ((points >= 0) & (points <= (WIDTH, HEIGHT))).all()
    assert (np.argsort(points[:, 1], kind="stable") == np.argsort(-np.array(values), kind="stable")).all()


def test_labels_are_escaped() -> None:
    assert "<script" not in Chart("<script>", "<script>", "y", [Line("l", [(0, 1), (1, 2)])]).svg
    assert "<b>" not in draw_bars("<b>", {"<b>": (1.0, "<b>")})


def test_dots_and_intervals_have_the_positions_of_their_values() -> None:
    rows = {"ncca": [(50.0, (40.0, 60.0)), (25.0, None)], "<b>": [(100.0, (90.0, 120.0)), (0.0, (0.0, 1.0))]}
    svg = draw_intervals("Recall", rows, ["one way", "the other"])
    places = [(float(x) - NAMES_WIDTH) / PLOT for x in re.findall('cx="([0-9.]+)"', svg)]
    assert places == pytest.approx([0.5, 0.25, 1, 0], abs=1e-3)
    ends = [
        ((float(low) - NAMES_WIDTH) / PLOT, (float(high) - NAMES_WIDTH) / PLOT)
        for low, high in re.findall('class="line" d="M([0-9.]+) [0-9.]+H([0-9.]+)"', svg)
    ]
    assert ends == [pytest.approx(end, abs=1e-3) for end in ((0.4, 0.6), (0.9, 1), (0, 0.01))]
    assert "<b>" not in svg and "ncca, the other: 25.0" in svg
