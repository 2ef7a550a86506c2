"""Charts of one line a name: where their dots, intervals and bars stand."""

import re

import pytest

from pipeline.report.bars import EDGE, NAMES, WIDTH, draw_bars, draw_intervals

PLOT = WIDTH - NAMES - EDGE


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
    assert "30.0 s" in svg
    assert "<svg" in draw_bars("Nothing", {"fit": (0.0, "0.0 s")})
