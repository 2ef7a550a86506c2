"""Charts: every point inside the frame, ticks around the values, labels escaped."""

import re

import numpy as np
import pytest

from pipeline.report.charts import (
    EDGE,
    HEIGHT,
    NAMES,
    ROW_WIDTH,
    WIDTH,
    Chart,
    Line,
    draw_bars,
    draw_intervals,
    draw_logs,
)

PLOT = ROW_WIDTH - NAMES - EDGE


@pytest.mark.parametrize("values", [(3.0,), (0.0, 0.0), (-2.0, 5.5, 1.0), (0.31, 0.32), (1e-7, 3e-7)])
def test_points_lie_inside_the_frame_in_their_order(values: tuple[float, ...]) -> None:
    svg = Chart("a", "x", "y", [Line("l", list(enumerate(values)))]).svg
    path = re.search(r'class="line line-0" d="M([^"]+)"', svg)[1]
    points = np.array([tuple(map(float, point.split())) for point in path.split("L")])
    assert ((points >= 0) & (points <= (WIDTH, HEIGHT))).all()
    assert (np.argsort(points[:, 1], kind="stable") == np.argsort(-np.array(values), kind="stable")).all()


@pytest.mark.parametrize(
    ("xs", "logarithmic", "ticks"),
    [((0.13, 0.58), False, [0, 0.2, 0.4, 0.6]), ((0.03, 0.3, 30), True, [0.01, 0.1, 1, 10, 100])],
)
def test_ticks_are_round_and_around_the_values(xs: tuple[float, ...], logarithmic: bool, ticks: list[float]) -> None:
    svg = Chart("a", "ridge", "y", [Line("l", [(x, x) for x in xs])], logarithmic).svg
    assert list(map(float, re.findall(r'<text class="x"[^>]*>([^<]+)</text>', svg)[:-1])) == ticks


def test_labels_are_escaped() -> None:
    assert "<script" not in Chart("<script>", "<script>", "y", [Line("l", [(0, 1), (1, 2)])]).svg
    assert "<b>" not in draw_bars("<b>", {"<b>": (1.0, "<b>")})


def test_logs_are_drawn_as_far_as_they_go() -> None:
    fitted = {
        "trials": [{"image_ridge": r, "recall_sum": 10 * r} for r in (1.0, 2.0, 2.0)] + [{"recall_sum": 3}],
        "train_correlations": [0.9, 0.8],
        "dev_correlations": [0.5, 0.4],
    }
    trained = {"history": [{"epoch": 0, "dev": 100.0}, {"epoch": 1, "dev": 120.0}]}
    ridges, correlations, curves = draw_logs({"ncca": fitted, "lstm": trained, "other": {}})
    assert ridges.lines == [Line("ncca", [(1.0, 10.0), (2.0, 20.0)])]
    assert [line.label for line in correlations.lines] == ["training", "held out"]
    assert curves.lines == [Line("lstm", [(1, 100.0), (2, 120.0)])]
    assert draw_logs({"other": {}}) == []


def test_dots_and_intervals_stand_where_their_values_are() -> None:
    rows = {"ncca": [(50.0, (40.0, 60.0)), (25.0, None)], "<b>": [(100.0, (90.0, 120.0)), (0.0, (0.0, 1.0))]}
    svg = draw_intervals("Recall", rows, ["one way", "the other"])
    places = [(float(x) - NAMES) / PLOT for x in re.findall('cx="([0-9.]+)"', svg)]
    assert places == pytest.approx([0.5, 0.25, 1, 0], abs=1e-3)
    ends = [
        ((float(low) - NAMES) / PLOT, (float(high) - NAMES) / PLOT)
        for low, high in re.findall('class="line" d="M([0-9.]+) [0-9.]+H([0-9.]+)"', svg)
    ]
    assert ends == [pytest.approx(end, abs=1e-3) for end in ((0.4, 0.6), (0.9, 1), (0, 0.01))]
    assert "<b>" not in svg and "ncca, the other: 25.0" in svg


def test_the_longest_bar_is_of_the_greatest_value() -> None:
    svg = draw_bars("Time", {"extract": (30.0, "30.0 s"), "fit": (10.0, "10.0 s"), "report": (0.0, "0.0 s")})
    assert [float(width) / PLOT for width in re.findall('width="([0-9.]+)" height', svg)] == pytest.approx(
        [1, 1 / 3, 0], abs=1e-3
    )
    assert "<svg" in draw_bars("Nothing", {"fit": (0.0, "0.0 s")})
