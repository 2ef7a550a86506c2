"""A pen that draws a figure in drawing units, and functions that draw vehicles, toys, trees, furniture and houses."""

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
"""The limits of a drawing, in drawing units: x is from -HALF_WIDTH to HALF_WIDTH, and y from BOTTOM to TOP. The figure
stands on the ground at (0, 0)."""

_CIRCLE = tuple((math.cos(math.tau * i / 28), math.sin(math.tau * i / 28)) for i in range(28))


@dataclass(frozen=True)
class Look:
    """The colours of a figure: the colour that captions mention (`main`), a darker and a lighter tone of this colour,
    and the colours of a person's skin, hair and trousers, which captions never mention."""

    main: Colour
    shade: Colour
    light: Colour
    skin: Colour
    hair: Colour
    trousers: Colour


def mix(a: Colour, b: Colour, share: float) -> Colour:
    """Return a mixture of two colours. `share`, from 0 to 1, is the share of `b`."""
    red, green, blue = (round(p + (q - p) * share) for p, q in zip(a, b, strict=True))
    return red, green, blue


class Pen:
    """A pen that draws a figure on a transparent sheet. All lengths are in drawing units of `unit` pixels.

    x points to the right and y up, and figures face right. The sheet has SUPERSAMPLING times the width and height of
    the sprite that `lift` returns.
    """

    def __init__(self, unit: float, draft: float = 0.0) -> None:
        """Begin an empty sheet. If `draft` is above 0, the figure is in water up to the height y = `draft`. `lift` then
        erases everything below this waterline, and puts the waterline where other sprites have the ground."""
        self._unit = unit * SUPERSAMPLING
        self._origin = (HALF_WIDTH * self._unit, (TOP + draft) * self._unit)
        self._draft = draft
        size = (round(2 * HALF_WIDTH * self._unit), round((TOP - BOTTOM) * self._unit))
        self._sheet = Image.new("RGBA", size)
        self._draw = ImageDraw.Draw(self._sheet)
        self._turn: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)

    @contextmanager
    def tilted(self, degrees: float, about: Point) -> Iterator[None]:
        """Turn everything that is drawn within the `with` block by `degrees` anticlockwise about the point `about`."""
        before = self._turn
        cos = math.cos(math.radians(degrees))
        sin = math.sin(math.radians(degrees))
        x, y = about
        self._turn = (cos, sin, x - cos * x + sin * y, y - sin * x - cos * y)
        yield
        self._turn = before

    def shape(self, points: Iterable[Point], colour: Colour) -> None:
        """Draw a filled polygon with the corners `points`."""
        self._draw.polygon([self._pixel(x, y) for x, y in points], fill=colour)

    def oval(self, x: float, y: float, rx: float, ry: float, colour: Colour, degrees: float = 0) -> None:
        """Draw a filled ellipse with the centre (x, y) and the radii rx and ry, turned anticlockwise by `degrees`."""
        cos = math.cos(math.radians(degrees))
        sin = math.sin(math.radians(degrees))
        self.shape(((x + rx * u * cos - ry * v * sin, y + rx * u * sin + ry * v * cos) for u, v in _CIRCLE), colour)

    def box(self, left: float, bottom: float, right: float, top: float, colour: Colour) -> None:
        self.shape(((left, bottom), (right, bottom), (right, top), (left, top)), colour)

    def line(self, points: Iterable[Point], width: float, colour: Colour) -> None:
        """Draw a line through `points` with round joints and ends."""
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
        """Return the whole sheet as an RGBA sprite with transparent surroundings.

        The ground or the waterline is TOP drawing units below the upper edge of the sprite. Everything below the
        waterline is erased. The size of the sprite does not depend on the figure.
        """
        if self._draft:
            self._sheet.paste((0, 0, 0, 0), (0, round(TOP * self._unit), *self._sheet.size))
        return self._sheet.reduce(SUPERSAMPLING)

    def _pixel(self, x: float, y: float) -> Point:
        cos, sin, dx, dy = self._turn
        x, y = cos * x - sin * y + dx, sin * x + cos * y + dy
        return self._origin[0] + x * self._unit, self._origin[1] - y * self._unit


