"""Opening the photos of a run, and extracting their features step by step."""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby, tee
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np
from PIL import Image

from pipeline.errors import InputError
from pipeline.images.opening import ImageLimits
from pipeline.images.preprocess import Photograph, PhotographReader, View
from pipeline.run import Run
from pipeline.storage.features import UnfinishedShard, to_stored
from pipeline.storage.json_files import Json
from pipeline.storage.sources import ImageSource

if TYPE_CHECKING:
    from pipeline.encoders.extraction import Extractor, Stopwatch

log = logging.getLogger(__name__)
Item = TypeVar("Item")
Loaded = TypeVar("Loaded")
Described = TypeVar("Described")


def photograph_reader(run: Run, source: ImageSource | None = None) -> PhotographReader:
    """Return a reader of the photos of the run, in the folder in which `ingest` found them or in another `source`."""
    limits = ImageLimits.from_settings(run.config.collection)
    return PhotographReader((source or run.images).read, limits, run.decoders)


def open_photographs(run: Run, image_id: np.ndarray | list[int]) -> Iterator[tuple[Image.Image | None, str]]:
    """Open the photos with the ids `image_id` (k,), in this order.

    Yield a pair for each photo: the image and an empty text, or None and the reason why the photo cannot be read.
    """
    reader = PhotographReader(run.photographs.read, ImageLimits.from_settings(run.config.collection))
    for photograph in map(Photograph.from_row, run.manifest.pick(image_id)):
        try:
            yield reader.open(photograph), ""
        except InputError as error:
            yield None, f"{photograph.name}: {error}"


class OpenedEncoder(NamedTuple):
    """An image encoder on its device. `view` describes the input of the encoder, and `details` describes the encoder in
    commit records."""

    extractor: "Extractor"
    view: View
    details: dict[str, Json]


def open_encoder(run: Run, name: str) -> OpenedEncoder:
    """Restore an image encoder of the run, with the device, the precision and the batch size that the run uses."""
    from pipeline.encoders.extraction import grow
    from pipeline.encoders.image_encoder import ImageEncoder
    from pipeline.encoders.restore import restore_encoder

    settings = run.config.extract
    stored = run.encoder(name)
    encoder = restore_encoder(ImageEncoder, stored, run.layout.encoder(name).path)
    extractor = encoder.extractor(run.config.device, settings.precision, run.batch_size)
    view = extractor.view
    assert view is not None
    if settings.batch_size is None and view.describe is None:  # `grow` needs an encoder that takes pixels.
        grow(extractor)
    precision = {"precision": extractor.plan.precision}
    return OpenedEncoder(extractor, view, {"name": name, "sha256": stored.sha256, **stored.settings, **precision})


class Part(NamedTuple, Generic[Item]):
    """A range of images in the shard `number` for which some features are still missing.

    `rows` is the range of rows in the shard, and `names` are the encoders whose features are missing. `images` has an
    item for each image, such as a photo or a request for regions. `shards` has the unfinished shard of each encoder.
    `last` says whether this is the last missing range, after which the shards can be published.
    """

    number: int
    shards: Mapping[str, UnfinishedShard]
    rows: range
    names: list[str]
    images: Sequence[Item]
    last: bool


def missing_parts(number: int, shards: Mapping[str, UnfinishedShard], images: Sequence[Item]) -> Iterator[Part[Item]]:
    """Yield the parts of shard `number` for which features of at least one encoder are missing, in ascending order.

    If all parts of an encoder are stored already, its last part counts as missing. `shards` has the unfinished shard of
    each encoder, and `images` has an item for each of the n images of the shard.
    """
    missing = sorted({rows for shard in shards.values() for rows in shard.missing}, key=lambda rows: rows.start)
    for rows in missing:
        names = [name for name, shard in shards.items() if rows in shard.missing]
        yield Part(number, shards, rows, names, images[rows.start : rows.stop], rows == missing[-1])


