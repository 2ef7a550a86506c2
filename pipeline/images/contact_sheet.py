"""Regions drawn into their images, many images on one sheet: for people to look at."""

import colorsys
import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

CELL = 256
"""Pixels of the square that an image lies in."""
LINE = 14
"""Pixels of a line of text."""
DARK, LIGHT = (24, 24, 28), (235, 235, 235)


class SheetPicture(NamedTuple):
    """An RGB image, the regions to draw with their scores, best first, and the line under it.

    `image` is None where it could not be read: the line says why. Where there are `labels` (n,), they stand at the
    regions in place of the scores.
    """

    image: Image.Image | None
    boxes: np.ndarray
    scores: np.ndarray
    line: str
    labels: Sequence[str] | None = None


def picture_spoken_of(
    image: Image.Image | None, line: str, boxes: np.ndarray, texts: Sequence[str], scores: Sequence[float], top: int
) -> SheetPicture:
    """The `top` regions with the greatest sum of `scores`, each with all the texts that are of its box.

    boxes (n, 4), texts (n,) and scores (n,): what is said, and where; several may have the same box.
    """
    by_box: dict[tuple[float, ...], list[int]] = {}
    for number, box in enumerate(np.asarray(boxes).tolist()):
        by_box.setdefault(tuple(box), []).append(number)
    totals = {box: sum(scores[number] for number in own) for box, own in by_box.items()}
    best = sorted(by_box, key=totals.__getitem__, reverse=True)[:top]
    labels = [" .. ".join(texts[number] for number in by_box[box]) for box in best]
    return SheetPicture(image, np.array(best), np.array([totals[box] for box in best]), line, labels)


def draw_sheet(pictures: Sequence[SheetPicture], columns: int) -> Image.Image:
    """One RGB image of all pictures, `columns` side by side."""
    rows = -(-len(pictures) // columns)
    sheet = Image.new("RGB", (columns * CELL, rows * (CELL + LINE)), DARK)
    for number, picture in enumerate(pictures):
        place = (number % columns * CELL, number // columns * (CELL + LINE))
        sheet.paste(_draw(picture), place)
    return sheet


def to_png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _draw(picture: SheetPicture) -> Image.Image:
    """(CELL, CELL + LINE) of one picture: the image as large as fits, its boxes, weakest below, and its line."""
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
            corner = (left + x1, top + y1)
            opposite = (left + max(x1, min(x2, size[0] - 1)), top + max(y1, min(y2, size[1] - 1)))
            text = picture.labels[number] if picture.labels else f"{picture.scores[number]:.2f}"
            _frame(pen, corner, opposite, text, _colour(number))
    pen.text((3, CELL + 1), picture.line[: CELL // 6], LIGHT)
    return cell


def _frame(pen: ImageDraw.ImageDraw, corner: tuple, opposite: tuple, text: str, colour: tuple[int, int, int]) -> None:
    pen.rectangle((*corner, *opposite), outline=colour, width=2)
    label = pen.textbbox((corner[0] + 2, corner[1]), text)
    pen.rectangle(label, fill=colour)
    pen.text((corner[0] + 2, corner[1]), text, DARK)


def _colour(number: int) -> tuple[int, int, int]:
    """Neighbouring numbers get hues far apart (the golden angle)."""
    return tuple(round(255 * part) for part in colorsys.hsv_to_rgb(number * 0.382 % 1, 0.7, 1))
