"""Draws a scene like a photo, and determines the visible part of each figure and the facts that captions may state."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from pipeline.demo import creatures, drawing
from pipeline.demo.drawing import HALF_WIDTH, TOP, Look, Pen, mix
from pipeline.demo.places import paint_place
from pipeline.demo.scene import COLOURS, KINDS, MEDIUM, SHELTERS, Figure, Scene, Thing, pick

Box = tuple[int, int, int, int]
JPEG_QUALITY = 88
FALLING_SNOW = 0.4  # probability that snow is falling in a scene whose place is `snow`
TINTS = {"day": (1.0, 1.0, 1.0), "sunset": (1.06, 0.88, 0.74), "night": (0.55, 0.6, 0.8)}
_SOLID = [0] * 128 + [255] * 128
_DRAWN = (
    *(creatures.bird, creatures.duck, drawing.car, drawing.bus, drawing.bicycle, drawing.boat, drawing.ball),
    *(drawing.kite, drawing.balloon, drawing.tree, drawing.house, drawing.bench, drawing.tent, drawing.chair),
    drawing.lamp,
)
DRAWINGS = {draw.__name__: draw for draw in _DRAWN}
"""Kind of thing -> the function that draws it, for the kinds that are neither in `creatures.ANIMALS` nor in
`creatures.PEOPLE`."""
DRAFTS = {"dog": 0.27, "man": 0.6, "woman": 0.6, "boy": 0.5, "girl": 0.5, "duck": 0.03}
"""The height of the part of a swimming figure that is under water, in drawing units, for each kind that can swim."""

_SKINS = ((250, 216, 186), (236, 188, 150), (196, 140, 100), (142, 94, 62), (98, 64, 44))
_HAIRS = ((40, 30, 26), (92, 58, 34), (150, 98, 48), (214, 170, 84), (176, 78, 38), (120, 116, 114))
_TROUSERS = ((52, 62, 92), (70, 66, 62), (112, 96, 74), (84, 104, 138))


@dataclass(frozen=True)
class Outline:
    """The visible part of a figure. Boxes are x1, y1, x2, y2 in pixels, and end at the edges of the image.

    `extent` is the box of the whole figure. `box` is the box of the part that is not covered by nearer figures, or None
    if the whole figure is covered. `visible` is the number of pixels of this part, divided by the number of all pixels
    of the figure in the image.
    """

    extent: Box
    box: Box | None
    visible: float


def draw_picture(scene: Scene, rng: np.random.Generator) -> tuple[bytes, list[Outline]]:
    """Draw a scene like a photo. Return the bytes of a JPEG, and an outline for each of `scene.figures`."""
    background = paint_place(scene.place, scene.light, scene.height, scene.width, scene.horizon, rng)
    image = Image.fromarray(background.clip(0, 255).astype(np.uint8))
    cover = Image.new("L", image.size)  # number of the nearest figure at each pixel, from 1, or 0 for none
    extents = []
    areas = []
    for number, figure in enumerate(scene.figures, start=1):
        extents.append(_add_figure(image, cover, scene, figure, number, rng))
        areas.append(cover.histogram()[number])
    owners = np.asarray(cover)
    outlines = [_outline(owners == i + 1, extents[i], areas[i]) for i in range(len(areas))]
    return _expose(image, scene, rng), outlines


def _add_figure(
    image: Image.Image, cover: Image.Image, scene: Scene, figure: Figure, number: int, rng: np.random.Generator
) -> Box:
    """Paste one figure and its shadow into `image`. `cover` has the number of the nearest figure at each pixel, and is
    set to `number` at the pixels of this figure. Return the figure's box x1, y1, x2, y2 inside the image."""
    thing = scene.things[figure.thing]
    sprite = draw_figure(thing.kind, thing.colour, thing.action, figure.unit, rng)
    if figure.mirrored:
        sprite = sprite.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if not thing.airborne and figure.seat is None:
        _add_shadow(image, figure, KINDS[thing.kind].girth[0], MEDIUM.get(thing.action) == "water")
    corner = (round(figure.x - HALF_WIDTH * figure.unit), round(figure.base - TOP * figure.unit))
    image.paste(sprite, corner, sprite)
    alpha = sprite.getchannel("A").point(_SOLID)
    cover.paste(number, corner, alpha)
    extent = alpha.getbbox()
    assert extent is not None  # every figure has pixels
    x1, y1, x2, y2 = extent
    dx, dy = corner
    return max(0, x1 + dx), max(0, y1 + dy), min(image.width, x2 + dx), min(image.height, y2 + dy)


