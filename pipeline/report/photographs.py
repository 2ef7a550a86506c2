"""Photos for HTML pages and notebooks: thumbnails as `data:` addresses, samples of a collection, and contact sheets."""

import base64
import colorsys
import hashlib
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from pipeline.errors import InputError
from pipeline.images.decode import decode
from pipeline.images.opening import ImageLimits
from pipeline.images.preprocess import Photograph
from pipeline.index.exact import evenly_spaced
from pipeline.storage.manifest import Manifest
from pipeline.storage.tables import Row

THUMBNAIL_SIDE = 240
"""Longer side of a thumbnail in pixels, which is twice the displayed size, for sharp display on dense screens."""
MAX_DRAWING_WIDTH = 1600
"""Largest width of a drawing in pixels. A wider drawing is scaled down to this width."""
JPEG_QUALITY = 70
FIGURE_STYLE = "display: inline-block; width: 240px; margin: 8px; vertical-align: top; overflow-wrap: anywhere"
SAMPLES = 8
"""Number of sampled photos with captions, and of sampled photos with weak text."""
SAMPLE_CAPTIONS = 2
"""Number of captions that are shown for a sampled photo."""
CELL = 256
"""Side in pixels of the square for an image on a contact sheet."""
LINE = 14
"""Height in pixels of the line of text below an image on a contact sheet."""
GOLDEN = 0.381966
"""Step between the hues of the boxes on an image, as a share of the colour circle. This step is the golden angle, so
that the colours of successive boxes differ clearly."""
DARK = (24, 24, 28)
LIGHT = (235, 235, 235)


@dataclass(frozen=True)
class ReportPicture:
    """A photo on a page, with its name.

    `address` is the `data:` address of the photo, or None if the photo could not be read. `caption` is None if the
    photo has no caption.
    """

    name: str
    address: str | None
    caption: str | None = None

    @property
    def alt(self) -> str:
        """The text that a screen reader reads out for the photo: the caption, or else the name."""
        return self.caption or self.name


class Photographs:
    """Function that makes thumbnails for rows of the images' table.

    `read(path, offset, size)` returns the bytes of a photo, and `limits` limit the size of its image. `moved` says
    whether the photos are read from another folder than the folder that `ingest` read. In another folder, a file with
    the same name may be another photo, so a photo is only shown if it has the sha256 of the row. `caption(image_id)`
    returns the caption of a photo or None. `shown` records for each image_id whether its photo could be shown.
    """

    def __init__(
        self,
        read: Callable[..., bytes],
        limits: ImageLimits,
        moved: bool = False,
        caption: Callable[[int], str | None] = lambda _: None,
    ) -> None:
        self._read = read
        self._limits = limits
        self._moved = moved
        self._caption = caption
        self.shown: dict[int, bool] = {}

    def __call__(self, row: Row, box: Sequence[float] | None = None) -> ReportPicture:
        """Return the picture for a row of the images' table, which is a thumbnail of the photo.

        If `box` (x1, y1, x2, y2 in pixels) is given, the thumbnail shows only this part of the photo. The address of
        the picture is None if the photo cannot be read, or if it was moved and has another content.
        """
        photograph = Photograph.from_row(row)
        address = None
        with suppress(InputError):
            data = self._read(*photograph.location)
            if not self._moved or hashlib.sha256(data).hexdigest() == photograph.sha256:
                address = thumbnail(data, self._limits, box)
        self.shown[row["image_id"]] = address is not None
        return ReportPicture(photograph.name, address, self._caption(row["image_id"]))


def drawing(name: str, image: Image.Image) -> ReportPicture:
    """Return a drawn image with the name `name`, as a JPEG in a `data:` address. The JPEG is at most MAX_DRAWING_WIDTH
    pixels wide. `image` is not changed."""
    image = image.convert("RGB")
    image.thumbnail((MAX_DRAWING_WIDTH, image.height))
    return ReportPicture(name, _jpeg_address(image))


def thumbnail(data: bytes, limits: ImageLimits, box: Sequence[float] | None = None) -> str:
    """Make a small JPEG of an encoded image, and return its `data:` address.

    `data` are the bytes of the image. The JPEG has at most THUMBNAIL_SIDE pixels on each side. With `box` (x1, y1, x2,
    y2 in pixels), only this part of the image is shown. Raises UnreadableImage if the image cannot be decoded.
    """
    image = decode(data, limits)
    if box is not None:
        left, top, right, bottom = map(round, box)
        image = image.crop((left, top, right, bottom))
    image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
    return _jpeg_address(image)


