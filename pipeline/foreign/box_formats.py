"""Reads boxes from files of the user, in one of three formats, and matches them to images."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np

from pipeline.errors import InputError
from pipeline.foreign.files import decode_text
from pipeline.foreign.matching import find_names
from pipeline.images.boxes import Candidates, group

COLUMNS = ("file", "x1", "y1", "x2", "y2")


class Box(NamedTuple):
    """A box in the image `file`: its corners x1, y1, x2, y2 in pixels, a score, and a label, which may be empty."""

    file: str
    corners: tuple[float, float, float, float]
    score: float
    label: str


class Matched(NamedTuple):
    """Boxes that are matched to images.

    `boxes` are n boxes of known images, `images` (n,) int64 are the positions of their images, and `unmatched` are the
    names of unknown images.
    """

    boxes: list[Box]
    images: np.ndarray
    unmatched: list[str]

    @property
    def corners(self) -> np.ndarray:
        """The corners of the boxes (n, 4) float32."""
        return np.array([box.corners for box in self.boxes], np.float32).reshape(-1, 4)

    def candidates(self, count: int) -> list[Candidates]:
        """Return the corners and scores of the boxes of each of `count` images, in the order of the images. An image
        without boxes has empty arrays."""
        scores = np.array([box.score for box in self.boxes], np.float32)
        return group(self.images, Candidates(self.corners, scores), count)


def match_boxes(files: Iterable[tuple[str, bytes]], images: Sequence[str], root: Path | str | None = None) -> Matched:
    """Match the boxes in `files`, which are pairs of a name and the content, to the image paths `images` below the
    folder `root`, by the rules of `find_names`."""
    rows = [row for source, data in files for row in parse_boxes(data, source)]
    names = sorted({row.file for row in rows})
    owner = dict(zip(names, find_names(names, images, root).images, strict=True))
    boxes = [row for row in rows if owner[row.file] is not None]
    unmatched = [name for name in names if owner[name] is None]
    return Matched(boxes, np.array([owner[box.file] for box in boxes], np.int64), unmatched)


def parse_boxes(data: bytes, source: str) -> Iterator[Box]:
    """Yield the boxes in the content of a file. The suffix of its name `source` decides the format.

    The formats are .xml (Flickr30k Entities), .json (COCO) and .tsv. Raises InputError, with the file, if the content
    cannot be read, and for a file with another suffix. If a single box cannot be read, the error names the object or
    annotation, counted from 0, or the row, where row 2 is the first below the header.
    """
    ending = source.rpartition(".")[2].lower()
    if ending not in PARSERS:
        raise InputError(
            f"{source} has the suffix .{ending}, but a file of boxes must be .xml (Flickr30k Entities), .json (COCO) or"
            " .tsv. Rename or convert the file."
        )
    text = decode_text(data, source)
    yield from PARSERS[ending](text, source)


def _parse_entities(text: str, source: str) -> Iterator[Box]:
    """Yield the boxes in an annotation of Flickr30k Entities (Plummer et al. 2015), which has one file per image.

    The label of a box is the id of its phrase chain, and its score is 1. Objects without a box are skipped. Raises
    InputError, with the file `source`, if the annotation cannot be read.
    """
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise InputError(
            f"{source} has a <!DOCTYPE> or <!ENTITY>, which annotations do not need. Remove this declaration."
        )
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise InputError(f"{source} is not valid XML ({error}). Download the file again.") from error
    file = root.findtext("filename")
    if not file:
        raise InputError(f"{source} has no <filename>, so the image of the boxes is unknown. Download the file again.")
    for number, item in enumerate(root.iter("object")):
        box = item.find("bndbox")
        if box is None:  # This phrase is about the scene or about nothing visible.
            continue
        corners = [box.findtext(name) for name in ("xmin", "ymin", "xmax", "ymax")]
        x1, y1, x2, y2 = _numbers(corners, source, f"object {number}")
        yield Box(file, (x1, y1, x2, y2), 1.0, item.findtext("name") or "")


def _parse_coco(text: str, source: str) -> Iterator[Box]:
    """Yield the boxes of COCO instances or of COCO results.

    COCO results are a list that names images by `file_name` or `image_id`. The boxes of COCO are x, y, width, height,
    and are converted to corners. A missing score is 1. Raises InputError, with the file `source`, if the text is not
    COCO JSON, or if an annotation has no usable box.
    """
    try:
        value = json.loads(text)
        whole = {"annotations": value, "images": ()} if isinstance(value, list) else value
        rows = list(whole["annotations"])
        images = {image["id"]: image["file_name"] for image in whole["images"]}
        labels = {category["id"]: category["name"] for category in whole.get("categories", ())}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{source} is not COCO JSON ({type(error).__name__}: {error}). Download the file again."
        ) from error
    for number, row in enumerate(rows):
        where = f"annotation {number}"
        box = row.get("bbox") if isinstance(row, dict) else None
        if not isinstance(box, list) or len(box) != 4:
            raise InputError(
                f"{source}: {where} has no bbox of four numbers, such as [10, 20, 50, 80]. Correct the bbox, or remove"
                " the box."
            )
        if any(isinstance(row.get(name), list | dict) for name in ("image_id", "category_id")):
            raise InputError(
                f"{source}: {where} has an image_id or category_id that is a list or an object. Write a number or a"
                " name."
            )
        x, y, width, height = _numbers(box, source, where)
        file = row.get("file_name") or images.get(row.get("image_id"), row.get("image_id"))
        label = labels.get(row.get("category_id"), row.get("category_id"))
        score = _numbers([row.get("score", 1.0)], source, where)[0]
        yield Box(str(file), (x, y, x + width, y + height), score, "" if label is None else str(label))


def _parse_table(text: str, source: str) -> Iterator[Box]:
    """Yield a box for each row of a tab-separated table. Its columns are file, x1, y1, x2, y2 and optionally score
    (otherwise 1) and label. Corners are in pixels.

    Raises InputError, with the file `source`, if a column is missing or a value is not a number.
    """
    rows = csv.DictReader(io.StringIO(text, newline=None), delimiter="\t", quoting=csv.QUOTE_NONE)
    if missing := [name for name in COLUMNS if name not in (rows.fieldnames or ())]:
        raise InputError(
            f"{source}: the first row must name the columns {', '.join(COLUMNS)}, but lacks {missing[0]}. Correct"
            " the first row."
        )
    for number, row in enumerate(rows, start=2):
        values = [*(row[name] for name in COLUMNS[1:]), row.get("score") or 1.0]
        x1, y1, x2, y2, score = _numbers(values, source, f"row {number}")
        yield Box(row["file"], (x1, y1, x2, y2), score, row.get("label") or "")


def _numbers(values: list, source: str, where: str) -> tuple[float, ...]:
    """Convert values to numbers. Raises InputError, with the file `source` and the box `where`, if a value is not a
    number."""
    try:
        return tuple(map(float, values))
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"{source}: {where} has a value that is not a number ({values}). Correct the value, or remove the box."
        ) from None


PARSERS = {"xml": _parse_entities, "json": _parse_coco, "tsv": _parse_table}
"""The parsers of files of boxes, by suffix."""
