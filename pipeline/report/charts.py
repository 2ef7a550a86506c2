"""Charts as SVG inside the page: they take its colours, light or dark, and need no font or script."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 44, 8, 10, 38
"""Margins around the plot of lines, where the ticks and what they count stand."""
TICKS = 4
"""About how many on each axis."""
COLOURS = 6
"""Classes `line-0` to `line-5` of the style sheet."""
ROW_WIDTH, NAMES, EDGE = 640, 150, 60
"""Of a chart with a row a name, of the names on its left, and of the room right of the plot, in its units."""
STEP, HEAD = 26, 24
LONGEST_NAME = 24
PERCENTS = (0, 20, 40, 60, 80, 100)

Measured = tuple[float, tuple[float, float] | None]
"""A value and its interval, in percent."""


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


def draw_logs(logs: Mapping[str, Mapping[str, Any]]) -> list[Chart]:
    """Charts of the training logs, model -> log, of what the logs have numbers for."""
    return [*_ridges(logs), *_correlations(logs), *_histories(logs)]


def _ridges(logs: Mapping[str, Mapping[str, Any]]) -> list[Chart]:
    """The best recall sum on dev at every image ridge, whatever the other choices."""
    lines = []
    for name, log in logs.items():
        best: dict[float, float] = {}
        for trial in log.get("trials", ()):
            if ridge := trial.get("image_ridge"):
                best[ridge] = max(best.get(ridge, 0.0), trial["recall_sum"])
        if len(best) > 1:
            lines.append(Line(name, sorted(best.items())))
    title = "The effect of the image ridge"
    return [Chart(title, "image ridge, relative", "recall sum on dev", lines, logarithmic=True)] if lines else []


def _correlations(logs: Mapping[str, Mapping[str, Any]]) -> list[Chart]:
    """The correlation of every dimension in training and held out, a chart for each model."""
    charts = []
    for name, log in logs.items():
        if len(log.get("train_correlations", ())) > 1:
            lines = [
                Line(label, list(enumerate(log[key], start=1)))
                for label, key in (("training", "train_correlations"), ("held out", "dev_correlations"))
                if log[key]
            ]
            charts.append(Chart(f"Correlations of {name}", "dimension", "correlation", lines))
    return charts


def _histories(logs: Mapping[str, Mapping[str, Any]]) -> list[Chart]:
    """The recall sum on dev after every epoch."""
    lines = [
        Line(name, [(epoch["epoch"] + 1, epoch["dev"]) for epoch in log["history"]])
        for name, log in logs.items()
        if len(log.get("history", ())) > 1 and "dev" in log["history"][0]  # a refit is judged by nothing
    ]
    return [Chart("Learning curves", "epoch", "recall sum on dev", lines)] if lines else []


def draw_intervals(title: str, rows: Mapping[str, Sequence[Measured]], lines: Sequence[str]) -> str:
    """Dots with their intervals from 0 to 100 percent: for each name a dot in the colour of each of `lines`, which
    stand in a legend elsewhere."""
    parts, height = [], HEAD + STEP * len(rows)
    for tick in PERCENTS:
        x = _across(tick / 100)
        parts.append(
            f'<path class="grid" d="M{x:.1f} {HEAD - 6}V{height}"/><text class="x" x="{x:.1f}" y="12">{tick}</text>'
        )
    for place, (name, values) in enumerate(rows.items()):
        parts.append(_name(name, place))
        for number, (value, interval) in enumerate(values):
            y = HEAD + STEP * (place + (number + 1) / (len(values) + 1))
            parts.append(f'<g class="line-{number}">')
            if interval is not None:
                low, high = (_across(min(max(end, 0.0), 100.0) / 100) for end in interval)
                parts.append(f'<path class="line" d="M{low:.1f} {y:.1f}H{high:.1f}"/>')
            parts.append(f'<circle cx="{_across(value / 100):.1f}" cy="{y:.1f}" r="3.5"><title>')
            parts.append(escape(f"{name}, {lines[number]}: {value:.1f}") + "</title></circle></g>")
            if number == len(values) - 1:
                best = " / ".join(f"{one:.0f}" for one, _ in values)
                parts.append(f'<text x="{ROW_WIDTH - EDGE + 6}" y="{HEAD + STEP * (place + 0.65):.1f}">{best}</text>')
    return _svg(title, height, parts)


def draw_bars(title: str, rows: Mapping[str, tuple[float, str]]) -> str:
    """A bar for each name, as long as its value beside the greatest, with what is written beside it."""
    greatest = max((value for value, _ in rows.values()), default=0.0) or 1.0
    parts = []
    for place, (name, (value, text)) in enumerate(rows.items()):
        length, y = (_across(1) - NAMES) * value / greatest, HEAD + STEP * place - 12
        parts.append(_name(name, place - 0.45))
        parts.append(f'<rect class="bar" x="{NAMES}" y="{y:.1f}" width="{length:.1f}" height="{STEP - 10}"/>')
        parts.append(f'<text x="{NAMES + length + 6:.1f}" y="{y + 12.5:.1f}">{escape(text)}</text>')
    return _svg(title, STEP * len(rows) + 12, parts)


def _across(share: float) -> float:
    return NAMES + share * (ROW_WIDTH - NAMES - EDGE)


def _name(name: str, place: float) -> str:
    short = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
    text = f"{escape(short)}<title>{escape(name)}</title>"
    return f'<text class="y" x="{NAMES - 8}" y="{HEAD + STEP * (place + 0.65):.1f}">{text}</text>'


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    head = f'<svg class="chart" viewBox="0 0 {ROW_WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
    return "".join([head, *parts, "</svg>"])