GLASS = (176, 214, 232)
STEEL = (178, 180, 186)
WOOD = (104, 72, 46)
DUST = (214, 206, 190)
HEADLIGHT = (252, 240, 170)
WHITE = (248, 246, 240)
ROOF = (134, 58, 46)
GLOW = (255, 246, 200)
BRASS = (120, 96, 60)


def car(pen: Pen, look: Look, action: str) -> None:
    _trail(pen, action, -0.62)
    pen.shape([(-0.34, 0.3), (-0.22, 0.5), (0.14, 0.5), (0.3, 0.3)], look.shade)
    pen.shape([(-0.27, 0.31), (-0.19, 0.46), (-0.03, 0.46), (-0.03, 0.31)], GLASS)
    pen.shape([(0.01, 0.31), (0.01, 0.46), (0.11, 0.46), (0.23, 0.31)], GLASS)
    pen.shape([(-0.54, 0.12), (-0.54, 0.28), (-0.46, 0.33), (0.36, 0.33), (0.54, 0.26), (0.56, 0.12)], look.main)
    pen.box(-0.54, 0.1, 0.56, 0.17, look.shade)
    pen.oval(0.52, 0.24, 0.04, 0.035, HEADLIGHT)
    pen.box(-0.56, 0.22, -0.5, 0.28, (190, 40, 40))
    for x in (-0.3, 0.32):
        _wheel(pen, x, 0.115)


def bus(pen: Pen, look: Look, action: str) -> None:
    _trail(pen, action, -0.68)
    pen.box(-0.6, 0.1, 0.6, 0.56, look.main)
    pen.box(-0.6, 0.56, 0.58, 0.6, look.light)
    pen.box(-0.6, 0.1, 0.6, 0.2, look.shade)
    for left in (-0.54, -0.31, -0.08, 0.15):
        pen.box(left, 0.34, left + 0.18, 0.51, GLASS)
    pen.box(0.41, 0.14, 0.53, 0.51, mix(GLASS, INK, 0.25))
    pen.oval(0.57, 0.22, 0.03, 0.03, HEADLIGHT)
    for x in (-0.36, 0.28):
        _wheel(pen, x, 0.11)


def bicycle(pen: Pen, look: Look, action: str) -> None:
    for x in (-0.36, 0.36):
        angles = [math.radians(a) for a in range(0, 361, 20)]
        pen.line([(x + 0.23 * math.cos(a), 0.24 + 0.23 * math.sin(a)) for a in angles], 0.045, INK)
        for a in range(0, 180, 45):
            dx = 0.2 * math.cos(math.radians(a))
            dy = 0.2 * math.sin(math.radians(a))
            pen.line([(x - dx, 0.24 - dy), (x + dx, 0.24 + dy)], 0.012, STEEL)
    pen.line([(-0.36, 0.24), (-0.14, 0.56), (0.26, 0.56), (0.0, 0.24), (-0.36, 0.24)], 0.055, look.main)
    pen.line([(0.0, 0.24), (-0.14, 0.56)], 0.055, look.main)
    pen.line([(0.36, 0.24), (0.26, 0.62)], 0.05, look.shade)
    pen.line([(-0.14, 0.56), (-0.17, 0.66)], 0.045, look.shade)
    pen.line([(-0.27, 0.67), (-0.07, 0.67)], 0.06, INK)
    pen.line([(0.26, 0.62), (0.22, 0.74), (0.36, 0.74)], 0.045, INK)


def boat(pen: Pen, look: Look, action: str) -> None:
    if action == "sail":
        pen.line([(0.0, 0.2), (0.0, 1.1)], 0.035, WOOD)
        pen.shape([(0.04, 0.3), (0.04, 1.06), (0.5, 0.34)], (248, 246, 238))
        pen.shape([(-0.04, 0.32), (-0.04, 0.94), (-0.36, 0.36)], (226, 224, 216))
    pen.shape([(-0.6, 0.28), (0.66, 0.3), (0.46, 0.0), (-0.44, 0.0)], look.main)
    pen.shape([(-0.53, 0.13), (0.55, 0.13), (0.46, 0.0), (-0.44, 0.0)], look.shade)
    pen.line([(-0.6, 0.28), (0.66, 0.3)], 0.045, look.light)
    if action == "float":
        for x in (-0.16, 0.3):
            pen.line([(x + 0.12, 0.44), (x - 0.18, -0.02)], 0.04, WOOD)


