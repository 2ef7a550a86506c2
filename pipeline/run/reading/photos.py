"""Photographs of a run, opened and described part by part."""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import tee
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from pipeline.errors import InputError
from pipeline.images.opening import ImageLimits
from pipeline.images.preprocess import Photograph, PhotographReader
from pipeline.run import Run
from pipeline.storage.features import UnfinishedShard
from pipeline.storage.sources import ImageSource

if TYPE_CHECKING:
    from pipeline.encoders.extraction import Extractor, Stopwatch

log = logging.getLogger(__name__)


def photograph_reader(run: Run, source: ImageSource | None = None) -> PhotographReader:
    """Reads the photographs of the run where `ingest` found them, or in another `source`, by its decoders."""
    limits = ImageLimits.from_settings(run.config.collection)
    return PhotographReader((source or run.images).read, limits, run.decoders)


def open_photographs(run: Run, image_id: np.ndarray | list[int]) -> Iterator[tuple[Image.Image | None, str]]:
    """The photographs `image_id` (k,), each with an empty text, or None and the reason where one cannot be read."""
    reader = PhotographReader(run.photographs.read, ImageLimits.from_settings(run.config.collection))
    for photograph in map(Photograph.from_row, run.manifest.pick(image_id)):
        try:
            yield reader.open(photograph), ""
        except InputError as error:
            yield None, f"{photograph.name}: {error}"


def open_encoder(run: Run, name: str) -> "tuple[Extractor, dict[str, Any]]":
    """An encoder of the run, on its device, and what a shard's commit says of it."""
    from pipeline.encoders.extraction import grow
    from pipeline.encoders.image_encoder import ImageEncoder
    from pipeline.encoders.restore import restore_encoder

    settings, stored = run.config.extract, run.encoder(name)
    encoder = restore_encoder(ImageEncoder, stored, run.layout.encoder(name).path)
    extractor = encoder.extractor(run.config.device, settings.precision, run.batch_size)
    if settings.batch_size is None and extractor.view.describe is None:  # it takes pixels
        grow(extractor)
    precision = {"precision": extractor.plan.precision}
    return extractor, {"name": name, "sha256": stored.sha256, **stored.settings, **precision}


class Part(NamedTuple):
    """Images of shard `number`, in the `rows` that the encoders `names` have not described yet, and what is read of
    each of them; `last` says whether the `shards` of all encoders are whole with it."""

    number: int
    shards: Mapping[str, Any]
    rows: range
    names: list[str]
    images: Sequence[Any]
    last: bool


def missing_parts(number: int, shards: Mapping[str, UnfinishedShard], images: Sequence[Any]) -> Iterator[Part]:
    """What is still to be described of shard `number`, whose images are `images` (n,), by any of several encoders."""
    missing = sorted({rows for shard in shards.values() for rows in shard.missing}, key=lambda rows: rows.start)
    for rows in missing:
        names = [name for name, shard in shards.items() if rows in shard.missing]
        yield Part(number, shards, rows, names, images[rows.start : rows.stop], rows == missing[-1])


def describe_parts(
    parts: Iterable[Part],
    load: Callable[[Iterator[Any], "Stopwatch"], Generator[Any]],
    describe: Callable[[Iterator[Any], Iterator[int]], Iterable[Any]],
    title: str,
) -> Iterator[tuple[Part, Any]]:
    """Each part with what `describe(loaded, lengths)` makes of what `load(images, stopwatch)` makes of its images,
    which may begin with those of later parts, whatever their shard. Where the time went is logged for each shard."""
    from tqdm import tqdm

    from pipeline.encoders.extraction import Stopwatch

    parts, ahead, lengths = tee(parts, 3)

    def images() -> Iterator[Any]:
        for part in ahead:
            bar.total += len(part.rows)
            yield from part.images

    def counted() -> Iterator[Any]:
        for image in loaded:
            bar.update()
            yield image

    stopwatch, done, bar = Stopwatch(), 0, tqdm(desc=title, total=0, unit=" images", disable=None)
    with bar, closing(load(images(), stopwatch)) as loaded:
        described = describe(stopwatch.iterate("decode", counted()), (len(part.rows) for part in lengths))
        for part, result in zip(parts, described, strict=True):
            with stopwatch.measure("write"):
                yield part, result
            done += len(part.rows)
            if part.last:
                log.info("shard %d: %s", part.number, stopwatch.describe(done))
                done = 0
