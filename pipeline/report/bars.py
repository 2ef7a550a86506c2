"""Charts of one line a name, as SVG inside the page: measures with their intervals, and bars."""

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, NAMES, EDGE = 640, 150, 60
"""Of a chart, of the names on its left, and of the room right of the plot, in its units."""
STEP, HEAD = 26, 24
LONGEST_NAME = 24
TICKS = (0, 20, 40, 60, 80, 100)

Measured = tuple[float, tuple[float, float] | None]
"""A value and its interval, in percent."""


def draw_intervals(title: str, rows: Mapping[str, Sequence[Measured]], lines: Sequence[str]) -> str:
    """Dots with their intervals from 0 to 100 percent: for each name a dot in the colour of each of `lines`, which
    stand in a legend elsewhere."""
    parts, height = [], HEAD + STEP * len(rows)
    for tick in TICKS:
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
                parts.append(f'<text x="{WIDTH - EDGE + 6}" y="{HEAD + STEP * (place + 0.65):.1f}">{best}</text>')
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
    return NAMES + share * (WIDTH - NAMES - EDGE)


def _name(name: str, place: float) -> str:
    short = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
    text = f"{escape(short)}<title>{escape(name)}</title>"
    return f'<text class="y" x="{NAMES - 8}" y="{HEAD + STEP * (place + 0.65):.1f}">{text}</text>'


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    head = f'<svg class="chart" viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
    return "".join([head, *parts, "</svg>"])
