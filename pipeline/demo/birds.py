"""How birds are drawn: standing, swimming, flying."""

from pipeline.demo.pen import EYE, Look, Pen

BEAK = (238, 150, 40)


def bird(pen: Pen, look: Look, action: str) -> None:
    if action == "fly":
        _winged(pen, look, 0.22)
        pen.shape([(0.42, 0.42), (0.42, 0.34), (0.55, 0.37)], BEAK)
        return
    for x in (-0.04, 0.08):
        pen.line([(x, 0.2), (x + 0.02, 0.02), (x + 0.09, 0.02)], 0.028, BEAK)
    pen.shape([(-0.1, 0.34), (-0.52, 0.3), (-0.5, 0.42), (-0.1, 0.48)], look.shade)
    pen.oval(0, 0.38, 0.32, 0.21, look.main, degrees=24)
    pen.oval(0.08, 0.32, 0.2, 0.13, look.light, degrees=30)
    pen.oval(-0.1, 0.4, 0.25, 0.11, look.shade, degrees=8)
    pen.shape([(0.36, 0.68), (0.36, 0.56), (0.53, 0.6)], BEAK)
    pen.oval(0.24, 0.62, 0.16, 0.15, look.main)
    pen.eye(0.3, 0.66, 0.042)


def duck(pen: Pen, look: Look, action: str) -> None:
    if action == "fly":
        _winged(pen, look, 0.3)
        pen.oval(0.52, 0.36, 0.09, 0.035, BEAK)
        return
    rise = 0.0 if action == "swim" else 0.16
    if action != "swim":
        for x in (-0.06, 0.08):
            pen.line([(x, 0.2), (x, 0.03), (x + 0.1, 0.03)], 0.04, BEAK)
    pen.shape([(-0.3, 0.1 + rise), (-0.56, 0.38 + rise), (-0.1, 0.34 + rise)], look.shade)
    pen.oval(-0.04, 0.16 + rise, 0.42, 0.2, look.main)
    pen.oval(-0.1, 0.2 + rise, 0.26, 0.12, look.shade, degrees=10)
    pen.line([(0.26, 0.2 + rise), (0.3, 0.46 + rise)], 0.15, look.main)
    pen.oval(0.46, 0.5 + rise, 0.12, 0.045, BEAK, degrees=-6)
    pen.oval(0.31, 0.54 + rise, 0.15, 0.13, look.main)
    pen.line([(0.24, 0.37 + rise), (0.36, 0.37 + rise)], 0.035, EYE)
    pen.eye(0.36, 0.58 + rise, 0.036)


def _winged(pen: Pen, look: Look, neck: float) -> None:
    """A bird in flight, wings up; `neck` is its length."""
    pen.shape([(-0.2, 0.34), (-0.52, 0.26), (-0.5, 0.42)], look.shade)
    pen.shape([(0.1, 0.36), (0.04, 0.86), (-0.26, 0.94), (-0.14, 0.36)], look.shade)
    pen.oval(0, 0.34, 0.28, 0.13, look.main, degrees=6)
    pen.line([(0.15, 0.36), (0.1 + neck, 0.39)], 0.14, look.main)
    pen.shape([(0.16, 0.36), (-0.14, 0.78), (-0.46, 0.76), (-0.16, 0.32)], look.light)
    pen.oval(0.1 + neck, 0.39, 0.12, 0.11, look.main)
    pen.eye(0.14 + neck, 0.42, 0.036)