def _wheel(pen: Pen, x: float, radius: float) -> None:
    pen.oval(x, radius, radius, radius, INK)
    pen.oval(x, radius, 0.5 * radius, 0.5 * radius, STEEL)


def _trail(pen: Pen, action: str, back: float) -> None:
    """Draw the dust behind a vehicle if `action` is `drive`, and nothing for another action. The vehicle's rear end is
    at x = `back`."""
    if action == "drive":
        for i, radius in enumerate((0.05, 0.075, 0.06)):
            pen.oval(back - 0.06 * i, 0.06 + 0.045 * i, radius, radius, mix(DUST, (255, 255, 255), 0.2 * i))
        for y in (0.24, 0.36):
            pen.line([(back + 0.02, y), (back - 0.16, y)], 0.022, DUST)


def ball(pen: Pen, look: Look, action: str) -> None:
    pen.oval(0, 0.42, 0.42, 0.42, look.main)
    pen.oval(0.06, 0.3, 0.3, 0.24, look.shade, degrees=30)
    pen.oval(0, 0.44, 0.36, 0.32, look.main, degrees=30)
    pen.line([(-0.36, 0.28), (-0.1, 0.48), (0.34, 0.6)], 0.05, look.light)
    pen.line([(-0.2, 0.74), (0.0, 0.46), (0.06, 0.06)], 0.05, look.light)
    pen.oval(-0.14, 0.62, 0.09, 0.07, WHITE)


def kite(pen: Pen, look: Look, action: str) -> None:
    with pen.tilted(-14, (0, 0.7)):
        pen.line([(0, 0.3), (-0.1, 0.12), (0.06, 0.0), (-0.08, -0.1)], 0.025, INK)
        for x, y in ((-0.08, 0.14), (0.02, 0.03), (-0.05, -0.07)):
            for side in (-0.09, 0.09):
                pen.shape([(x, y), (x + side, y + 0.04), (x + side, y - 0.04)], look.light)
        pen.shape([(0, 1.1), (0.36, 0.78), (0, 0.3), (-0.36, 0.78)], look.main)
        pen.shape([(0, 1.1), (0.36, 0.78), (0, 0.78)], look.light)
        pen.shape([(0, 0.3), (-0.36, 0.78), (0, 0.78)], look.shade)


def balloon(pen: Pen, look: Look, action: str) -> None:
    pen.line([(0, 0.36), (0.05, 0.2), (-0.03, 0.06), (0.02, -0.1)], 0.02, INK)
    pen.shape([(-0.06, 0.33), (0.06, 0.33), (0, 0.42)], look.shade)
    pen.oval(0, 0.76, 0.35, 0.4, look.main)
    pen.oval(0.08, 0.66, 0.22, 0.24, mix(look.main, look.shade, 0.4))
    pen.oval(-0.03, 0.79, 0.28, 0.32, look.main)
    pen.oval(-0.14, 0.92, 0.07, 0.1, mix(look.light, WHITE, 0.5), degrees=-30)


def tree(pen: Pen, look: Look, action: str) -> None:
    pen.shape([(-0.09, 0), (0.09, 0), (0.05, 0.5), (-0.05, 0.5)], WOOD)
    pen.shape([(0.02, 0), (0.09, 0), (0.05, 0.5), (0.02, 0.5)], mix(WOOD, INK, 0.35))
    pen.line([(0, 0.36), (0.18, 0.54)], 0.05, WOOD)
    for x, y, r in ((-0.24, 0.6, 0.22), (0.26, 0.62, 0.22), (0.0, 0.58, 0.24)):
        pen.oval(x, y, r, 0.9 * r, look.shade)
    for x, y, r in ((-0.2, 0.72, 0.22), (0.2, 0.74, 0.22), (0.02, 0.92, 0.25), (0.0, 0.72, 0.22)):
        pen.oval(x, y, r, 0.9 * r, look.main)
    for x, y, r in ((-0.16, 0.84, 0.11), (0.04, 1.0, 0.13), (0.2, 0.82, 0.09), (-0.04, 0.72, 0.08)):
        pen.oval(x, y, r, 0.75 * r, look.light)


