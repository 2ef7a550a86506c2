"""Charts as SVG elements for an HTML page. Charts use the colours of the page's style sheet, and no font or script."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from pipeline.storage.json_files import JsonObject

WIDTH = 360
"""Width of a chart of lines, in units of the SVG element, which the page scales."""
HEIGHT = 220
"""Height of a chart of lines, in units of the SVG element."""
LEFT = 44
"""Left margin of the plot of lines, for the tick labels, in units of the SVG element."""
RIGHT = 14
"""Right margin of the plot of lines, in units of the SVG element."""
TOP = 10
"""Upper margin of the plot of lines, in units of the SVG element."""
BOTTOM = 38
"""Lower margin of the plot of lines, for the tick labels and the name of the axis, in units of the SVG element."""
TICKS = 4
"""Approximate number of ticks on each axis."""
COLOURS = 6
"""Number of colours of lines: the classes `line-0` to `line-5` of the style sheet. Further lines repeat the colours."""
ROW_WIDTH = 640
"""Width of a chart with one row per name, in units of the SVG element."""
NAMES_WIDTH = 180
"""Width of the names on the left of a chart with one row per name, in units of the SVG element."""
VALUES_WIDTH = 80
"""Width of the values on the right of a chart with one row per name, in units of the SVG element."""
ROW_HEIGHT = 26
"""Height of a row of a chart with one row per name, in units of the SVG element."""
HEAD_HEIGHT = 24
"""Height above the first row of a chart with one row per name, for the tick labels, in units of the SVG element."""
MAX_NAME_CHARACTERS = 30
"""Maximum number of characters of a name that are drawn. A longer name is cut and ends with an ellipsis."""
PERCENTS = (0, 20, 40, 60, 80, 100)
"""Ticks of an axis in percent."""

Measured = tuple[float, tuple[float, float] | None]
"""A value and its interval (low, high). The interval is None if it is unknown. All numbers are in percent."""


@dataclass(frozen=True)
class Line:
    """A line through `points` (x, y) from left to right. The legend shows its `label`."""

    label: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Chart:
    """A chart of several lines with the same axes, whose names are `x` and `y`.

    There must be at least one point. With `logarithmic`, the x axis is logarithmic, and all x must be positive.
    """

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    logarithmic: bool = False

    @property
    def svg(self) -> str:
        """The SVG element of the chart, without a visible title and without a legend."""
        xs = [x for line in self.lines for x, _ in line.points]
        ys = [y for line in self.lines for _, y in line.points]
        x_ticks = _decades(xs) if self.logarithmic else _ticks(xs)
        y_ticks = _ticks(ys)
        scale = math.log10 if self.logarithmic else float
        across = _scale([scale(x) for x in [*xs, *x_ticks]], LEFT, WIDTH - RIGHT)
        up = _scale([*ys, *y_ticks], HEIGHT - BOTTOM, TOP)
        parts = []
        for tick in y_ticks:
            parts.append(f'<path class="grid" d="M{LEFT} {up(tick):.1f}H{WIDTH - RIGHT}"/>')
            parts.append(_text("y", LEFT - 6, up(tick) + 3.5, f"{tick:g}"))
        parts += [_text("x", across(scale(tick)), HEIGHT - BOTTOM + 15, f"{tick:g}") for tick in x_ticks]
        parts.append(_text("x", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, self.x))
        for number, line in enumerate(self.lines):
            colour = f"line-{number % COLOURS}"
            points = [(across(scale(x)), up(y)) for x, y in line.points]
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
            parts.append(f'<path class="line {colour}" d="M{path}"/>')
            if len(points) <= 2 * TICKS:
                parts += [f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in points]
        return _svg(self.title, WIDTH, HEIGHT, parts)


def _scale(values: Sequence[float], start: float, end: float):
    """Return the linear function that maps the smallest of `values` to `start` and the largest to `end`."""
    low = min(values)
    high = max(values)
    span = high - low or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def _ticks(values: Sequence[float]) -> list[float]:
    """Return round numbers that span `values`. Their step is 1, 2 or 5 times a power of ten."""
    low = min(values)
    high = max(values)
    rough = (high - low or abs(high) or 1.0) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    return [round(i * step, 12) for i in range(math.floor(low / step), math.ceil(high / step) + 1)]


def _decades(values: Sequence[float]) -> list[float]:
    """Return the powers of ten that span `values`."""
    low = math.floor(math.log10(min(values)))
    high = math.ceil(math.log10(max(values)))
    return [10.0**power for power in range(low, high + 1)]


def draw_logs(logs: Mapping[str, JsonObject]) -> list[Chart]:
    """Draw charts of training logs. `logs` maps the name of a model to its log.

    The charts show the best recall sum on dev for each image ridge, the correlation of each dimension on training pairs
    and held-out pairs (one chart per model), and the recall sum on dev after each epoch. A chart without data in the
    logs is left out.
    """
    charts = []
    ridges = []
    curves = []
    for name, log in logs.items():
        best: dict[float, float] = {}
        for trial in log.get("trials", ()):
            if ridge := trial.get("image_ridge"):
                best[ridge] = max(best.get(ridge, 0.0), trial["recall_sum"])
        if len(best) > 1:
            ridges.append(Line(name, sorted(best.items())))
        if len(log.get("train_correlations", ())) > 1:
            sides = {"training": log["train_correlations"], "held out": log["dev_correlations"]}
            lines = [Line(side, list(enumerate(values, start=1))) for side, values in sides.items() if values]
            charts.append(Chart(f"Correlations of {name}", "dimension", "correlation", lines))
        history = log.get("history", ())
        judged = "dev" in (history or [{}])[0] and "recall_sum" in log["chosen"]  # A refit is not evaluated on dev.
        if len(history) > 1 and judged:
            curves.append(Line(name, [(epoch["epoch"] + 1, epoch["dev"]) for epoch in history]))
    if ridges:
        title = "The effect of the image ridge"
        charts.insert(0, Chart(title, "image ridge, relative", "recall sum on dev", ridges, logarithmic=True))
    if curves:
        charts.append(Chart("Learning curves", "epoch", "recall sum on dev", curves))
    return charts


def draw_intervals(title: str, rows: Mapping[str, Sequence[Measured]], lines: Sequence[str]) -> str:
    """Draw a chart of values with their intervals, from 0 to 100 percent, and return its SVG element.

    The chart has one row for each name in `rows`. All rows have as many values as there are names in `lines`, such as
    the names of the directions. Value k of each row is drawn as a dot and an interval in colour k. If the pointer rests
    on a dot, the value is shown with the name of the row and name k of `lines`. The chart has no legend.
    """
    height = HEAD_HEIGHT + ROW_HEIGHT * len(rows)
    across = _scale([0, 100], NAMES_WIDTH, ROW_WIDTH - VALUES_WIDTH)
    parts = []
    for tick in PERCENTS:
        parts.append(f'<path class="grid" d="M{across(tick):.1f} {HEAD_HEIGHT - 6}V{height}"/>')
        parts.append(_text("x", across(tick), 12, str(tick)))
    for row, (name, values) in enumerate(rows.items()):
        parts.append(_name(name, row))
        for number, (value, interval) in enumerate(values):
            y = HEAD_HEIGHT + ROW_HEIGHT * (row + (number + 1) / (len(values) + 1))
            parts.append(f'<g class="line-{number}">')
            if interval is not None:
                low, high = (across(min(max(end, 0.0), 100.0)) for end in interval)
                parts.append(f'<path class="line" d="M{low:.1f} {y:.1f}H{high:.1f}"/>')
            said = escape(f"{name}, {lines[number]}: {value:.1f}")
            parts.append(f'<circle cx="{across(value):.1f}" cy="{y:.1f}" r="3.5"><title>{said}</title></circle></g>')
        figures = " / ".join(f"{value:.0f}" for value, _ in values)
        parts.append(_text("", ROW_WIDTH - VALUES_WIDTH + 6, HEAD_HEIGHT + ROW_HEIGHT * (row + 0.65), figures))
    return _svg(title, ROW_WIDTH, height, parts)


def draw_bars(title: str, rows: Mapping[str, tuple[float, str]]) -> str:
    """Draw a chart with a bar for each name in `rows`, which maps a name to a value and a text. Return its SVG element.

    The length of the bar is proportional to the value, and the text is written at the end of the bar.
    """
    across = _scale([0, *(value for value, _ in rows.values())], NAMES_WIDTH, ROW_WIDTH - VALUES_WIDTH)
    parts = []
    for row, (name, (value, text)) in enumerate(rows.items()):
        y = HEAD_HEIGHT + ROW_HEIGHT * row - 12
        width = across(value) - NAMES_WIDTH
        size = f'width="{width:.1f}" height="{ROW_HEIGHT - 10}"'
        parts.append(_name(name, row - 0.63))
        parts.append(f'<rect class="bar" x="{NAMES_WIDTH}" y="{y:.1f}" {size}/>')
        parts.append(_text("", across(value) + 6, y + 12.5, text))
    return _svg(title, ROW_WIDTH, ROW_HEIGHT * len(rows) + 12, parts)


def _name(name: str, row: float) -> str:
    """Draw the name of a row. A long name is shortened, and is shown in full when the pointer rests on it."""
    short = name if len(name) <= MAX_NAME_CHARACTERS else f"{name[: MAX_NAME_CHARACTERS - 1]}…"
    return _text("y", NAMES_WIDTH - 8, HEAD_HEIGHT + ROW_HEIGHT * (row + 0.65), short, name)


def _text(kind: str, x: float, y: float, text: str, whole: str = "") -> str:
    """Draw a text at (x, y). The class `kind` of the style sheet says how it is aligned. `whole` is shown when the
    pointer rests on the text."""
    title = f"<title>{escape(whole)}</title>" if whole else ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}{title}</text>'


def _svg(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    head = f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
    return "".join([head, *parts, "</svg>"])
