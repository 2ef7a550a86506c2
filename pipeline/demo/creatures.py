"""Draws four-legged animals, birds and people, according to their build and their action."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.demo.drawing import EYE, INK, Colour, Look, Pen, Point, mix


@dataclass(frozen=True)
class Build:
    """Proportions of a four-legged animal, in units of the pen.

    `neck` is the offset (x, y) of the head from the middle of the body. `head(pen, look, x, y, asleep)` and
    `tail(pen, look, x, y)` draw the head and the tail at the point (x, y).
    """

    length: float  # half of the length of the body, in units of the pen
    depth: float  # half of the height of the body, in units of the pen
    leg: float  # length of a leg, in units of the pen
    thickness: float  # thickness of a leg, in units of the pen
    neck: tuple[float, float]
    collar: float  # thickness of the neck, in units of the pen
    head: Callable[[Pen, Look, float, float, bool], None]
    tail: Callable[[Pen, Look, float, float], None]


@dataclass(frozen=True)
class Gait:
    """The positions of the legs of an animal in motion, in units of the pen.

    `hind` and `fore` have the offset (x, y) of each foot from the point on the ground below its hip. The foot on the
    far side is first. The animal is turned by `tilt` degrees, so that its front is higher. The head is moved forwards
    and down by `stretch`.
    """

    hind: tuple[Point, Point]
    fore: tuple[Point, Point]
    tilt: float = 0
    rise: float = 0.6  # height of the middle of the body above the legs, in multiples of Build.depth
    stretch: float = 0


STANDING = Gait(((-0.06, 0), (0.05, 0)), ((-0.05, 0), (0.06, 0)))
GAITS = {
    "run": Gait(((-0.34, 0.12), (0.16, 0.03)), ((-0.12, 0.1), (0.36, 0.14)), tilt=5, rise=0.5, stretch=0.06),
    "jump": Gait(((-0.3, 0.1), (-0.2, 0.04)), ((0.14, 0.2), (0.26, 0.24)), tilt=24),
}


def quadruped(pen: Pen, look: Look, action: str, build: Build) -> None:
    if action == "sit":
        _sitting(pen, look, build)
    elif action == "sleep":
        _lying(pen, look, build)
    else:
        gait = GAITS.get(action, STANDING)
        y = build.leg + gait.rise * build.depth
        neck = (build.neck[0] + gait.stretch, build.neck[1] - gait.stretch)
        if action == "graze":
            neck = (build.length + 0.16, 0.09 - y)
        with pen.tilted(gait.tilt, (0, y)):
            _on_its_legs(pen, look, build, y, gait, neck)


def _sitting(pen: Pen, look: Look, build: Build) -> None:
    length = build.length
    depth = build.depth
    chest = (0.3 * length, build.leg + 0.9 * depth)
    build.tail(pen, look, -0.75 * length, 0.1)
    pen.line([(chest[0] - 0.04, chest[1]), (chest[0] + 0.02, 0.03)], build.thickness, look.shade)
    pen.oval(-0.2 * length, 0.62 * length + 0.05, length, depth * 1.05, look.main, degrees=56)
    pen.oval(-0.4 * length, depth * 0.95, depth * 1.15, depth, look.shade)
    pen.oval(-0.36 * length, depth, depth * 1.05, depth * 0.92, look.main)
    pen.line([(-0.5 * length, 0.03), (-0.05 * length, 0.03)], build.thickness, look.main)
    pen.line([(chest[0] + 0.04, chest[1]), (chest[0] + 0.1, 0.03)], build.thickness, look.light)
    x = chest[0] + 0.45 * (build.neck[0] - length)
    y = chest[1] + build.neck[1] * 0.75
    pen.line([chest, (x, y)], build.collar, look.main)
    build.head(pen, look, x, y, False)


def _lying(pen: Pen, look: Look, build: Build) -> None:
    length = build.length
    depth = build.depth
    build.tail(pen, look, -0.9 * length, 0.08)
    pen.oval(0, depth * 0.9, length * 1.05, depth * 0.95, look.main)
    pen.oval(-0.55 * length, depth * 0.75, depth * 1.1, depth * 0.75, look.shade)
    pen.line([(0.5 * length, 0.04), (length + 0.2, 0.04)], build.thickness, look.light)
    pen.line([(0.7 * length, depth), (length + 0.06, 0.15)], build.collar, look.main)
    build.head(pen, look, length + 0.1, 0.15, True)


def _on_its_legs(pen: Pen, look: Look, build: Build, y: float, gait: Gait, neck: Point) -> None:
    """Draw a standing, running, jumping or grazing animal. `y` is the height of the middle of the animal's body, and
    `neck` the offset (x, y) of the head from the middle of the body."""
    for i, tone in enumerate((look.shade, look.main)):
        for hip, feet in ((-0.68 * build.length, gait.hind), (0.68 * build.length, gait.fore)):
            dx, dy = feet[i]
            knee = (hip + 0.4 * dx + (0.04 if dy else 0), 0.5 * (y + dy))
            pen.line([(hip, y), knee, (hip + dx, dy + 0.02)], build.thickness, tone)
    build.tail(pen, look, -0.92 * build.length, y + 0.3 * build.depth)
    pen.oval(0, y, build.length, build.depth, look.main)
    pen.oval(0.02, y - 0.5 * build.depth, 0.7 * build.length, 0.4 * build.depth, look.shade)
    pen.line([(0.72 * build.length, y + 0.15 * build.depth), (neck[0], y + neck[1])], build.collar, look.main)
    build.head(pen, look, neck[0], y + neck[1], False)


def _dog_head(pen: Pen, look: Look, x: float, y: float, asleep: bool) -> None:
    pen.oval(x, y, 0.15, 0.14, look.main)
    pen.oval(x + 0.13, y - 0.04, 0.11, 0.07, look.light)
    pen.oval(x + 0.23, y - 0.01, 0.035, 0.03, INK)
    pen.oval(x - 0.09, y - 0.01, 0.055, 0.13, look.shade, degrees=-14)
    pen.eye(x + 0.05, y + 0.05, 0.036, asleep)
    if not asleep:
        pen.line([(x + 0.1, y - 0.1), (x + 0.13, y - 0.15)], 0.045, (226, 92, 104))


def _dog_tail(pen: Pen, look: Look, x: float, y: float) -> None:
    pen.line([(x, y), (x - 0.11, y + 0.07), (x - 0.15, y + 0.19)], 0.06, look.shade)


def _cat_head(pen: Pen, look: Look, x: float, y: float, asleep: bool) -> None:
    for side in (-1, 1):
        pen.shape([(x + side * 0.03, y + 0.1), (x + side * 0.15, y + 0.04), (x + side * 0.14, y + 0.24)], look.main)
        pen.shape([(x + side * 0.07, y + 0.1), (x + side * 0.13, y + 0.07), (x + side * 0.125, y + 0.19)], look.light)
    pen.oval(x, y, 0.165, 0.14, look.main)
    pen.oval(x, y - 0.06, 0.07, 0.05, look.light)
    pen.oval(x, y - 0.03, 0.024, 0.018, (226, 110, 120))
    for side in (-1, 1):
        pen.eye(x + side * 0.075, y + 0.03, 0.036, asleep)
        pen.line([(x + side * 0.05, y - 0.05), (x + side * 0.2, y - 0.03)], 0.01, look.shade)


def _cat_tail(pen: Pen, look: Look, x: float, y: float) -> None:
    curve = [(0, 0), (-0.12, 0.03), (-0.2, 0.14), (-0.18, 0.3), (-0.11, 0.36)]
    pen.line([(x + dx, y + dy) for dx, dy in curve], 0.055, look.shade)


def _horse_head(pen: Pen, look: Look, x: float, y: float, asleep: bool) -> None:
    pen.line([(x - 0.12, y - 0.22), (x - 0.09, y - 0.02), (x - 0.01, y + 0.09)], 0.07, mix(look.shade, INK, 0.45))
    pen.oval(x + 0.06, y - 0.04, 0.15, 0.075, look.main, degrees=-36)
    pen.oval(x + 0.16, y - 0.11, 0.06, 0.055, look.light)
    pen.shape([(x - 0.05, y + 0.04), (x + 0.03, y + 0.05), (x + 0.01, y + 0.16)], look.main)
    pen.oval(x + 0.18, y - 0.1, 0.014, 0.014, INK)
    pen.eye(x + 0.04, y + 0.01, 0.026, asleep)


def _horse_tail(pen: Pen, look: Look, x: float, y: float) -> None:
    pen.line([(x, y), (x - 0.1, y - 0.03), (x - 0.14, y - 0.2), (x - 0.12, y - 0.3)], 0.07, mix(look.shade, INK, 0.45))


def _sheep_head(pen: Pen, look: Look, x: float, y: float, asleep: bool) -> None:
    face = mix(INK, look.main, 0.18)
    pen.oval(x + 0.02, y - 0.01, 0.1, 0.13, face, degrees=24)
    pen.oval(x - 0.1, y + 0.02, 0.07, 0.03, face, degrees=20)
    pen.oval(x - 0.01, y + 0.1, 0.1, 0.07, look.light)
    pen.eye(x + 0.05, y + 0.02, 0.03, asleep)


def _fleece(pen: Pen, look: Look, x: float, y: float) -> None:
    """Draw curls of wool around the body, whose left end is (x, y), in place of a tail."""
    for degrees in range(-162, 180, 36):
        dx = 0.3 * math.cos(math.radians(degrees))
        dy = 0.16 * math.sin(math.radians(degrees))
        pen.oval(x + 0.3 + dx, y + dy, 0.12, 0.11, look.light if degrees >= 0 else look.shade)


def _rabbit_head(pen: Pen, look: Look, x: float, y: float, asleep: bool) -> None:
    for dx, degrees in ((-0.07, 14), (0.02, -4)):
        pen.oval(x + dx, y + 0.27, 0.06, 0.2, look.main, degrees)
        pen.oval(x + dx, y + 0.27, 0.028, 0.15, (244, 180, 186), degrees)
    pen.oval(x, y, 0.17, 0.15, look.main)
    pen.oval(x + 0.09, y - 0.05, 0.09, 0.07, look.light)
    pen.oval(x + 0.165, y - 0.03, 0.026, 0.022, (226, 110, 120))
    pen.eye(x + 0.06, y + 0.05, 0.034, asleep)


def _rabbit_tail(pen: Pen, look: Look, x: float, y: float) -> None:
    pen.oval(x - 0.02, y + 0.04, 0.09, 0.09, mix(look.light, (255, 255, 255), 0.5))


ANIMALS = {
    "dog": Build(0.34, 0.16, 0.26, 0.085, (0.4, 0.24), 0.15, _dog_head, _dog_tail),
    "cat": Build(0.32, 0.14, 0.2, 0.075, (0.36, 0.2), 0.13, _cat_head, _cat_tail),
    "horse": Build(0.34, 0.165, 0.42, 0.07, (0.5, 0.42), 0.14, _horse_head, _horse_tail),
    "sheep": Build(0.32, 0.2, 0.22, 0.07, (0.44, 0.12), 0.1, _sheep_head, _fleece),
    "rabbit": Build(0.27, 0.18, 0.12, 0.09, (0.27, 0.2), 0.14, _rabbit_head, _rabbit_tail),
}
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
    """Draw a bird in flight, with its wings up and without a beak. `neck` is the length of the bird's neck in units of
    the pen."""
    pen.shape([(-0.2, 0.34), (-0.52, 0.26), (-0.5, 0.42)], look.shade)
    pen.shape([(0.1, 0.36), (0.04, 0.86), (-0.26, 0.94), (-0.14, 0.36)], look.shade)
    pen.oval(0, 0.34, 0.28, 0.13, look.main, degrees=6)
    pen.line([(0.15, 0.36), (0.1 + neck, 0.39)], 0.14, look.main)
    pen.shape([(0.16, 0.36), (-0.14, 0.78), (-0.46, 0.76), (-0.16, 0.32)], look.light)
    pen.oval(0.1 + neck, 0.39, 0.12, 0.11, look.main)
    pen.eye(0.14 + neck, 0.42, 0.036)


LIPS = (170, 62, 62)
_UPPER_ARC = tuple((math.cos(math.radians(a)), math.sin(math.radians(a))) for a in range(18, 171, 17))


@dataclass(frozen=True)
class Person:
    """Proportions of a standing person in units of the pen, and the person's clothes.

    `hip` and `shoulder` are heights above the ground. `hair` is `short`, `long`, `tails`, or `cap` (hair under a cap).
    """

    hip: float
    shoulder: float
    head: float  # radius of the head, in units of the pen
    width: float  # half of the width of the shoulders, in units of the pen
    dress: bool
    hair: str


@dataclass(frozen=True)
class Pose:
    """The position of a person's arms and legs for an action, in units of the pen.

    `hands` has the offset (x, y) of each hand from its shoulder. `feet` has the offset (x, y) of each foot from the
    point on the ground below its hip. The hand or foot on the left of the drawing is first. The body above the legs is
    lowered by `drop` times (h - 0.1), where h is the height of the hips of a standing person. The figure is turned
    anticlockwise by `lean` degrees.
    """

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

PEOPLE = {
    "man": Person(0.46, 0.86, 0.12, 0.14, dress=False, hair="short"),
    "woman": Person(0.46, 0.84, 0.12, 0.115, dress=True, hair="long"),
    "boy": Person(0.38, 0.74, 0.165, 0.13, dress=False, hair="cap"),
    "girl": Person(0.38, 0.74, 0.165, 0.12, dress=True, hair="tails"),
}


def person(pen: Pen, look: Look, action: str, build: Person) -> None:
    asleep = action == "sleep"
    # A sleeping person is drawn standing, and turned by 90 degrees about a point for which the back lies on the ground.
    degrees, about = (90, (0.16, 0.34)) if asleep else (_POSES[action].lean, (0, build.hip))
    with pen.tilted(degrees, about):
        _figure(pen, look, _POSES[action], build, asleep)


def _figure(pen: Pen, look: Look, pose: Pose, build: Person, asleep: bool) -> None:
    drop = pose.drop * (build.hip - 0.1)
    hip = build.hip - drop
    shoulder = build.shoulder - drop
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
