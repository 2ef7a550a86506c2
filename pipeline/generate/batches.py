"""Batches of images to describe: with stored features, or photographs encoded here."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline.config.registry.stored import restore_encoder
from pipeline.errors import InputError
from pipeline.images.decode import ImageLimits, decode
from pipeline.images.encoders import EncoderParts
from pipeline.models.neural.task import RowSource


class ImageBatch(NamedTuple):
    """`images`: what the descriptions show of each; `features`: encoder -> (n, its dim)."""

    images: Sequence[Mapping[str, Any]]
    features: Mapping[str, np.ndarray]


class QueryPhotograph(NamedTuple):
    """A photograph, or its part in `box` (x1, y1, x2, y2 in pixels): what its description shows, and its bytes."""

    shown: Mapping[str, Any]
    box: tuple[float, float, float, float] | None
    read: Callable[[], bytes]


def stored_batches(
    rows: Mapping[str, RowSource], shown: Sequence[Mapping[str, Any]], size: int
) -> Iterator[ImageBatch]:
    """Batches of `size` images with the features `rows`: encoder -> (n, its dim)."""
    for start in range(0, len(shown), size):
        part = np.arange(start, min(start + size, len(shown)))
        yield ImageBatch(shown[start : start + size], {name: block[part] for name, block in rows.items()})


def encode_photographs(
    photographs: Sequence[QueryPhotograph], encoders: Mapping[str, EncoderParts], limits: ImageLimits, size: int
) -> Iterator[ImageBatch]:
    """Batches of `size` photographs, encoded. Warns of each unusable one, and raises InputError if all are."""
    restored, batch, made = {name: restore_encoder(p.settings, p.tensors) for name, p in encoders.items()}, [], False
    for number, photograph in enumerate(photographs, 1):
        try:
            batch.append((photograph.shown, _open(photograph, limits)))
        except (InputError, OSError) as error:
            logging.getLogger(__name__).warning("%s is left out: %s", photograph.shown["image"], error)
        if batch and (len(batch) == size or number == len(photographs)):
            shown, images = zip(*batch, strict=True)
            yield ImageBatch(shown, {name: encoder.encode(images) for name, encoder in restored.items()})
            batch, made = [], True
    if not made:
        raise InputError(f"none of {len(photographs)} photographs can be used; give others")


def _open(photograph: QueryPhotograph, limits: ImageLimits) -> Any:
    image = decode(photograph.read(), limits)
    if photograph.box is None:
        return image
    x1, y1, x2, y2 = photograph.box
    if not (0 <= x1 < x2 <= image.width and 0 <= y1 < y2 <= image.height):
        raise InputError(f"the box {photograph.box} is not within its {image.width} x {image.height} pixels")
    return image.crop(tuple(map(round, photograph.box)))
