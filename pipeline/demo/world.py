"""What the demo's world is made of: one table that the pictures and the sentences both follow."""

from dataclasses import dataclass

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
"""Scale of each size against a medium thing of its kind."""

MEDIUM = {"swim": "water", "sail": "water", "float": "water", "fly": "air", "hover": "air"}
"""Where an action takes place; every other action, on the ground."""

LIFTED = ("jump", "bounce")
"""Actions on the ground that are seen at their highest point."""


SEATS = {"bench": 0.3, "chair": 0.46}
"""Kinds that one can sit on, and how high, in units."""

SHELTERS = ("tree",)
"""Kinds that one can be under while standing at their foot."""

TALL = ("tree", "house")
"""Kinds whose top the image may cut off."""


@dataclass(frozen=True)
class Scenery:
    """`media`: where actions can take place here. `hides`: the colours that its background would swallow."""

    media: tuple[str, ...]
    hides: tuple[str, ...]
    horizon: tuple[float, float]  # range of its height in the image, 0 at the top and 1 at the bottom


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
"""Light and how often it falls on an outdoor scene; indoors it is always day."""


@dataclass(frozen=True)
class Kind:
    """A kind of thing that can stand in a scene, and several of it where it is a `group`."""

    unit: float  # of a medium one, in image heights
    girth: tuple[float, float]  # about its width and height, in units
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
