"""Samples random scenes for the demo: a place with things in it, and the position of each figure of a thing.

The scenes are only described here. `picture` draws them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

COLOURS = {
    "red": (205, 44, 40),
    "orange": (240, 134, 34),
    "yellow": (245, 209, 54),
    "green": (58, 156, 66),
    "blue": (44, 92, 204),
    "purple": (130, 62, 164),
    "pink": (246, 146, 184),
    "brown": (126, 78, 44),
    "black": (46, 44, 50),
    "grey": (144, 146, 150),
    "white": (244, 242, 236),
}
SIZES = {"small": 0.7, "medium": 1.0, "large": 1.35}
"""The scale of a thing of each size, relative to a medium thing of the same kind."""

MEDIUM = {"swim": "water", "sail": "water", "float": "water", "fly": "air", "hover": "air"}
"""The medium of an action. The medium of every other action is the ground."""

LIFTED = ("jump", "bounce")
"""Actions on the ground that are seen at their highest point."""


SEATS = {"bench": 0.3, "chair": 0.46}
"""The kinds of things on which figures can sit, and the height of the seat in drawing units of the bench or chair."""

SHELTERS = ("tree",)
"""Kinds of things that shelter a figure: a figure just in front of the foot of a tree is under the tree."""

TALL = ("tree", "house")
"""Kinds of things whose top fifth may be outside the image."""


@dataclass(frozen=True)
class Scenery:
    """A place, which limits the actions and colours of the things in it.

    An action is possible in the place if the medium of the action (see MEDIUM) is one of `media`. The things in the
    place have none of the colours `hides`, because these colours are too similar to the background.
    """

    media: tuple[str, ...]
    hides: tuple[str, ...]
    horizon: tuple[float, float]  # range of the row of the horizon, from 0 at the top to 1 at the bottom of the image


PLACES = {
    "grass": Scenery(("ground", "air"), ("green",), (0.30, 0.45)),
    "meadow": Scenery(("ground", "air"), ("green",), (0.28, 0.42)),
    "beach": Scenery(("ground", "air"), ("yellow",), (0.28, 0.40)),
    "street": Scenery(("ground", "air"), ("grey",), (0.36, 0.46)),
    "snow": Scenery(("ground", "air"), ("white", "grey"), (0.30, 0.45)),
    "lake": Scenery(("water", "air"), ("blue",), (0.28, 0.40)),
    "forest": Scenery(("ground", "air"), ("brown", "green", "black"), (0.42, 0.52)),
    "room": Scenery(("ground", "air"), (), (0.46, 0.58)),
    "desert": Scenery(("ground", "air"), ("orange", "yellow"), (0.34, 0.46)),
    "mountains": Scenery(("ground", "air"), ("grey",), (0.38, 0.48)),
}
INDOORS = ("room",)
LIGHTS = {"day": 0.74, "sunset": 0.14, "night": 0.12}
"""The frequency of each kind of light in outdoor scenes. Indoors it is always day."""


@dataclass(frozen=True)
class Kind:
    """A kind of thing, with its possible actions, places and colours. If `group` is true, a scene can have several
    figures of this kind."""

    unit: float  # drawing unit of a medium figure of this kind, as a share of the height of the image
    girth: tuple[float, float]  # approximate width and height of a figure of any size, in its drawing units
    actions: tuple[str, ...]
    places: tuple[str, ...]
    colours: tuple[str, ...]
    group: bool = False


_FIELDS = ("grass", "meadow", "snow", "mountains")
_OPEN = (*_FIELDS, "beach", "desert")
_OUTDOORS = (*_OPEN, "street", "forest")
_LAND = (*_OUTDOORS, "room")
_ANYWHERE = (*_LAND, "lake")
_HOMES = ("grass", "meadow", "street", "snow", "room")
_ROADS = ("street", "grass", "snow", "desert", "mountains")

_ALL = tuple(COLOURS)
_FURS = ("brown", "black", "white", "grey", "orange", "red", "yellow", "pink", "blue")
_WOOLS = ("white", "black", "brown", "grey", "pink")
_CLOTHES = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "black", "white", "grey")
_LEAVES = ("green", "orange", "yellow", "red", "pink", "purple")
_WALLS = ("red", "white", "yellow", "blue", "brown", "pink", "orange", "green")

_PET = ("stand", "run", "jump", "sit", "sleep")
_PERSON = (*_PET, "wave", "swim")

KINDS = {
    "dog": Kind(0.42, (1.0, 0.75), (*_PET, "swim"), _ANYWHERE, _FURS, group=True),
    "cat": Kind(0.36, (0.9, 0.7), _PET, _HOMES, _FURS),
    "horse": Kind(0.62, (1.1, 1.05), ("stand", "run", "jump", "graze"), _OPEN, _FURS, group=True),
    "sheep": Kind(0.42, (0.95, 0.65), ("stand", "run", "graze", "sleep"), _FIELDS, _WOOLS, group=True),
    "rabbit": Kind(0.30, (0.6, 0.8), ("sit", "jump"), (*_FIELDS, "forest", "room"), _FURS),
    "bird": Kind(0.30, (1.0, 0.75), ("stand", "fly"), (*_OUTDOORS, "lake"), _ALL, group=True),
    "duck": Kind(0.30, (1.0, 0.75), ("stand", "fly", "swim"), ("grass", "meadow", "beach", "lake"), _ALL, group=True),
    "man": Kind(0.58, (0.55, 1.05), _PERSON, _ANYWHERE, _CLOTHES, group=True),
    "woman": Kind(0.56, (0.5, 1.05), _PERSON, _ANYWHERE, _CLOTHES, group=True),
    "boy": Kind(0.42, (0.6, 1.0), _PERSON, _ANYWHERE, _CLOTHES, group=True),
    "girl": Kind(0.42, (0.6, 1.0), _PERSON, _ANYWHERE, _CLOTHES, group=True),
    "car": Kind(0.66, (1.15, 0.5), ("park", "drive"), _ROADS, _ALL, group=True),
    "bus": Kind(0.74, (1.25, 0.6), ("park", "drive"), ("street", "desert", "mountains"), _ALL),
    "bicycle": Kind(0.46, (1.2, 0.75), ("stand",), ("street", "grass", "beach", "forest", "room"), _ALL),
    "boat": Kind(0.62, (1.25, 0.9), ("sail", "float"), ("lake",), _ALL, group=True),
    "ball": Kind(0.20, (0.84, 0.84), ("lie", "bounce"), _LAND, _ALL, group=True),
    "kite": Kind(0.30, (0.75, 1.15), ("fly",), (*_OPEN, "lake"), _ALL, group=True),
    "balloon": Kind(0.28, (0.7, 1.2), ("hover",), (*_OPEN, "street", "lake", "room"), _ALL, group=True),
    "tree": Kind(0.62, (0.95, 1.15), ("stand",), (*_FIELDS, "street"), _LEAVES, group=True),
    "house": Kind(0.60, (1.05, 0.9), ("stand",), (*_FIELDS, "beach", "desert"), _WALLS),
    "bench": Kind(0.50, (1.1, 0.6), ("stand",), ("grass", "meadow", "beach", "street", "snow"), _ALL),
    "tent": Kind(0.50, (1.25, 0.7), ("stand",), (*_FIELDS, "beach", "forest", "desert"), _ALL),
    "chair": Kind(0.44, (0.7, 1.0), ("stand",), ("room", "beach"), _ALL),
    "lamp": Kind(0.56, (0.6, 1.15), ("stand",), ("room",), _ALL),
}


WIDTHS = (160, 200)  # range of the width in pixels (the aspect ratio is always 4:3)
MAX_FIGURES = 4
ATTEMPTS = 12  # number of attempts to find a spot for a thing. If all fail, the scene does not have the thing.
COVERED = 0.45  # maximum share of the extent of a figure that one nearer figure may cover
USUAL = 0.6  # probability that `pick_usual` takes the first of several options
LIVELY = 3  # A kind of thing with more actions is chosen more often, but actions beyond this number do not count.

Option = TypeVar("Option")


def pick(rng: np.random.Generator, options: Sequence[Option]) -> Option:
    """Draw one of the options, each as often as the others."""
    return options[int(rng.integers(len(options)))]


def pick_weighted(rng: np.random.Generator, weights: Mapping[Option, float]) -> Option:
    """Draw one of the options in proportion to its weight."""
    shares = np.fromiter(weights.values(), dtype=float)
    return list(weights)[rng.choice(len(shares), p=shares / shares.sum())]


def pick_usual(rng: np.random.Generator, options: Sequence[Option]) -> Option:
    """Draw the first option with the probability `USUAL`, and otherwise one of the others. A single option is always
    drawn."""
    if len(options) == 1 or rng.random() < USUAL:
        return options[0]
    return pick(rng, options[1:])


@dataclass(frozen=True)
class Thing:
    """One or several (`count`) equal figures in a scene. If `mentioned` is false, no caption mentions these figures."""

    kind: str
    colour: str
    size: str
    action: str
    count: int
    mentioned: bool

    @property
    def airborne(self) -> bool:
        return MEDIUM.get(self.action) == "air"


@dataclass(frozen=True)
class Figure:
    """One figure of the thing `scene.things[thing]`. `x` is the column of its middle, `base` the row of its foot,
    `depth` the row of the ground beneath it, and `unit` the length of its drawing unit, all in pixels. It faces right,
    or left if it is `mirrored`."""

    thing: int
    x: float
    base: float
    depth: float
    unit: float
    mirrored: bool
    seat: int | None = None  # position in `scene.things` of the bench or chair on which the figure sits, or None

    def extent(self, thing: Thing) -> tuple[float, float, float, float]:
        """Estimate the box x1, y1, x2, y2 of the figure in pixels. `thing` is the thing to which the figure belongs."""
        width, height = KINDS[thing.kind].girth
        if thing.action in LIFTED:
            height *= 1.2
        half = 0.5 * width * self.unit
        return self.x - half, self.base - height * self.unit, self.x + half, self.base


@dataclass(frozen=True)
class Scene:
    """A scene of `width` times `height` pixels. `horizon` is the first row of the ground. `figures` are in order from
    back to front."""

    width: int
    height: int
    horizon: int
    place: str
    light: str
    things: tuple[Thing, ...]
    figures: tuple[Figure, ...]


def sample_scene(rng: np.random.Generator) -> Scene:
    """Sample a random scene of one to four figures. Captions can mention at least the first thing of the scene."""
    width = int(rng.integers(WIDTHS[0], WIDTHS[1] + 1))
    place = pick(rng, tuple(PLACES))
    light = "day" if place in INDOORS else pick_weighted(rng, LIGHTS)
    height = round(0.75 * width)
    horizon = round(height * rng.uniform(*PLACES[place].horizon))
    empty = Scene(width, height, horizon, place, light, (), ())
    return _back_to_front(_populate(empty, _sample_things(place, rng), rng))


def _sample_things(place: str, rng: np.random.Generator) -> list[Thing]:
    """Choose one to four things of different kinds. At most one is a distractor, which captions never mention."""
    mentioned = pick_weighted(rng, {1: 0.2, 2: 0.5, 3: 0.3})
    distracted = rng.random() < 0.4
    kinds = [kind for kind in KINDS if place in KINDS[kind].places]
    weights = np.array([1 + min(len(KINDS[kind].actions), LIVELY) for kind in kinds])
    chosen = rng.choice(kinds, mentioned + distracted, replace=False, p=weights / weights.sum()).tolist()
    things = [_sample_thing(kind, place, i < mentioned, rng) for i, kind in enumerate(chosen)]
    # A bench or chair comes first, because the other things can only sit on the first thing. A distractor stays last.
    return sorted(things, key=lambda thing: not (thing.kind in SEATS and thing.mentioned))


def _sample_thing(name: str, place: str, mentioned: bool, rng: np.random.Generator) -> Thing:
    kind = KINDS[name]
    media = PLACES[place].media
    actions = [action for action in kind.actions if MEDIUM.get(action, "ground") in media]
    colours = [colour for colour in kind.colours if colour not in PLACES[place].hides]
    several = kind.group and mentioned and rng.random() < 0.18
    return Thing(
        name,
        pick(rng, colours),
        pick(rng, ("small", "medium", "medium", "large")),
        pick(rng, actions),
        int(rng.integers(2, 4)) if several else 1,
        mentioned,
    )


def _populate(scene: Scene, candidates: list[Thing], rng: np.random.Generator) -> Scene:
    """Add the `candidates` one after another to `scene`, which is empty, and return the resulting scene. A candidate is
    left out if `_add` cannot place it. If the first candidate cannot be placed, all candidates become small and single,
    and are added to the empty scene again."""
    grown = scene
    for thing in candidates:
        grown = _add(grown, thing, rng)
        if not grown.things:  # No spot was found for the first thing, so all things become small and single.
            return _populate(scene, [replace(thing, size="small", count=1) for thing in candidates], rng)
    return grown


def _add(scene: Scene, thing: Thing, rng: np.random.Generator) -> Scene:
    """Return `scene` with `thing` at a random spot for which `_all_in_sight` is true. Return `scene` unchanged if no
    such spot is found in ATTEMPTS attempts, or if the scene would have more than MAX_FIGURES figures."""
    if len(scene.figures) + thing.count <= MAX_FIGURES:
        for _ in range(ATTEMPTS):
            grown = _add_thing(scene, thing, rng)
            if _all_in_sight(grown):
                return grown
    return scene


def _add_thing(scene: Scene, thing: Thing, rng: np.random.Generator) -> Scene:
    """Return `scene` with `thing` at a random spot, even if the thing hides something there. The figures of the thing
    are side by side."""
    number = len(scene.things)
    first = _first_figure(scene, thing, number, rng)
    figures = [first]
    for _ in range(1, thing.count):
        step = KINDS[thing.kind].girth[0] * first.unit * rng.uniform(0.85, 1.15)
        depth_shift = rng.uniform(-3, 3)
        last = figures[-1]
        figures.append(replace(last, x=last.x + step, base=first.base + depth_shift, depth=first.depth + depth_shift))
    return replace(scene, things=(*scene.things, thing), figures=(*scene.figures, *figures))


def _first_figure(scene: Scene, thing: Thing, number: int, rng: np.random.Generator) -> Figure:
    mirrored = bool(rng.random() < 0.5)
    anchor = scene.figures[0] if scene.figures else None
    if anchor is not None and _can_sit(thing, scene.things[0]) and rng.random() < 0.85:
        seat = anchor.base - SEATS[scene.things[0].kind] * anchor.unit
        unit = _unit(scene, thing, anchor.depth)
        return Figure(number, anchor.x + rng.uniform(-3, 3), seat, anchor.depth + 1, unit, mirrored, seat=0)
    depth, x = _ground_spot(scene, thing, anchor, rng)
    unit = _unit(scene, thing, depth)
    base = depth
    if thing.airborne:
        base = scene.height * rng.uniform(0.28, 0.55)
        unit = _unit(scene, thing, 0.5 * (scene.horizon + scene.height))
    elif thing.action in LIFTED:
        base = depth - unit * rng.uniform(0.18, 0.4) * (1.0 if thing.action == "jump" else 3.0)
    return Figure(number, x, base, depth, unit, mirrored)


def _ground_spot(scene: Scene, thing: Thing, anchor: Figure | None, rng: np.random.Generator) -> tuple[float, float]:
    """Choose the `depth` and the `x` of a figure of `thing`, in pixels. If `anchor` is None, the spot is anywhere.
    Otherwise `anchor` is the first figure of the scene, and the spot is anywhere, or next to, behind, in front of,
    above or below this figure."""
    near = scene.height - 3
    far = scene.horizon + 0.25 * (scene.height - scene.horizon)
    depth = rng.uniform(far, near)
    x = scene.width * rng.uniform(0.12, 0.88)
    if anchor is None or rng.random() < 0.25:
        return depth, x
    if thing.airborne or scene.things[0].airborne:
        return depth, anchor.x + rng.uniform(-12, 12)
    widths = [KINDS[t.kind].girth[0] * _unit(scene, t, anchor.depth) for t in (thing, scene.things[0])]
    side = rng.choice([-1, 1])
    if rng.random() < 0.5:
        return anchor.depth + rng.uniform(-4, 4), anchor.x + side * 0.5 * sum(widths) * rng.uniform(0.95, 1.3)
    return depth, anchor.x + side * 0.5 * max(widths) * rng.uniform(0.2, 0.9)


def _unit(scene: Scene, thing: Thing, depth: float) -> float:
    """Return the length of the drawing unit of `thing` in pixels, if the ground beneath it is in the row `depth` of the
    image. The unit is shorter nearer to the horizon."""
    nearness = (depth - scene.horizon) / (scene.height - scene.horizon)
    return scene.height * KINDS[thing.kind].unit * SIZES[thing.size] * (0.72 + 0.42 * nearness)


def _can_sit(thing: Thing, seat: Thing) -> bool:
    fits = KINDS[thing.kind].unit <= 1.2 * KINDS[seat.kind].unit and thing.size != "large"
    still = thing.action in ("sit", "sleep") or (thing.kind == "bird" and thing.action == "stand")
    return seat.kind in SEATS and seat.count == thing.count == 1 and fits and still


def _all_in_sight(scene: Scene) -> bool:
    """Return whether every figure is well visible.

    A figure must be inside the image, except for a narrow strip at a side or the top of a tall thing. A nearer figure
    must not cover more than the share COVERED of the figure, unless the nearer figure sits on a bench or chair.
    """
    figures = _back_to_front(scene).figures
    extents = [figure.extent(scene.things[figure.thing]) for figure in figures]
    for i, (x1, y1, x2, y2) in enumerate(extents):
        headroom = y1 + (0.2 * (y2 - y1) if scene.things[figures[i].thing].kind in TALL else 0)
        if min(scene.width - x1, x2) < 0.85 * (x2 - x1) or headroom < 0 or y2 > scene.height:
            return False
        for nearer in range(i + 1, len(extents)):
            left, top, right, bottom = extents[nearer]
            overlap = max(0.0, min(x2, right) - max(x1, left)) * max(0.0, min(y2, bottom) - max(y1, top))
            if figures[nearer].seat is None and overlap > COVERED * (x2 - x1) * (y2 - y1):
                return False
    return True


def _back_to_front(scene: Scene) -> Scene:
    return replace(scene, figures=tuple(sorted(scene.figures, key=lambda figure: figure.depth)))
