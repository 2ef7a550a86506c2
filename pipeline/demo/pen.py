"""A pen that draws one figure in the figure's own coordinates."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from PIL import Image, ImageDraw

Colour = tuple[int, int, int]
Point = tuple[float, float]

INK = (28, 24, 26)
EYE = (252, 252, 248)

SUPERSAMPLING = 2
HALF_WIDTH, TOP, BOTTOM = 0.85, 1.3, -0.15
"""The sheet: x from -HALF_WIDTH to HALF_WIDTH, y from BOTTOM to TOP, in units; the figure stands at (0, 0)."""

_CIRCLE = tuple((math.cos(math.tau * i / 28), math.sin(math.tau * i / 28)) for i in range(28))


@dataclass(frozen=True)
class Look:
    """A figure's colours: its own in three tones, and those that no sentence mentions."""

    main: Colour
    shade: Colour
    light: Colour
    skin: Colour
    hair: Colour
    trousers: Colour


def mix(a: Colour, b: Colour, share: float) -> Colour:
    """`a` with `share` of `b` in it."""
    red, green, blue = (round(p + (q - p) * share) for p, q in zip(a, b, strict=True))
    return red, green, blue


class Pen:
    """x to the right, y up, lengths in units of `unit` pixels; a figure faces right.

    It draws on a transparent sheet `SUPERSAMPLING` times larger than the sprite that `lift` returns.
    """

    def __init__(self, unit: float, draft: float = 0.0) -> None:
        """`draft`: how deep in water the figure is; what lies below y = draft is cut off."""
        self._unit = unit * SUPERSAMPLING
        self._origin = (HALF_WIDTH * self._unit, (TOP + draft) * self._unit)
        self._draft = draft
        size = (round(2 * HALF_WIDTH * self._unit), round((TOP - BOTTOM) * self._unit))
        self._sheet = Image.new("RGBA", size)
        self._draw = ImageDraw.Draw(self._sheet)
        self._turn: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)

    @contextmanager
    def tilted(self, degrees: float, about: Point) -> Iterator[None]:
        """All that is drawn inside is turned anticlockwise about a point."""
        before = self._turn
        cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        x, y = about
        self._turn = (cos, sin, x - cos * x + sin * y, y - sin * x - cos * y)
        yield
        self._turn = before

    def shape(self, points: Iterable[Point], colour: Colour) -> None:
        """A filled polygon."""
        self._draw.polygon([self._pixel(x, y) for x, y in points], fill=colour)

    def oval(self, x: float, y: float, rx: float, ry: float, colour: Colour, degrees: float = 0) -> None:
        """A filled ellipse about (x, y), turned anticlockwise."""
        cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        self.shape(((x + rx * u * cos - ry * v * sin, y + rx * u * sin + ry * v * cos) for u, v in _CIRCLE), colour)

    def box(self, left: float, bottom: float, right: float, top: float, colour: Colour) -> None:
        self.shape(((left, bottom), (right, bottom), (right, top), (left, top)), colour)

    def line(self, points: Iterable[Point], width: float, colour: Colour) -> None:
        """A line through `points` with round joints and ends."""
        pixels = [self._pixel(x, y) for x, y in points]
        thickness = max(1, round(width * self._unit))
        self._draw.line(pixels, fill=colour, width=thickness)
        if thickness > 2:
            radius = (thickness - 1) / 2
            for x, y in pixels:
                self._draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)

    def eye(self, x: float, y: float, radius: float, closed: bool = False) -> None:
        if closed:
            self.line([(x - radius, y), (x, y - 0.5 * radius), (x + radius, y)], 0.016, INK)
        else:
            self.oval(x, y, radius, radius, EYE)
            self.oval(x + 0.3 * radius, y, 0.62 * radius, 0.62 * radius, INK)

    def lift(self) -> Image.Image:
        """The drawing as an RGBA sprite, the ground (or the waterline) TOP units below its upper edge."""
        if self._draft:
            self._sheet.paste((0, 0, 0, 0), (0, round(TOP * self._unit), *self._sheet.size))
        return self._sheet.reduce(SUPERSAMPLING)

    def _pixel(self, x: float, y: float) -> Point:
        cos, sin, dx, dy = self._turn
        x, y = cos * x - sin * y + dx, sin * x + cos * y + dy
        return self._origin[0] + x * self._unit, self._origin[1] - y * self._unit
