"""Photos of a run: opened, and described part by part."""

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
    """Return a reader of the photos of the run where `ingest` found them, or in another `source`."""
    limits = ImageLimits.from_settings(run.config.collection)
    return PhotographReader((source or run.images).read, limits, run.decoders)


def open_photographs(run: Run, image_id: np.ndarray | list[int]) -> Iterator[tuple[Image.Image | None, str]]:
    """Open the photos `image_id` (k,). Yields each with an empty text, or None and the reason if it cannot be read."""
    reader = PhotographReader(run.photographs.read, ImageLimits.from_settings(run.config.collection))
    for photograph in map(Photograph.from_row, run.manifest.pick(image_id)):
        try:
            yield reader.open(photograph), ""
        except InputError as error:
            yield None, f"{photograph.name}: {error}"


class OpenedEncoder(NamedTuple):
    """An image encoder on its device, what it takes of a photo, and what a shard's commit says of it."""

    extractor: "Extractor"
    view: View
    details: dict[str, Json]


def open_encoder(run: Run, name: str) -> OpenedEncoder:
    """Open an image encoder of the run."""
    from pipeline.encoders.extraction import grow
    from pipeline.encoders.image_encoder import ImageEncoder
    from pipeline.encoders.restore import restore_encoder

    settings, stored = run.config.extract, run.encoder(name)
    encoder = restore_encoder(ImageEncoder, stored, run.layout.encoder(name).path)
    extractor = encoder.extractor(run.config.device, settings.precision, run.batch_size)
    view = extractor.view
    assert view is not None
    if settings.batch_size is None and view.describe is None:  # it takes pixels
        grow(extractor)
    precision = {"precision": extractor.plan.precision}
    return OpenedEncoder(extractor, view, {"name": name, "sha256": stored.sha256, **stored.settings, **precision})


class Part(NamedTuple, Generic[Item]):
    """Images of shard `number`, in the `rows` that the encoders `names` have not described yet.

    `images` are what is read of each of them. `last` says whether the `shards` of all encoders are whole with the part.
    """

    number: int
    shards: Mapping[str, UnfinishedShard]
    rows: range
    names: list[str]
    images: Sequence[Item]
    last: bool


def missing_parts(number: int, shards: Mapping[str, UnfinishedShard], images: Sequence[Item]) -> Iterator[Part[Item]]:
    """Yield what is still to be described of shard `number`, whose images are `images` (n,), by any of several
    encoders."""
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
    """Yield each part with what `describe(loaded, lengths)` returns for what `load(images, stopwatch)` yields.

    `load` may begin with the images of later parts, whatever their shard. The log says for each shard where the time
    went.
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


class FeatureExtraction:
    """Extracts the features of photos with several encoders of a run, for which each photo is decoded once."""

    def __init__(self, run: Run, encoders: Sequence[str]) -> None:
        self._storage = run.config.extract.storage
        self._reader = photograph_reader(run)
        self._encoders = {name: open_encoder(run, name) for name in encoders}

    def describe(self, parts: Iterable[Part[Photograph]]) -> Iterator[tuple[Part[Photograph], list[np.ndarray]]]:
        """Yield each part with its features by each of its encoders. Parts of the same encoders follow each other
        without a pause."""
        for names, group in groupby(parts, key=attrgetter("names")):
            yield from self._describe_alike(names, group)

    def _describe_alike(
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
        """Keep the features of a part. If the shards are whole with it, publish them and return their number."""
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
