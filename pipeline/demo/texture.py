"""Textures and outlines of backgrounds, as float32 arrays of RGB in 0..255."""

import numpy as np
from PIL import Image

RGB = tuple[float, float, float]


def gradient(height: int, width: int, top: RGB, bottom: RGB) -> np.ndarray:
    """(height, width, 3) from one colour at the top to another at the bottom."""
    share = np.linspace(0, 1, height, dtype=np.float32)[:, None]
    rows = np.asarray(top, dtype=np.float32) * (1 - share) + np.asarray(bottom, dtype=np.float32) * share
    return np.repeat(rows[:, None, :], width, axis=1)


def noise(rng: np.random.Generator, height: int, width: int, grain: tuple[float, float]) -> np.ndarray:
    """(height, width) smooth noise of about unit deviation; `grain`: height and width in pixels of its grains."""
    coarse = (max(2, round(height / grain[0])), max(2, round(width / grain[1])))
    values = rng.standard_normal(coarse, dtype=np.float32)
    if coarse == (height, width):
        return values
    return np.asarray(Image.fromarray(values).resize((width, height), Image.Resampling.BILINEAR))


def roughen(canvas: np.ndarray, texture: np.ndarray, strength: float) -> None:
    """Lighten and darken `canvas` (h, w, 3) by `texture` (h, w), in place."""
    canvas += strength * texture[:, :, None]


def ridge(rng: np.random.Generator, width: int, level: float, rise: float, grain: float) -> np.ndarray:
    """(width,) heights of an outline in pixels from the top: about `level`, going up by `rise` or less."""
    points = max(3, round(width / grain) + 1)
    heights = level - rise * rng.random(points)
    return np.interp(np.linspace(0, points - 1, width), np.arange(points), heights).astype(np.float32)


def fill_below(canvas: np.ndarray, outline: np.ndarray, bottom: int, colour: RGB) -> None:
    """Colour what lies between `outline` (width,) and the row `bottom`, with a soft edge, in place."""
    top = max(0, int(outline.min()) - 1)
    rows = np.arange(top, bottom, dtype=np.float32)[:, None]
    cover = np.clip(rows - outline[None, :] + 0.5, 0, 1)[:, :, None]
    part = canvas[top:bottom]
    part += cover * (np.asarray(colour, dtype=np.float32) - part)


def scatter(rng: np.random.Generator, canvas: np.ndarray, count: int, colours: list[RGB]) -> None:
    """Dots of 1 by 1 to 2 by 2 pixels, larger towards the bottom, in place."""
    height, width, _ = canvas.shape
    ys = (height * rng.random(count) ** 0.8).astype(int)
    xs = rng.integers(0, width, count)
    tones = np.asarray(colours, dtype=np.float32)[rng.integers(0, len(colours), count)]
    canvas[ys, xs] = tones
    near = ys > height // 3
    canvas[ys[near], np.minimum(xs[near] + 1, width - 1)] = tones[near]
    canvas[np.minimum(ys[near] + 1, height - 1), xs[near]] = tones[near] * 0.9