def _jpeg_address(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=JPEG_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def figure(read: Callable[[Row], bytes], limits: ImageLimits, row: Row, *lines: str) -> str:
    """Return HTML for a notebook: the thumbnail of a photo above lines of text.

    `read(row)` returns the bytes of the photo of a row, and `limits` limit the size of its image. The photo is not
    shown if it cannot be read, or if its content has changed since it was ingested.
    """
    image = ""
    with suppress(InputError):
        data = read(row)
        if hashlib.sha256(data).hexdigest() == row["sha256"]:
            image = f'<img src="{thumbnail(data, limits)}" alt="">'
    text = "".join(f"<div>{escape(line)}</div>" for line in lines)
    return f'<figure style="{FIGURE_STYLE}">{image}<figcaption>{text}</figcaption></figure>'


@dataclass(frozen=True)
class CollectionSample:
    """A sampled photo `what` with its split and its text.

    `sentences` are the first captions of the photo. A photo with weak text has `document` instead: title, tags and
    description by name.
    """

    what: ReportPicture
    split: str
    sentences: Sequence[str]
    document: Mapping[str, str]


def draw_samples(manifest: Manifest, picture: Callable[[Row], ReportPicture]) -> list[CollectionSample]:
    """Choose at most SAMPLES images with captions, and at most SAMPLES images with weak text. Both are evenly spaced in
    the manifest, of which only the shards with these images are read. `picture(row)` returns the picture for a row of
    the images' table."""
    samples = []
    for name in ("sentences", "documents"):
        rows = evenly_spaced(int(manifest.bounds(name)[-1]), SAMPLES)
        for image in manifest.pick(manifest.rows(name, rows)["image_id"].unique().to_numpy()):
            texts = manifest.of_image(name, image["image_id"]).to_pylist()
            sentences = [row["text"] for row in texts[:SAMPLE_CAPTIONS]] if name == "sentences" else []
            weak = texts[0] if name == "documents" else {}
            document = {key: weak[key] for key in ("title", "tags", "description") if weak.get(key)}
            samples.append(CollectionSample(picture(image), image["split"], sentences, document))
    return samples


def first_sentence(manifest: Manifest, image_id: int) -> str | None:
    """Return the first caption of an image, or None if the image has no caption."""
    sentences = manifest.of_image("sentences", image_id)
    return sentences["text"][0].as_py() if len(sentences) else None


class SheetPicture(NamedTuple):
    """An RGB image on a contact sheet, with the `boxes` (n, 4), in pixels of the image, and the `scores` (n,) of its
    regions, the best first.

    `line` is the text below the image. If the image could not be read, `image` is None, and `line` gives the reason. If
    `labels` (n,) are given, the labels are drawn in place of the scores.
    """

    image: Image.Image | None
    boxes: np.ndarray
    scores: np.ndarray
    line: str
    labels: Sequence[str] | None = None


def picture_with_texts(
    image: Image.Image | None, line: str, boxes: np.ndarray, texts: Sequence[str], scores: Sequence[float], top: int
) -> SheetPicture:
    """Return a picture of an image with at most `top` of its boxes, and the text `line` below the image. If `image` is
    None, because it could not be read, `draw_sheet` draws only the line.

    Each row of `boxes` (n, 4), x1, y1, x2, y2 in pixels, has a text in `texts` (n,) and a score in `scores` (n,).
    Equal boxes are drawn once, with all their texts as the label. The boxes with the largest sums of scores are kept,
    the largest first.
    """
    by_box: dict[tuple[float, ...], list[int]] = {}
    for number, box in enumerate(np.asarray(boxes).tolist()):
        by_box.setdefault(tuple(box), []).append(number)
    totals = {box: sum(scores[number] for number in own) for box, own in by_box.items()}
    best = sorted(by_box, key=totals.__getitem__, reverse=True)[:top]
    labels = [" .. ".join(texts[number] for number in by_box[box]) for box in best]
    return SheetPicture(image, np.array(best), np.array([totals[box] for box in best]), line, labels)


def draw_sheet(pictures: Iterable[SheetPicture], columns: int) -> Image.Image:
    """Draw all pictures, at least one, on one RGB image with `columns` columns.

    Only one full-size photo is in memory at a time.
    """
    cells = list(map(_draw, pictures))
    rows = -(-len(cells) // columns)
    sheet = Image.new("RGB", (columns * CELL, rows * (CELL + LINE)), DARK)
    for number, cell in enumerate(cells):
        sheet.paste(cell, (number % columns * CELL, number // columns * (CELL + LINE)))
    return sheet


def _draw(picture: SheetPicture) -> Image.Image:
    """Draw one picture of CELL x (CELL + LINE) pixels: the scaled image, its boxes with the best on top, and its
    line."""
    cell = Image.new("RGB", (CELL, CELL + LINE), DARK)
    pen = ImageDraw.Draw(cell)
    if picture.image is not None:
        width, height = picture.image.size
        scale = CELL / max(width, height)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        left = (CELL - size[0]) // 2
        top = (CELL - size[1]) // 2
        cell.paste(picture.image.resize(size), (left, top))
        for number in range(len(picture.boxes) - 1, -1, -1):
            x1, y1, x2, y2 = picture.boxes[number] * np.tile(np.divide(size, (width, height)), 2)
            opposite = (left + max(x1, min(x2, size[0] - 1)), top + max(y1, min(y2, size[1] - 1)))
            text = picture.labels[number] if picture.labels else f"{picture.scores[number]:.2f}"
            colour = tuple(round(255 * part) for part in colorsys.hsv_to_rgb(number * GOLDEN % 1, 0.7, 1))
            pen.rectangle((left + x1, top + y1, *opposite), outline=colour, width=2)
            at = (left + x1 + 2, top + y1)
            pen.rectangle(pen.textbbox(at, text), fill=colour)
            pen.text(at, text, DARK)
    pen.text((3, CELL + 1), picture.line[: CELL // 6], LIGHT)
    return cell
