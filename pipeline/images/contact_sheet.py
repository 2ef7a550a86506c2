"""Contact sheets: images with their regions drawn in."""

import colorsys
import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

CELL = 256
"""Side in pixels of the square for an image."""
LINE = 14
"""Height in pixels of a line of text."""
DARK, LIGHT = (24, 24, 28), (235, 235, 235)


class SheetPicture(NamedTuple):
    """An RGB image, its regions and scores (best first), and the line of text below.

    `image` is None if it could not be read; the line then says why. `labels` (n,) replace the scores in the drawing.
    """

    image: Image.Image | None
    boxes: np.ndarray
    scores: np.ndarray
    line: str
    labels: Sequence[str] | None = None


def picture_spoken_of(
    image: Image.Image | None, line: str, boxes: np.ndarray, texts: Sequence[str], scores: Sequence[float], top: int
) -> SheetPicture:
    """The `top` regions with the greatest sum of `scores`, each labelled with all its texts.

    boxes (n, 4), texts (n,) and scores (n,); several texts may share a box.
    """
    by_box: dict[tuple[float, ...], list[int]] = {}
    for number, box in enumerate(np.asarray(boxes).tolist()):
        by_box.setdefault(tuple(box), []).append(number)
    totals = {box: sum(scores[number] for number in own) for box, own in by_box.items()}
    best = sorted(by_box, key=totals.__getitem__, reverse=True)[:top]
    labels = [" .. ".join(texts[number] for number in by_box[box]) for box in best]
    return SheetPicture(image, np.array(best), np.array([totals[box] for box in best]), line, labels)


def draw_sheet(pictures: Sequence[SheetPicture], columns: int) -> Image.Image:
    """All pictures on one RGB image with `columns` columns."""
    rows = -(-len(pictures) // columns)
    sheet = Image.new("RGB", (columns * CELL, rows * (CELL + LINE)), DARK)
    for number, picture in enumerate(pictures):
        sheet.paste(_draw(picture), (number % columns * CELL, number // columns * (CELL + LINE)))
    return sheet


def to_png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _draw(picture: SheetPicture) -> Image.Image:
    """One picture, (CELL, CELL + LINE): the image scaled to fit, its boxes with the best on top, and its line."""
    cell = Image.new("RGB", (CELL, CELL + LINE), DARK)
    pen = ImageDraw.Draw(cell)
    if picture.image is not None:
        width, height = picture.image.size
        scale = CELL / max(width, height)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        left, top = (CELL - size[0]) // 2, (CELL - size[1]) // 2
        cell.paste(picture.image.resize(size), (left, top))
        for number in range(len(picture.boxes) - 1, -1, -1):
            x1, y1, x2, y2 = picture.boxes[number] * np.tile(np.divide(size, (width, height)), 2)
            opposite = (left + max(x1, min(x2, size[0] - 1)), top + max(y1, min(y2, size[1] - 1)))
            text = picture.labels[number] if picture.labels else f"{picture.scores[number]:.2f}"
            hue = number * 0.382 % 1  # the golden angle, which keeps successive hues far apart
            colour = tuple(round(255 * part) for part in colorsys.hsv_to_rgb(hue, 0.7, 1))
            pen.rectangle((left + x1, top + y1, *opposite), outline=colour, width=2)
            at = (left + x1 + 2, top + y1)
            pen.rectangle(pen.textbbox(at, text), fill=colour)
            pen.text(at, text, DARK)
    pen.text((3, CELL + 1), picture.line[: CELL // 6], LIGHT)
    return cell
