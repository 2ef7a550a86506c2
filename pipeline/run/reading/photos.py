"""Photos of a run: opened, and described part by part."""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby, tee
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from PIL import Image

from pipeline.errors import InputError
from pipeline.images.opening import ImageLimits
from pipeline.images.preprocess import Photograph, PhotographReader
from pipeline.run import Run
from pipeline.storage.features import UnfinishedShard, to_stored
from pipeline.storage.sources import ImageSource

if TYPE_CHECKING:
    from pipeline.encoders.extraction import Extractor, Stopwatch

log = logging.getLogger(__name__)
Image_ = TypeVar("Image_")
Loaded = TypeVar("Loaded")
Described = TypeVar("Described")


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
    from pipeline.config.stored import restore_encoder
    from pipeline.encoders.extraction import grow

    settings, stored = run.config.extract, run.encoder(name)
    encoder = restore_encoder(stored.settings, stored.tensors)
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
    load: Callable[[Iterator[Image_], "Stopwatch"], Generator[Loaded]],
    describe: Callable[[Iterator[Loaded], Iterator[int]], Iterable[Described]],
    title: str,
) -> Iterator[tuple[Part, Described]]:
    """Yield each part with what `describe(loaded, lengths)` returns for what `load(images, stopwatch)` yields.

    `load` may begin with the images of later parts, whatever their shard. The log says for each shard where the time
    went.
    """
    from tqdm import tqdm

    from pipeline.encoders.extraction import Stopwatch

    parts, ahead, lengths = tee(parts, 3)

    def images() -> Iterator[Image_]:
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
        self._extractors: dict[str, Extractor] = {}
        self._details: dict[str, dict[str, object]] = {}
        for name in encoders:
            self._extractors[name], self._details[name] = open_encoder(run, name)

    def describe(self, parts: Iterable[Part]) -> Iterator[tuple[Part, list[np.ndarray]]]:
        """Yield each part with its features by each of its encoders. Parts of the same encoders follow each other
        without a pause."""
        for names, group in groupby(parts, key=attrgetter("names")):
            yield from self._describe_alike(names, group)

    def _describe_alike(self, names: list[str], parts: Iterable[Part]) -> Iterator[tuple[Part, list[np.ndarray]]]:
        from pipeline.encoders.extraction import extract_in_step

        extractors = [self._extractors[name] for name in names]
        views = [extractor.view for extractor in extractors]
        return describe_parts(
            parts,
            lambda photographs, _: self._reader.views(photographs, views),
            lambda pictures, lengths: extract_in_step(pictures, extractors, lengths),
            "extract",
        )

    def write(self, described: tuple[Part, list[np.ndarray]]) -> int | None:
        """Keep the features of a part. If the shards are whole with it, publish them and return their number."""
        part, features = described
        for name, rows in zip(part.names, features, strict=True):
            stored = to_stored(rows, self._storage, [photograph.name for photograph in part.images])
            part.shards[name].keep(part.rows, {"features": stored})
        if not part.last:
            return None
        sides = [self._extractors[name].view.preprocessing.resize for name in part.shards]
        shared = {"decoded_for": max(sides)} if len(sides) > 1 else {}
        for name, shard in part.shards.items():
            batch_size = self._extractors[name].plan.batch_size
            shard.publish({"encoder": self._details[name], "batch_size": batch_size, **shared})
        return part.number
