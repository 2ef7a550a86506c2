"""Paints the backgrounds of scenes. The sky is painted first, and then a function for the place paints everything else.

The pixels of a background are a `canvas` (height, width, 3) of float32, whose values may also be below 0 or above 255.
"""

from collections.abc import Callable

import numpy as np
from PIL import Image

RGB = tuple[float, float, float]
"""The values of red, green and blue of a colour, each from 0 to 255."""

SKIES: dict[str, tuple[tuple[RGB, RGB], ...]] = {
    "day": (
        ((92, 154, 228), (190, 220, 244)),
        ((120, 170, 226), (226, 236, 244)),
        ((150, 166, 186), (208, 214, 220)),
    ),
    "sunset": (((112, 82, 148), (252, 164, 92)), ((214, 92, 84), (254, 206, 120))),
    "night": (((14, 18, 48), (44, 58, 104)), ((22, 22, 40), (64, 60, 96))),
}


def paint_place(place: str, light: str, height: int, width: int, horizon: int, rng: np.random.Generator) -> np.ndarray:
    """Return the background of a scene as pixels (height, width, 3) float32. `horizon` is the first row of the ground.
    The values may also be below 0 or above 255."""
    canvas = np.empty((height, width, 3), dtype=np.float32)
    _sky(canvas, light, horizon, rng)
    GROUNDS[place](canvas, horizon, rng)
    return canvas