def describe_parts(
    parts: Iterable[Part[Item]],
    load: Callable[[Iterator[Item], "Stopwatch"], Generator[Loaded]],
    describe: Callable[[Iterator[Loaded], Iterator[int]], Iterable[Described]],
    title: str,
) -> Iterator[tuple[Part[Item], Described]]:
    """Load and describe the images of each part, and yield the part with its result.

    `load(images, stopwatch)` yields a loaded item for each image of all parts, such as pixels. It may load images of
    later parts in advance, also in other shards. `describe(loaded, lengths)` yields one result per part, such as
    features, where `lengths` has the number of images in each part. `title` labels the progress bar. After each shard,
    a message is logged with the speed and with the share of the time that each step took.
    """
    from tqdm import tqdm

    from pipeline.encoders.extraction import Stopwatch

    parts, ahead, lengths = tee(parts, 3)

    def images() -> Iterator[Item]:
        for part in ahead:
            bar.total += len(part.rows)
            yield from part.images

    def counted() -> Iterator[Loaded]:
        for image in loaded:
            bar.update()
            yield image

    stopwatch = Stopwatch()
    done = 0
    bar = tqdm(desc=title, total=0, unit=" images", disable=None)
    with bar, closing(load(images(), stopwatch)) as loaded:
        described = describe(stopwatch.iterate("decode", counted()), (len(part.rows) for part in lengths))
        for part, result in zip(parts, described, strict=True):
            with stopwatch.measure("write"):
                yield part, result
            done += len(part.rows)
            if part.last:
                log.info("The shard %d is complete: %s.", part.number, stopwatch.format_speed(done))
                done = 0


class FeatureExtraction:
    """Extractor of the features of photos with several encoders of a run. Each photo is decoded once for all encoders.

    The caller passes missing parts to `extract_parts`, and each result of `extract_parts` to `write`.
    """

    def __init__(self, run: Run, encoders: Sequence[str]) -> None:
        self._storage = run.config.extract.storage
        self._reader = photograph_reader(run)
        self._encoders = {name: open_encoder(run, name) for name in encoders}

    def extract_parts(self, parts: Iterable[Part[Photograph]]) -> Iterator[tuple[Part[Photograph], list[np.ndarray]]]:
        """Yield each part with the features of its n images, a list of one array (n, dim) per encoder in `part.names`.

        Consecutive parts whose features are missing for the same encoders share one pipeline, so that decoding does not
        pause between these parts.
        """
        for names, group in groupby(parts, key=attrgetter("names")):
            yield from self._describe_with_encoders(names, group)

    def _describe_with_encoders(
        self, names: list[str], parts: Iterable[Part[Photograph]]
    ) -> Iterator[tuple[Part[Photograph], list[np.ndarray]]]:
        from pipeline.encoders.extraction import extract_in_step

        extractors = [self._encoders[name].extractor for name in names]
        views = [self._encoders[name].view for name in names]

        def load(photographs: Iterator[Photograph], _: "Stopwatch") -> Generator[list[np.ndarray]]:
            yield from self._reader.views(photographs, views)

        def describe(pictures: Iterator[list[np.ndarray]], lengths: Iterator[int]) -> Iterator[list[np.ndarray]]:
            return extract_in_step(pictures, extractors, lengths)

        return describe_parts(parts, load, describe, "extract")

    def write(self, described: tuple[Part[Photograph], list[np.ndarray]]) -> int | None:
        """Store the features of a part. After the last part of a shard, publish the shard and return its number.

        Return None after any other part. Raises InputError if features cannot be stored in the configured dtype.
        """
        part, features = described
        for name, rows in zip(part.names, features, strict=True):
            stored = to_stored(rows, self._storage, [photograph.name for photograph in part.images])
            part.shards[name].keep(part.rows, {"features": stored})
        if not part.last:
            return None
        sides = [self._encoders[name].view.preprocessing.resize for name in part.shards]
        shared = {"decoded_for": max(sides)} if len(sides) > 1 else {}
        for name, shard in part.shards.items():
            encoder = self._encoders[name]
            batch_size = encoder.extractor.plan.batch_size
            shard.publish({"encoder": encoder.details, "batch_size": batch_size, **shared})
        return part.number
