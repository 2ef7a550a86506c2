"""Line charts as SVG inside the page: they take its colours, light or dark, and need no font or script."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 44, 8, 10, 38
"""Margins around the plot, where the ticks and what they count stand."""
TICKS = 4
"""About how many on each axis."""
COLOURS = 6
"""Classes `line-0` to `line-5` of the style sheet."""


@dataclass(frozen=True)
class Line:
    """Points (x, y) from left to right; `label` stands in the legend."""

    label: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Chart:
    """Lines over one pair of axes; with `logarithmic`, x (above 0) is drawn by its logarithm."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    logarithmic: bool = False

    @property
    def svg(self) -> str:
        """The chart without its title and legend."""
        return _draw(self)


def _draw(chart: Chart) -> str:
    xs = [x for line in chart.lines for x, _ in line.points]
    ys = [y for line in chart.lines for _, y in line.points]
    x_ticks, y_ticks = _decades(xs) if chart.logarithmic else _ticks(xs), _ticks(ys)
    scale = math.log10 if chart.logarithmic else float
    across = _scale([scale(x) for x in [*xs, *x_ticks]], LEFT, WIDTH - RIGHT)
    up = _scale([*ys, *y_ticks], HEIGHT - BOTTOM, TOP)
    parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title)}">']
    for tick in y_ticks:
        parts.append(f'<path class="grid" d="M{LEFT} {up(tick):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="y" x="{LEFT - 6}" y="{up(tick) + 3.5:.1f}">{tick:g}</text>')
    for tick in x_ticks:
        parts.append(f'<text class="x" x="{across(scale(tick)):.1f}" y="{HEIGHT - BOTTOM + 15}">{tick:g}</text>')
    parts.append(f'<text class="x" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}">{escape(chart.x)}</text>')
    for number, line in enumerate(chart.lines):
        points = [(across(scale(x)), up(y)) for x, y in line.points]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        parts.append(f'<path class="line line-{number % COLOURS}" d="M{path}"/>')
        if len(points) <= 2 * TICKS:
            parts += [f'<circle class="line-{number % COLOURS}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in points]
    return "".join([*parts, "</svg>"])


def _scale(values: Sequence[float], start: float, end: float):
    """The linear map of the range of `values` to that from `start` to `end`."""
    low, high = min(values), max(values)
    span = high - low or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def _ticks(values: Sequence[float]) -> list[float]:
    """Round numbers that span `values`: steps of 1, 2 or 5 times a power of ten."""
    low, high = min(values), max(values)
    rough = (high - low or abs(high) or 1.0) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    return [round(i * step, 12) for i in range(math.floor(low / step), math.ceil(high / step) + 1)]


def _decades(values: Sequence[float]) -> list[float]:
    """The powers of ten around `values`."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [10.0**power for power in range(low, high + 1)]