def _sky(canvas: np.ndarray, light: str, horizon: int, rng: np.random.Generator) -> None:
    """Paint the sky into the rows above the horizon, and into four rows below it, in place."""
    height, width, _ = canvas.shape
    rows = min(height, horizon + 4)
    choices = SKIES[light]
    canvas[:rows] = gradient(rows, width, *choices[rng.integers(len(choices))])
    x = width * rng.uniform(0.1, 0.9)
    y = horizon * rng.uniform(0.15, 0.5)
    if light == "night":
        scatter(rng, canvas[: max(2, horizon // 2)], 25, [(230, 230, 240), (180, 180, 210)])
        _disc(canvas[:rows], x, y, 0.06 * height, (246, 242, 214))
    elif light == "sunset":
        _disc(canvas[:rows], x, 0.8 * horizon, 0.1 * height, (255, 240, 170))
    else:
        clouds = np.clip(noise(rng, rows, width, (9, 30)) - 0.3, 0, 1)[:, :, None]
        canvas[:rows] += 0.7 * clouds * (246 - canvas[:rows])


def _disc(canvas: np.ndarray, x: float, y: float, radius: float, colour: RGB) -> None:
    rows, columns = np.ogrid[: canvas.shape[0], : canvas.shape[1]]
    cover = np.clip(radius + 0.5 - np.hypot(rows - y, columns - x), 0, 1).astype(np.float32)[:, :, None]
    canvas += cover * (np.asarray(colour, dtype=np.float32) - canvas)


def _lay(canvas: np.ndarray, horizon: int, far: RGB, near: RGB, rng: np.random.Generator) -> np.ndarray:
    """Paint the ground in place, from the colour `far` at the horizon to `near` at the bottom, both a little darker or
    brighter at random. Return the ground's part of the canvas, a view (height - horizon, width, 3)."""
    ground = canvas[horizon:]
    gain = rng.uniform(0.88, 1.1)
    ground[:] = gradient(ground.shape[0], ground.shape[1], np.multiply(far, gain), np.multiply(near, gain))
    return ground


def _grass(canvas: np.ndarray, horizon: int, rng: np.random.Generator) -> None:
    width = canvas.shape[1]
    fill_below(canvas, ridge(rng, width, horizon, 14, 24), horizon, (78, 128, 76))
    fill_below(canvas, ridge(rng, width, horizon, 7, 5), horizon, (52, 100, 56))
    ground = _lay(canvas, horizon, (122, 176, 78), (74, 138, 50), rng)
    roughen(ground, rng, (3.5, 1), 13)
    roughen(ground, rng, (12, 40), 7)


def _meadow(canvas: np.ndarray, horizon: int, rng: np.random.Generator) -> None:
    fill_below(canvas, ridge(rng, canvas.shape[1], horizon, 20, 50), horizon, (128, 172, 108))
    ground = _lay(canvas, horizon, (156, 190, 92), (92, 150, 58), rng)
    roughen(ground, rng, (3, 1.5), 12)
    petals = [(250, 246, 250), (250, 222, 60), (236, 84, 110), (180, 110, 220), (252, 160, 60)]
    chosen = [petals[i] for i in rng.permutation(len(petals))[:3]]
    scatter(rng, ground, ground.shape[0] * ground.shape[1] // 45, chosen)


def _beach(canvas: np.ndarray, horizon: int, rng: np.random.Generator) -> None:
    height, width, _ = canvas.shape
    shore = horizon + round((height - horizon) * rng.uniform(0.16, 0.3))
    sea = canvas[horizon : shore + 4]
    sea[:] = gradient(sea.shape[0], width, (34, 108, 170), (92, 184, 204))
    roughen(sea, rng, (1, 14), 12)
    tide = ridge(rng, width, shore + 3, 5, 34)
    canvas[shore + 4 :] = (226, 202, 148)
    fill_below(canvas, tide - 2, height, (250, 250, 246))
    fill_below(canvas, tide, height, tuple(np.multiply((228, 204, 152), rng.uniform(0.9, 1.06))))
    sand = canvas[shore + 4 :]
    roughen(sand, rng, (1, 1), 9)
    roughen(sand, rng, (5, 26), 7)


def _street(canvas: np.ndarray, horizon: int, rng: np.random.Generator) -> None:
    height, width, _ = canvas.shape
    left = 0
    while left < width:
        right = left + int(rng.integers(22, 46))
        _building(canvas[:horizon, left:right], rng)
        left = right
    pavement = horizon + (height - horizon) // 5
    canvas[horizon:pavement] = (176, 172, 166)
    canvas[pavement : pavement + 2] = (120, 118, 116)
    road = _lay(canvas, pavement + 2, (96, 96, 102), (78, 78, 84), rng)
    roughen(canvas[horizon:], rng, (1, 1), 8)
    line = road.shape[0] * 2 // 5
    phase = int(rng.integers(0, 24))
    dashes = (np.arange(width) + phase) % 26 < 15
    road[line : line + 3, dashes] = (232, 228, 214)


def _building(front: np.ndarray, rng: np.random.Generator) -> None:
    """Paint the front of a house with windows into `front` (horizon, width, 3), a view of some columns above the
    horizon. The roof is at a random height."""
    tones = [(168, 120, 98), (196, 180, 156), (142, 140, 150), (184, 150, 128), (120, 112, 116), (206, 196, 186)]
    height = front.shape[0]
    top = int(height * rng.uniform(0.0, 0.55))
    front[top:] = tones[rng.integers(len(tones))]
    front[top : top + 2] *= 0.75
    front[:, -1] *= 0.8
    pane = [(92, 112, 134), (236, 214, 140)][int(rng.random() < 0.25)]
    for y in range(top + 5, height - 6, 10):
        for x in range(4, front.shape[1] - 6, 9):
            front[y : y + 5, x : x + 4] = pane


def _snow(canvas: np.ndarray, horizon: int, rng: np.random.Generator) -> None:
    width = canvas.shape[1]
    canvas[: horizon + 4] = 0.55 * canvas[: horizon + 4] + 0.45 * 216
    fill_below(canvas, ridge(rng, width, horizon, 24, 30), horizon, (206, 216, 230))
    teeth = ridge(rng, width, horizon, 3, 9) - 7 * np.abs(((np.arange(width) / 4.5) % 2) - 1) * (rng.random() < 0.7)
    fill_below(canvas, teeth, horizon, (104, 128, 122))
    ground = _lay(canvas, horizon, (206, 214, 226), (224, 229, 236), rng)
    roughen(ground, rng, (9, 26), 7)
    roughen(ground, rng, (1, 1), 3)


def _lake(canvas: np.ndarray, horizon: int, rng: np.random.Generator) -> None:
    width = canvas.shape[1]
    fill_below(canvas, ridge(rng, width, horizon, 20, 40), horizon, (96, 128, 138))
    fill_below(canvas, ridge(rng, width, horizon, 7, 12), horizon, (62, 104, 78))
    water = _lay(canvas, horizon, (118, 172, 196), (36, 98, 146), rng)
    depth = water.shape[0]
    roughen(water[: depth // 2], rng, (1, 12), 9)
    roughen(water[depth // 2 :], rng, (2.5, 20), 14)


def _forest(canvas: np.ndarray, horizon: int, rng: np.random.Generator) -> None:
    height, width, _ = canvas.shape
    wood = canvas[: horizon + 2]
    wood[:] = gradient(wood.shape[0], width, (40, 78, 44), (112, 146, 92))
    roughen(wood, rng, (3, 4), 15)
    for _ in range(int(rng.integers(9, 16))):
        x = int(rng.integers(0, width))
        half = int(rng.integers(1, 5))
        tone = np.multiply((88, 66, 50), rng.uniform(0.6, 1.15))
        canvas[: horizon + half, max(0, x - half) : x + half] = tone
        canvas[: horizon + half, max(0, x - half) : x - half + 1] *= 1.25
    crown = noise(rng, horizon // 2, width, (4, 5)) > np.linspace(-1.2, 1.6, horizon // 2)[:, None]
    canvas[: horizon // 2][crown] = (52, 98, 48)
    ground = _lay(canvas, horizon + 1, (104, 108, 62), (124, 92, 56), rng)
    roughen(ground, rng, (2, 3), 15)


def _room(canvas: np.ndarray, horizon: int, rng: np.random.Generator) -> None:
    height, width, _ = canvas.shape
    walls = [(232, 218, 190), (198, 214, 204), (214, 202, 220), (236, 206, 190), (204, 216, 230)]
    wall = canvas[:horizon]
    wall[:] = walls[rng.integers(len(walls))]
    if rng.random() < 0.5:
        wall[:, (np.arange(width) // 6) % 2 == 0] *= 0.95
    _window(wall, int(rng.integers(6, width - 50)), rng)
    canvas[horizon - 4 : horizon] = (246, 242, 234)
    floor = _lay(canvas, horizon, (176, 126, 82), (150, 100, 60), rng)
    if rng.random() < 0.6:
        for y in np.cumsum([4, 5, 7, 9, 11, 13, 15]):
            floor[y : y + 1] *= 0.78
        roughen(floor, rng, (2, 30), 7)
    else:
        floor[:] = np.multiply(walls[rng.integers(len(walls))], (0.72, 0.6, 0.62))
        roughen(floor, rng, (1, 1), 8)


def _window(wall: np.ndarray, left: int, rng: np.random.Generator) -> None:
    """Paint a window that shows the sky into `wall` (horizon, width, 3), in place. `left` is its first column."""
    bottom = int(wall.shape[0] * 0.72)
    frame = wall[4:bottom, left : left + 40]
    frame[:] = (250, 248, 242)
    frame[3:-3, 3:-3] = gradient(bottom - 10, 34, (120, 176, 232), (206, 230, 246))
    frame[:, 19:21] = (250, 248, 242)


def _desert(canvas: np.ndarray, horizon: int, rng: np.random.Generator) -> None:
    height, width, _ = canvas.shape
    fill_below(canvas, ridge(rng, width, horizon, 26, 46), horizon, (196, 128, 78))
    fill_below(canvas, ridge(rng, width, horizon, 12, 60), horizon, (222, 160, 96))
    ground = _lay(canvas, horizon, (236, 184, 116), (220, 156, 86), rng)
    rows, columns = np.ogrid[: ground.shape[0], :width]
    bend = 5 * noise(rng, len(ground), ground.shape[1], (20, 40))
    waves = np.sin((rows + 0.1 * columns + bend) * rng.uniform(0.7, 1.1)).astype(np.float32)
    ground += 7 * waves[:, :, None]
    roughen(ground, rng, (1, 1), 5)


def _mountains(canvas: np.ndarray, horizon: int, rng: np.random.Generator) -> None:
    height, width, _ = canvas.shape
    peaks = ridge(rng, width, horizon - 0.2 * horizon, 0.7 * horizon, 26)
    fill_below(canvas, peaks, horizon, (240, 244, 250))
    fill_below(canvas, peaks + 0.22 * horizon + noise(rng, 2, width, (1, 4))[0], horizon, (112, 118, 138))
    fill_below(canvas, ridge(rng, width, horizon, 9, 16), horizon, (96, 108, 100))
    ground = _lay(canvas, horizon, (142, 140, 122), (128, 122, 110), rng)
    roughen(ground, rng, (4, 7), 14)
    roughen(ground, rng, (1.5, 2), 9)


GROUNDS: dict[str, Callable[[np.ndarray, int, np.random.Generator], None]] = {
    "grass": _grass,
    "meadow": _meadow,
    "beach": _beach,
    "street": _street,
    "snow": _snow,
    "lake": _lake,
    "forest": _forest,
    "room": _room,
    "desert": _desert,
    "mountains": _mountains,
}


def gradient(height: int, width: int, top: RGB | np.ndarray, bottom: RGB | np.ndarray) -> np.ndarray:
    """Return pixels (height, width, 3) whose colour changes evenly from `top` in the first row to `bottom` in the
    last."""
    share = np.linspace(0, 1, height, dtype=np.float32)[:, None]
    rows = np.asarray(top, dtype=np.float32) * (1 - share) + np.asarray(bottom, dtype=np.float32) * share
    return np.repeat(rows[:, None, :], width, axis=1)


def noise(rng: np.random.Generator, height: int, width: int, grain: tuple[float, float]) -> np.ndarray:
    """Return random noise (height, width). The noise is normal with standard deviation 1 at points that are about
    `grain` pixels apart (down, across), and interpolated between these points."""
    coarse = (max(2, round(height / grain[0])), max(2, round(width / grain[1])))
    values = rng.standard_normal(coarse, dtype=np.float32)
    if coarse == (height, width):
        return values
    return np.asarray(Image.fromarray(values).resize((width, height), Image.Resampling.BILINEAR))


def roughen(canvas: np.ndarray, rng: np.random.Generator, grain: tuple[float, float], strength: float) -> None:
    """Add `strength` times random noise of standard deviation 1 to the brightness of `canvas` (h, w, 3), in place.
    `grain` is the distance (down, across) in pixels between the points of the noise, which is interpolated between
    them."""
    canvas += strength * noise(rng, canvas.shape[0], canvas.shape[1], grain)[:, :, None]


def ridge(rng: np.random.Generator, width: int, level: float, rise: float, grain: float) -> np.ndarray:
    """Return the outline of hills (width,). The outline has a row between `level` - `rise` and `level` for each column.
    The rows are random at points that are about `grain` columns apart, and interpolated linearly between these
    points."""
    points = max(3, round(width / grain) + 1)
    heights = level - rise * rng.random(points)
    return np.interp(np.linspace(0, points - 1, width), np.arange(points), heights).astype(np.float32)


def fill_below(canvas: np.ndarray, outline: np.ndarray, bottom: int, colour: RGB) -> None:
    """Colour the pixels from the row `outline[x]` down to the row `bottom` - 1 in each column x, in place. The upper
    edge is soft."""
    top = max(0, int(outline.min()) - 1)
    rows = np.arange(top, bottom, dtype=np.float32)[:, None]
    cover = np.clip(rows - outline[None, :] + 0.5, 0, 1)[:, :, None]
    part = canvas[top:bottom]
    part += cover * (np.asarray(colour, dtype=np.float32) - part)


def scatter(rng: np.random.Generator, canvas: np.ndarray, count: int, colours: list[RGB]) -> None:
    """Draw `count` dots in random colours of `colours` in place. Dots in the upper third have one pixel, and other dots
    have three."""
    height, width, _ = canvas.shape
    ys = (height * rng.random(count) ** 0.8).astype(int)
    xs = rng.integers(0, width, count)
    tones = np.asarray(colours, dtype=np.float32)[rng.integers(0, len(colours), count)]
    canvas[ys, xs] = tones
    near = ys > height // 3
    canvas[ys[near], np.minimum(xs[near] + 1, width - 1)] = tones[near]
    canvas[np.minimum(ys[near] + 1, height - 1), xs[near]] = tones[near] * 0.9
