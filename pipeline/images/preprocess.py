"""Preprocesses photos to the input pixels of an encoder: crops and resizes them, in 8 bits. Mean and std are not
applied here."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import tee
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from PIL import Image

from pipeline.compute.workers import Failure, lacked_memory, shared_map
from pipeline.config.registry import MAX_SIDE
from pipeline.errors import InputError
from pipeline.images.decode import decode, decode_pixels
from pipeline.images.opening import OVER_TIME, ImageLimits

if TYPE_CHECKING:
    import pyarrow as pa


RESIZING = ("pipeline.images.resize",)
"""The modules that decoding processes import in advance. pipeline.images.resize imports torch, which takes seconds."""


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of an encoder's weights: geometry in pixels, and the channels' mean and std in [0, 1].

    The shorter side is resized to `resize`, and then the central square of side `crop` is cut out. If `crop` is None,
    the whole image is squashed to a square of side `resize`. Images are resized by `interpolation`, with antialiasing.
    """

    resize: int
    crop: int | None
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str = "bilinear"

    @property
    def side(self) -> int:
        """Side in pixels of the encoder's square input: `crop`, or `resize` if `crop` is None."""
        return self.crop or self.resize

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Preprocessing":  # Any: the fields have several types
        """Return the preprocessing that was stored as `value`, an object of JSON with the fields of this class.

        Raises ValueError if a side is not from 1 to MAX_SIDE.
        """
        preprocessing = cls(**{**value, "mean": tuple(value["mean"]), "std": tuple(value["std"])})
        if not 0 < preprocessing.resize <= MAX_SIDE or not 0 < preprocessing.side <= MAX_SIDE:
            raise ValueError(
                f"resize is {preprocessing.resize} pixels and crop is {preprocessing.crop} pixels, but both must be"
                f" from 1 to {MAX_SIDE}"
            )
        return preprocessing


def prepare(image: Image.Image | np.ndarray, preprocessing: Preprocessing) -> np.ndarray:
    """Crop and resize an RGB image in one pass to pixels (side, side, 3) uint8.

    `image` is a Pillow image or an array (h, w, 3) uint8.
    """
    # The import of this module imports torch, which takes seconds.
    from pipeline.images.resize import resize

    width, height = image.size if isinstance(image, Image.Image) else (image.shape[1], image.shape[0])
    box = None
    if preprocessing.crop is not None:
        half = min(width, height) * preprocessing.crop / preprocessing.resize / 2
        box = (width / 2 - half, height / 2 - half, width / 2 + half, height / 2 + half)
    size = (preprocessing.side, preprocessing.side)
    return resize(image, size, preprocessing.interpolation, box)


class Photograph(NamedTuple):
    """An image to read: its name for messages, the SHA-256 of its content, and the location of its content.

    The location is the path of a file, an offset and a size. Offset and size are None if the content is the whole file.
    For an image in a Parquet file, the offset is the number of the row, and the size is None.
    """

    name: str
    sha256: str
    location: tuple[str, int | None, int | None]

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Photograph":  # a row of an Arrow table
        """Return the image in a row of the manifest's images."""
        name = "::".join(filter(None, (row["path"], row["member"])))
        return cls(name, row["sha256"], (row["path"], row["offset"], row["size"]))


class View(NamedTuple):
    """The way in which a photo becomes an input of an encoder.

    The input is the pixels (side, side, 3) uint8 after `preprocessing`. If `describe` is given, the input is the result
    of `describe(pixels)`.
    """

    preprocessing: Preprocessing
    describe: Callable[[np.ndarray], Any] | None = None


