"""Charts as SVG inside the page: they take its colours, light or dark, and need no font or script."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from pipeline.storage.json_files import JsonObject

WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 10, 38
"""Margins around the plot of lines, where the ticks and what they count stand."""
TICKS = 4
"""About how many on each axis."""
COLOURS = 6
"""Classes `line-0` to `line-5` of the style sheet."""
ROW_WIDTH, NAMES, EDGE = 640, 180, 80
"""Of a chart with a row a name, of the names on its left, and of the room right of the plot, in its units."""
STEP, HEAD = 26, 24
LONGEST_NAME = 30
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


def draw_logs(logs: Mapping[str, JsonObject]) -> list[Chart]:
    """Charts of the training logs, model -> log, of what the logs have numbers for: the best recall sum on dev at every
    image ridge, whatever the other choices; for each model the correlation of every dimension in training and held out;
    and the recall sum on dev after every epoch."""
    charts, ridges, curves = [], [], []
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
        judged = "dev" in (history or [{}])[0] and "recall_sum" in log["chosen"]  # a refit is judged by nothing
        if len(history) > 1 and judged:
            curves.append(Line(name, [(epoch["epoch"] + 1, epoch["dev"]) for epoch in history]))
    if ridges:
        title = "The effect of the image ridge"
        charts.insert(0, Chart(title, "image ridge, relative", "recall sum on dev", ridges, logarithmic=True))
    if curves:
        charts.append(Chart("Learning curves", "epoch", "recall sum on dev", curves))
    return charts


def draw_intervals(title: str, rows: Mapping[str, Sequence[Measured]], lines: Sequence[str]) -> str:
    """Dots with their intervals from 0 to 100 percent: for each name a dot in the colour of each of `lines`, which
    stand in a legend elsewhere, and the values in figures."""
    height = HEAD + STEP * len(rows)
    across = _scale([0, 100], NAMES, ROW_WIDTH - EDGE)
    parts = []
    for tick in PERCENTS:
        parts.append(f'<path class="grid" d="M{across(tick):.1f} {HEAD - 6}V{height}"/>')
        parts.append(_text("x", across(tick), 12, str(tick)))
    for place, (name, values) in enumerate(rows.items()):
        parts.append(_name(name, place))
        for number, (value, interval) in enumerate(values):
            y = HEAD + STEP * (place + (number + 1) / (len(values) + 1))
            parts.append(f'<g class="line-{number}">')
            if interval is not None:
                low, high = (across(min(max(end, 0.0), 100.0)) for end in interval)
                parts.append(f'<path class="line" d="M{low:.1f} {y:.1f}H{high:.1f}"/>')
            said = escape(f"{name}, {lines[number]}: {value:.1f}")
            parts.append(f'<circle cx="{across(value):.1f}" cy="{y:.1f}" r="3.5"><title>{said}</title></circle></g>')
        figures = " / ".join(f"{value:.0f}" for value, _ in values)
        parts.append(_text("", ROW_WIDTH - EDGE + 6, HEAD + STEP * (place + 0.65), figures))
    return _svg(title, ROW_WIDTH, height, parts)


def draw_bars(title: str, rows: Mapping[str, tuple[float, str]]) -> str:
    """A bar for each name, as long as its value beside the greatest, with what is written beside it."""
    across = _scale([0, *(value for value, _ in rows.values())], NAMES, ROW_WIDTH - EDGE)
    parts = []
    for place, (name, (value, text)) in enumerate(rows.items()):
        y = HEAD + STEP * place - 12
        width = across(value) - NAMES
        parts.append(_name(name, place - 0.63))
        parts.append(f'<rect class="bar" x="{NAMES}" y="{y:.1f}" width="{width:.1f}" height="{STEP - 10}"/>')
        parts.append(_text("", across(value) + 6, y + 12.5, text))
    return _svg(title, ROW_WIDTH, STEP * len(rows) + 12, parts)


def _name(name: str, place: float) -> str:
    short = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
    return _text("y", NAMES - 8, HEAD + STEP * (place + 0.65), short, name)


def _text(kind: str, x: float, y: float, text: str, whole: str = "") -> str:
    """`whole` is shown where a pointer rests on the text; the class `kind` says how it stands at (x, y)."""
    title = f"<title>{escape(whole)}</title>" if whole else ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}{title}</text>'


def _svg(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    head = f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
    return "".join([head, *parts, "</svg>"])
