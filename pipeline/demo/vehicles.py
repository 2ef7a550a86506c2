"""How vehicles are drawn."""

import math

from pipeline.demo.pen import INK, Colour, Look, Pen, mix

GLASS = (176, 214, 232)
STEEL = (178, 180, 186)
WOOD = (104, 72, 46)
DUST = (214, 206, 190)
HEADLIGHT = (252, 240, 170)


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
        _ring(pen, x, 0.24, 0.23, 0.045, INK)
        for a in range(0, 180, 45):
            dx, dy = 0.2 * math.cos(math.radians(a)), 0.2 * math.sin(math.radians(a))
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


def _ring(pen: Pen, x: float, y: float, radius: float, width: float, colour: Colour) -> None:
    angles = [math.radians(a) for a in range(0, 361, 20)]
    pen.line([(x + radius * math.cos(a), y + radius * math.sin(a)) for a in angles], width, colour)


def _trail(pen: Pen, action: str, back: float) -> None:
    """The dust that a moving vehicle leaves behind."""
    if action == "drive":
        for i, radius in enumerate((0.05, 0.075, 0.06)):
            pen.oval(back - 0.06 * i, 0.06 + 0.045 * i, radius, radius, mix(DUST, (255, 255, 255), 0.2 * i))
        for y in (0.24, 0.36):
            pen.line([(back + 0.02, y), (back - 0.16, y)], 0.022, DUST)
