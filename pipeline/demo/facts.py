"""What may be said of a picture: only what can be seen in it, and only relations that its geometry bears out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline.demo.picture import Box, Outline
from pipeline.demo.scene import Figure, Scene, Thing
from pipeline.demo.world import SHELTERS

SEEN = 0.4  # share of a figure's pixels that makes it worth a word


@dataclass(frozen=True)
class Relation:
    """`name` leads from one thing to another, both by their position among the facts' things."""

    subject: int
    name: str
    other: int


@dataclass(frozen=True)
class Facts:
    """`things` are those worth a word, `count` as many as can be seen; `seated` the kinds that are on a seat."""

    place: str
    light: str
    things: tuple[Thing, ...]
    relations: tuple[Relation, ...] = ()
    seated: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Sight:
    """A thing with the box around all its figures; depth and seat are those of its first one."""

    thing: Thing
    box: Box
    figure: Figure


def read_facts(scene: Scene, outlines: Sequence[Outline]) -> Facts:
    """The facts of a scene that was drawn with `outlines`, one for each of its figures."""
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
    """The names of all relations in which `a` stands to `b`."""
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