def house(pen: Pen, look: Look, action: str) -> None:
    pen.box(-0.42, 0, 0.42, 0.5, look.main)
    pen.box(0.24, 0, 0.42, 0.5, look.shade)
    pen.box(0.18, 0.66, 0.28, 0.92, mix(ROOF, INK, 0.3))
    pen.shape([(-0.52, 0.48), (0.52, 0.48), (0, 0.9)], ROOF)
    pen.shape([(0.2, 0.48), (0.52, 0.48), (0, 0.9)], mix(ROOF, INK, 0.25))
    pen.box(-0.08, 0, 0.1, 0.28, (92, 58, 38))
    for left in (-0.34, 0.18):
        pen.box(left - 0.02, 0.2, left + 0.18, 0.4, WHITE)
        pen.box(left, 0.22, left + 0.16, 0.38, GLASS)
        pen.line([(left + 0.08, 0.22), (left + 0.08, 0.38)], 0.015, WHITE)


def bench(pen: Pen, look: Look, action: str) -> None:
    for x in (-0.42, 0.42):
        pen.line([(x - 0.04, 0.02), (x, 0.26), (x - 0.02, 0.58)], 0.05, INK)
        pen.line([(x + 0.06, 0.02), (x + 0.06, 0.26)], 0.05, INK)
    for y, tone in ((0.54, look.main), (0.43, look.shade)):
        pen.box(-0.52, y - 0.045, 0.52, y + 0.045, tone)
    pen.shape([(-0.55, 0.24), (0.55, 0.24), (0.52, 0.33), (-0.52, 0.33)], look.light)
    pen.box(-0.55, 0.19, 0.55, 0.25, look.main)


def tent(pen: Pen, look: Look, action: str) -> None:
    pen.shape([(-0.14, 0.68), (0.34, 0.62), (0.66, 0.0), (0.2, 0.0)], look.shade)
    pen.shape([(-0.14, 0.68), (-0.58, 0.0), (0.3, 0.0)], look.main)
    pen.shape([(-0.14, 0.54), (-0.28, 0.0), (0.02, 0.0)], mix(look.shade, INK, 0.6))
    pen.shape([(-0.14, 0.56), (-0.38, 0.0), (-0.26, 0.0)], look.light)
    pen.line([(-0.14, 0.68), (0.34, 0.62)], 0.03, look.light)


def chair(pen: Pen, look: Look, action: str) -> None:
    pen.line([(-0.2, 0.02), (-0.22, 0.44)], 0.06, WOOD)
    pen.line([(0.28, 0.02), (0.26, 0.42)], 0.06, WOOD)
    pen.shape([(-0.28, 0.4), (-0.36, 0.98), (-0.24, 1.0), (-0.14, 0.44)], look.shade)
    pen.shape([(-0.24, 0.46), (-0.31, 0.94), (-0.06, 0.9), (-0.02, 0.46)], look.main)
    pen.shape([(-0.28, 0.38), (0.34, 0.36), (0.26, 0.5), (-0.22, 0.52)], look.main)
    pen.box(-0.28, 0.33, 0.34, 0.4, look.shade)
    for x in (-0.1, 0.12):
        pen.line([(x, 0.02), (x, 0.33)], 0.06, mix(WOOD, INK, 0.3))


def lamp(pen: Pen, look: Look, action: str) -> None:
    pen.oval(0, 0.04, 0.2, 0.05, INK)
    pen.line([(0, 0.04), (0, 0.8)], 0.04, BRASS)
    pen.oval(0, 0.74, 0.08, 0.06, GLOW)
    pen.shape([(-0.3, 0.74), (0.3, 0.74), (0.17, 1.14), (-0.17, 1.14)], look.main)
    pen.shape([(0.08, 0.74), (0.3, 0.74), (0.17, 1.14), (0.05, 1.14)], look.shade)
    pen.line([(-0.3, 0.745), (0.3, 0.745)], 0.035, look.light)