def _add_shadow(image: Image.Image, figure: Figure, girth: float, afloat: bool) -> None:
    """Draw a dim oval on the ground below the figure, or bright ripples on the water if the figure is `afloat`, into
    `image`. `girth` is the width of the figure in its drawing units."""
    half = max(2, round(0.46 * girth * figure.unit))
    flat = max(2, round(0.24 * half))
    mask = Image.new("L", (2 * half + 1, 2 * flat + 1))
    pen = ImageDraw.Draw(mask)
    if afloat:
        pen.ellipse((0, 0, 2 * half, 2 * flat), outline=150)
        pen.ellipse((half // 4, flat // 4, 2 * half - half // 4, 2 * flat - flat // 4), outline=90)
    else:
        pen.ellipse((0, 0, 2 * half, 2 * flat), fill=70)
        pen.ellipse((half // 4, flat // 4, 2 * half - half // 4, 2 * flat - flat // 4), fill=110)
    image.paste((236, 246, 250) if afloat else (16, 18, 30), (round(figure.x) - half, round(figure.depth) - flat), mask)


def _outline(mask: np.ndarray, extent: Box, area: int) -> Outline:
    """Return the outline of a figure. `mask` (h, w) is true at its visible pixels. `area` is the number of its pixels
    in the image before nearer figures covered it."""
    rows = np.flatnonzero(mask.any(axis=1))
    columns = np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return Outline(extent, None, 0.0)
    box = (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
    return Outline(extent, box, np.count_nonzero(mask) / area)


def _expose(image: Image.Image, scene: Scene, rng: np.random.Generator) -> bytes:
    """Add the flaws of a photo at random: blur, uneven light with a tint, sensor noise, and falling snow in a snowy
    scene. Return the bytes of a JPEG."""
    if rng.random() < 0.6:
        image = image.filter(ImageFilter.BoxBlur(rng.uniform(0.15, 0.5)))
    pixels = np.asarray(image, dtype=np.float32)
    height, width, _ = pixels.shape
    slope_y, slope_x = rng.uniform(-0.16, 0.16, 2)
    field = 1 + slope_y * np.linspace(-1, 1, height)[:, None] + slope_x * np.linspace(-1, 1, width)[None, :]
    field = (rng.uniform(0.82, 1.12) * field).astype(np.float32)
    tint = np.asarray(TINTS[scene.light] * rng.uniform(0.95, 1.05, 3), dtype=np.float32)
    pixels = pixels * field[:, :, None] * tint
    pixels += (rng.uniform(1.5, 6) * rng.standard_normal((height, width), dtype=np.float32))[:, :, None]
    if scene.place == "snow" and rng.random() < FALLING_SNOW:
        flakes = rng.integers(0, (height - 1, width - 1), (90, 2))
        for dy, dx in ((0, 0), (0, 1), (1, 0), (1, 1)):
            pixels[flakes[:, 0] + dy, flakes[:, 1] + dx] = 246 * tint
    buffer = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=JPEG_QUALITY)
    return buffer.getvalue()


def draw_figure(kind: str, colour: str, action: str, unit: float, rng: np.random.Generator) -> Image.Image:
    """Draw one figure that faces right, and return it as an RGBA sprite (see `Pen.lift`). `unit` is the length of the
    figure's drawing unit in pixels."""
    look = choose_look(colour, rng)
    pen = Pen(unit, draft=DRAFTS[kind] if action == "swim" else 0.0)
    if kind in creatures.ANIMALS:
        creatures.quadruped(pen, look, action, creatures.ANIMALS[kind])
    elif kind in creatures.PEOPLE:
        creatures.person(pen, look, action, creatures.PEOPLE[kind])
    else:
        DRAWINGS[kind](pen, look, action)
    return pen.lift()


def choose_look(colour: str, rng: np.random.Generator) -> Look:
    """Choose at random a variant of the colour with the name `colour`, and colours for skin, hair and trousers. The
    darker and the lighter tone are derived from the variant."""
    red, green, blue = np.clip(np.array(COLOURS[colour]) + rng.integers(-12, 13, 3), 0, 255).tolist()
    main = (red, green, blue)
    return Look(
        main,
        shade=mix(main, (20, 16, 34), 0.28),
        light=mix(main, (255, 252, 240), 0.3),
        skin=pick(rng, _SKINS),
        hair=pick(rng, _HAIRS),
        trousers=pick(rng, _TROUSERS),
    )


SEEN = 0.4  # minimum visible share of a figure's pixels for captions to mention it


@dataclass(frozen=True)
class Relation:
    """A relation such as `behind` (`name`) of one thing to another. `subject` and `other` are the positions of the two
    things in `Facts.things`."""

    subject: int
    name: str
    other: int


@dataclass(frozen=True)
class Facts:
    """The facts about a drawn scene that captions may state. `things` has the visible things that captions may mention.
    The `count` of a thing is the number of its visible figures. `seated` has the kinds of the things that sit on a
    bench or chair."""

    place: str
    light: str
    things: tuple[Thing, ...]
    relations: tuple[Relation, ...] = ()
    seated: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Sight:
    """A visible thing that captions may mention.

    A figure counts as visible if nearer figures leave at least the share SEEN of the figure uncovered. `thing.count` is
    the number of visible figures. `box` is the box x1, y1, x2, y2 in pixels around the visible figures. `figure` is the
    first visible figure, whose `depth` and `seat` are used for the whole thing.
    """

    thing: Thing
    box: Box
    figure: Figure


def read_facts(scene: Scene, outlines: Sequence[Outline]) -> Facts:
    """Return the facts that can be seen in a drawn scene. `outlines[i]` is the outline of `scene.figures[i]`."""
    sights = [sight for number in range(len(scene.things)) if (sight := _see(scene, outlines, number))]
    relations = (
        Relation(i, name, j)
        for i, a in enumerate(sights)
        for j, b in enumerate(sights)
        if i != j
        for name in _relations(scene, a, b)
    )
    seated = frozenset(sight.thing.kind for sight in sights if sight.figure.seat is not None)
    return Facts(scene.place, scene.light, tuple(sight.thing for sight in sights), tuple(relations), seated)


def _see(scene: Scene, outlines: Sequence[Outline], number: int) -> _Sight | None:
    seen = [
        (figure, outline.extent)
        for figure, outline in zip(scene.figures, outlines, strict=True)
        if figure.thing == number and outline.visible >= SEEN
    ]
    thing = scene.things[number]
    if not seen or not thing.mentioned:
        return None
    x1, y1, x2, y2 = zip(*(extent for _, extent in seen), strict=True)
    return _Sight(replace(thing, count=len(seen)), (min(x1), min(y1), max(x2), max(y2)), seen[0][0])


def _relations(scene: Scene, a: _Sight, b: _Sight) -> list[str]:
    """Return the names of all relations of `a` to `b`, such as `next to` and `left of`."""
    overlap = min(a.box[2], b.box[2]) - max(a.box[0], b.box[0])
    share = overlap / min(a.box[2] - a.box[0], b.box[2] - b.box[0])
    nearer = (a.figure.depth - b.figure.depth) / scene.height
    if a.figure.seat is not None:
        return ["on"] if scene.things[a.figure.seat].kind == b.thing.kind else []
    if b.figure.seat is not None:
        return []
    if a.thing.airborne != b.thing.airborne:
        upper, lower = (a, b) if a.thing.airborne else (b, a)
        clear = upper.box[3] <= lower.box[1] + 0.1 * (lower.box[3] - lower.box[1])
        return [("above" if upper is a else "under")] if share >= 0.3 and clear else []
    if share >= 0.35:
        return _one_behind_the_other(a, b, share, nearer)
    names = ["next to"] if abs(nearer) < 0.12 and -overlap < 0.12 * scene.width else []
    if share < 0.15:
        names.append("left of" if a.box[0] + a.box[2] < b.box[0] + b.box[2] else "right of")
    return names


def _one_behind_the_other(a: _Sight, b: _Sight, share: float, nearer: float) -> list[str]:
    if a.thing.airborne or abs(nearer) < 0.04:
        return []
    names = ["in front of" if nearer > 0 else "behind"]
    crown = b.box[1] + 0.4 * (b.box[3] - b.box[1])
    if b.thing.kind in SHELTERS and b.thing.count == 1 and 0 < nearer < 0.12 and share > 0.8 and a.box[1] > crown:
        names.append("under")
    return names
