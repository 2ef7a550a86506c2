"""From a thing to its sprite."""

import numpy as np
from PIL import Image

from pipeline.demo import animals, objects, people
from pipeline.demo.chance import pick
from pipeline.demo.pen import Look, Pen, mix
from pipeline.demo.world import COLOURS

_DRAWN = (
    *(animals.bird, animals.duck, objects.car, objects.bus, objects.bicycle, objects.boat, objects.ball, objects.kite),
    *(objects.balloon, objects.tree, objects.house, objects.bench, objects.tent, objects.chair, objects.lamp),
)
DRAWINGS = {draw.__name__: draw for draw in _DRAWN}
"""Of kinds without a build."""
DRAFTS = {"dog": 0.27, "man": 0.6, "woman": 0.6, "boy": 0.5, "girl": 0.5, "duck": 0.03}
"""How deep the swimmers lie in the water, in units."""

_SKINS = ((250, 216, 186), (236, 188, 150), (196, 140, 100), (142, 94, 62), (98, 64, 44))
_HAIRS = ((40, 30, 26), (92, 58, 34), (150, 98, 48), (214, 170, 84), (176, 78, 38), (120, 116, 114))
_TROUSERS = ((52, 62, 92), (70, 66, 62), (112, 96, 74), (84, 104, 138))


def draw_figure(kind: str, colour: str, action: str, unit: float, rng: np.random.Generator) -> Image.Image:
    """An RGBA sprite of one thing that faces right; `unit` in pixels. Its sheet is described in `pen`."""
    look = choose_look(colour, rng)
    pen = Pen(unit, draft=DRAFTS[kind] if action == "swim" else 0.0)
    if kind in animals.BUILDS:
        animals.quadruped(pen, look, action, animals.BUILDS[kind])
    elif kind in people.BUILDS:
        people.person(pen, look, action, people.BUILDS[kind])
    else:
        DRAWINGS[kind](pen, look, action)
    return pen.lift()


def choose_look(colour: str, rng: np.random.Generator) -> Look:
    """A shade of `colour` that still bears its name, and the colours around it."""
    main = tuple(int(c) for c in np.clip(np.array(COLOURS[colour]) + rng.integers(-12, 13, 3), 0, 255))
    return Look(
        main,
        shade=mix(main, (20, 16, 34), 0.28),
        light=mix(main, (255, 252, 240), 0.3),
        skin=pick(rng, _SKINS),
        hair=pick(rng, _HAIRS),
        trousers=pick(rng, _TROUSERS),
    )
