"""How people are drawn: one figure in seven poses, four builds."""

import math
from dataclasses import dataclass

from pipeline.demo.pen import INK, Colour, Look, Pen, Point, mix

LIPS = (170, 62, 62)
_UPPER_ARC = tuple((math.cos(math.radians(a)), math.sin(math.radians(a))) for a in range(18, 171, 17))


@dataclass(frozen=True)
class Person:
    """Proportions in units: a standing figure's shoulders, hips and head, and what it wears."""

    hip: float
    shoulder: float
    head: float  # radius
    width: float  # half of the shoulders'
    dress: bool
    hair: str


@dataclass(frozen=True)
class Pose:
    """Hands relative to the shoulders, feet relative to the hips; far limb first. `drop`: how far the hips sink."""

    hands: tuple[Point, Point]
    feet: tuple[Point, Point]
    drop: float = 0.0
    lean: float = 0.0


_POSES = {
    "stand": Pose(((-0.16, -0.34), (0.16, -0.34)), ((-0.07, 0), (0.07, 0))),
    "run": Pose(((-0.26, -0.16), (0.28, -0.12)), ((-0.3, 0.12), (0.24, 0.02)), lean=-10),
    "jump": Pose(((-0.28, 0.3), (0.28, 0.3)), ((-0.22, 0.14), (0.2, 0.1))),
    "wave": Pose(((-0.16, -0.34), (0.3, 0.3)), ((-0.07, 0), (0.07, 0))),
    "sit": Pose(((-0.2, -0.36), (0.24, -0.28)), ((0.36, 0.05), (0.42, 0.04)), drop=0.9),
    "sleep": Pose(((-0.14, -0.34), (0.14, -0.34)), ((-0.05, 0), (0.06, 0))),
    "swim": Pose(((-0.3, -0.02), (0.32, 0.16)), ((-0.07, 0), (0.07, 0))),
}

BUILDS = {
    "man": Person(0.46, 0.86, 0.12, 0.14, dress=False, hair="short"),
    "woman": Person(0.46, 0.84, 0.12, 0.115, dress=True, hair="long"),
    "boy": Person(0.38, 0.74, 0.165, 0.13, dress=False, hair="cap"),
    "girl": Person(0.38, 0.74, 0.165, 0.12, dress=True, hair="tails"),
}


def person(pen: Pen, look: Look, action: str, build: Person) -> None:
    asleep = action == "sleep"
    # Lying on the back is standing, turned about the point that leaves the back on the ground.
    degrees, about = (90, (0.16, 0.34)) if asleep else (_POSES[action].lean, (0, build.hip))
    with pen.tilted(degrees, about):
        _figure(pen, look, _POSES[action], build, asleep)


def _figure(pen: Pen, look: Look, pose: Pose, build: Person, asleep: bool) -> None:
    drop = pose.drop * (build.hip - 0.1)
    hip, shoulder = build.hip - drop, build.shoulder - drop
    head = shoulder + 0.95 * build.head
    if build.hair in ("long", "tails"):
        _hair_behind(pen, look, build, head)
    _arm(pen, look.shade, look.skin, build, shoulder, -1, pose.hands[0])
    for side, (dx, dy), tone in ((-1, pose.feet[0], 0), (1, pose.feet[1], 1)):
        _leg(pen, look, build, side, hip, dx, dy, tone)
    _clothes(pen, look, build, hip, shoulder)
    _arm(pen, look.light, look.skin, build, shoulder, 1, pose.hands[1])
    pen.line([(0, shoulder - 0.02), (0, head)], 0.09, look.skin)
    pen.oval(0, head, 0.92 * build.head, build.head, look.skin)
    _hair(pen, look, build, head)
    _face(pen, build, head, asleep)


def _arm(pen: Pen, sleeve: Colour, skin: Colour, build: Person, shoulder: float, side: int, hand: Point) -> None:
    start = (side * (build.width - 0.02), shoulder - 0.05)
    end = (start[0] + hand[0] * 0.8, start[1] + hand[1] * 0.9)
    elbow = ((start[0] + end[0]) / 2 + side * 0.03, (start[1] + end[1]) / 2)
    pen.line([elbow, end], 0.06, skin)
    pen.line([start, elbow], 0.085, sleeve)


def _leg(pen: Pen, look: Look, build: Person, side: int, hip: float, dx: float, dy: float, near: int) -> None:
    start = (side * 0.4 * build.width, hip)
    foot = (start[0] + dx, dy + 0.03)
    knee = (start[0] + 0.6 * dx + (0.06 if dy else 0), 0.5 * (start[1] + foot[1]))
    bare = build.dress or build.hair == "cap"
    trousers = mix(look.trousers, INK, 0.0 if near else 0.3)
    pen.line([knee, foot], 0.075, look.skin if bare else trousers)
    pen.line([start, knee], 0.1, look.skin if build.dress else trousers)
    pen.line([foot, (foot[0] + 0.07, foot[1])], 0.06, INK)


def _clothes(pen: Pen, look: Look, build: Person, hip: float, shoulder: float) -> None:
    w = build.width
    if build.dress:
        hem = max(0.02, hip - 0.2)
        waist = hip + 0.1
        pen.shape([(-0.75 * w, shoulder), (0.75 * w, shoulder), (0.6 * w, waist), (-0.6 * w, waist)], look.main)
        pen.shape([(-0.6 * w, waist), (0.6 * w, waist), (2.0 * w, hem), (-2.0 * w, hem)], look.main)
        pen.shape([(0.2 * w, waist), (0.6 * w, waist), (2.0 * w, hem), (0.9 * w, hem)], look.shade)
        pen.line([(-0.58 * w, waist), (0.58 * w, waist)], 0.03, look.light)
    else:
        pen.shape([(-w, shoulder), (w, shoulder), (0.85 * w, hip - 0.03), (-0.85 * w, hip - 0.03)], look.main)
        pen.shape([(0.35 * w, shoulder), (w, shoulder), (0.85 * w, hip - 0.03), (0.4 * w, hip - 0.03)], look.shade)


def _hair_behind(pen: Pen, look: Look, build: Person, head: float) -> None:
    r = build.head
    if build.hair == "long":
        pen.oval(0, head - 0.55 * r, 1.25 * r, 1.5 * r, look.hair)
    else:
        for side in (-1, 1):
            pen.oval(side * 1.3 * r, head - 0.15 * r, 0.34 * r, 0.7 * r, look.hair, degrees=side * 24)


def _hair(pen: Pen, look: Look, build: Person, head: float) -> None:
    r = build.head
    pen.shape([(r * cos, head + r * sin) for cos, sin in _UPPER_ARC], look.hair)
    if build.hair == "cap":
        pen.shape([(1.06 * r * cos, head + 0.1 * r + 1.06 * r * sin) for cos, sin in _UPPER_ARC], look.shade)
        pen.line([(0.5 * r, head + 0.42 * r), (1.5 * r, head + 0.36 * r)], 0.05, look.shade)


def _face(pen: Pen, build: Person, head: float, asleep: bool) -> None:
    r = build.head
    for x in (-0.18 * r, 0.5 * r):
        if asleep:
            pen.line([(x - 0.15 * r, head), (x + 0.15 * r, head)], 0.014, INK)
        else:
            pen.oval(x, head, 0.12 * r, 0.14 * r, INK)
    mouth = [(-0.1 * r, head - 0.42 * r), (0.16 * r, head - 0.5 * r), (0.44 * r, head - 0.42 * r)]
    pen.line(mouth, 0.016, LIPS)