@dataclass(frozen=True)
class PhotographReader:
    """A reader of photos. The object can be pickled.

    `read(path, offset, size)` is a function that returns the bytes at the location of a Photograph. `limits` are the
    limits on images. `processes` is the number of processes in which `views` decodes photos. With 0, `views` decodes
    photos in this process. The methods raise InputError for a photo that cannot be read, or that has changed since it
    was ingested.
    """

    read: Callable[..., bytes]
    limits: ImageLimits
    processes: int = 0

    def open(self, photograph: Photograph, side: int | None = None) -> Image.Image:
        """Return the whole photo, in 8-bit RGB and upright.

        If `side` is given, the caller will resize the shorter side to `side` pixels, and a JPEG may be decoded at a
        reduced size (see `decode`). Raises InputError if the photo cannot be read, or has changed since it was
        ingested.
        """
        return decode(self._unchanged(photograph), self.limits, side)

    def load(self, views: Sequence[View], photograph: Photograph) -> list[Any]:
        """Return the input of an encoder for each of `views` of one photo, which is decoded once.

        Raises InputError if the photo cannot be read, or has changed since it was ingested.
        """
        sides = [view.preprocessing.resize for view in views]
        images = decode_pixels(self._unchanged(photograph), self.limits, sides)
        pixels = [prepare(image, view.preprocessing) for image, view in zip(images, views, strict=True)]
        return [view.describe(array) if view.describe else array for array, view in zip(pixels, views, strict=True)]

    def views(self, photographs: Iterable[Photograph], views: Sequence[View]) -> Iterator[list[Any]]:
        """Yield the result of `load` for each photo, in order. The results are computed in the decoding processes.

        Raises InputError, with the name of the photo, if a photo cannot be read or has changed.
        """
        photographs, ahead = tee(photographs)
        room = sum(3 * view.preprocessing.side**2 for view in views)
        outcomes = shared_map(partial(self.load, views), ahead, self.processes, room, preload=RESIZING)
        for photograph, outcome in zip(photographs, outcomes, strict=True):
            if isinstance(outcome, Failure):
                remedy = "`ingest` could read this photo. Restore it, or run `jointspace stage ingest --run RUN` again."
                if lacked_memory(outcome):
                    remedy = "Lower extract.decode_workers, or give the run more memory."
                if OVER_TIME in outcome.reason:
                    remedy = "Raise collection.decode_seconds, or name the photo in collection.exclude."
                raise InputError(f"{photograph.name}: {outcome.reason}. {remedy}")
            yield outcome

    def pixels(self, photographs: Iterable[Photograph], preprocessing: Preprocessing) -> Iterator[np.ndarray]:
        """Yield the pixels (side, side, 3) uint8 of each photo, in order. Raises InputError as `views` does."""
        return (pixels for (pixels,) in self.views(photographs, [View(preprocessing)]))

    def _unchanged(self, photograph: Photograph) -> bytes:
        """Read the bytes of a photo. Raises InputError if the bytes have changed since the photo was ingested."""
        data = self.read(*photograph.location)
        if hashlib.sha256(data).hexdigest() != photograph.sha256:
            raise InputError("changed: the content of the photo has changed since it was ingested")
        return data


Described = TypeVar("Described")


@dataclass(frozen=True)
class TrainImages:
    """The images of the train split, from which encoders learn.

    `rows` (m,) are the row numbers of these images in the table `images` of the manifest. `manifest` is the fingerprint
    of the manifest, and `reader` reads the images.
    """

    images: "pa.Table"
    rows: np.ndarray
    manifest: str
    reader: PhotographReader

    def draw(self, count: int, seed: int) -> list[Photograph]:
        """Return a random sample of `count` images, or all images in random order if there are fewer."""
        rows = np.random.default_rng(seed).permutation(self.rows)[:count]
        return [Photograph.from_row(row) for row in self.images.take(rows).to_pylist()]

    def apply_to_pixels(
        self,
        what: str,
        photographs: Sequence[Photograph],
        preprocessing: Preprocessing,
        describe: Callable[[np.ndarray], Described],
    ) -> list[Described]:
        """Return the result of `describe` for the pixels of each photo, in order. `what` labels the progress bar."""
        from tqdm import tqdm

        described = self.reader.views(photographs, [View(preprocessing, describe)])
        return [view for (view,) in tqdm(described, what, len(photographs), unit=" images", disable=None)]
