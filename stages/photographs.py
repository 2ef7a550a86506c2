"""Photographs of a run, what its image encoders are made from, and their description part by part."""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from pipeline.errors import InputError
from pipeline.images.decode import ImageLimits
from pipeline.images.preprocess import Photograph, open_photograph
from pipeline.run import Run
from pipeline.storage.features import UnfinishedShard, read_weights
from stages.given import match_given

if TYPE_CHECKING:
    from pipeline.config.images import Encoder
    from pipeline.images.extraction import Extractor, Stopwatch
    from pipeline.images.image_encoder import GivenFeatures, TrainImages
    from pipeline.images.networks import NetworkEncoder
    from pipeline.images.preprocess import View
    from pipeline.storage.parameters import Parameters

log = logging.getLogger(__name__)
COMPARED = 4
"""Images on which features made elsewhere are compared with what the encoder named for them makes."""


class RunEncoderMaterial:
    """What image encoders of a run are made from; see pipeline.images.image_encoder.EncoderMaterial."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.seed = run.config.seed
        self.regions = run.config.regions.decisive()

    def weights(self, file: str, sha256: str | None) -> tuple[bytes, str]:
        return read_weights(Path(self.run.config.weights_root) / file, sha256)

    def folder(self, name: str) -> Path | None:
        path = Path(self.run.config.weights_root) / name
        return path if path.is_dir() else None

    def encoder(self, name: str) -> "Parameters":
        return self.run.encoder(name)

    def train_images(self) -> "TrainImages":
        from pipeline.images.image_encoder import TrainImages

        run, manifest = self.run, self.run.manifest
        rows = np.flatnonzero(manifest.splits == "train")
        limits = ImageLimits.from_settings(run.config.collection)
        return TrainImages(manifest.images, rows, manifest.fingerprint, run.images.read, limits, run.decoders)

    def given(self, entry: "Encoder") -> "GivenFeatures":
        from pipeline.images.image_encoder import GivenFeatures

        matched = match_given(self.run, entry)
        rows = range(min(COMPARED, len(matched.labels)))
        images, reasons = zip(*open_photographs(self.run, list(rows)), strict=True)
        if any(reasons):
            raise InputError(f"{max(reasons)}; it was readable before; run ingest again")
        return GivenFeatures(images, matched.names(rows), matched.features(rows))


def prepare_start(run: Run, encoder: "Encoder", training: Any) -> "NetworkEncoder":
    """The network that the training of an encoder begins with: with the weights that `training`, a section with
    `start`, `file` and `sha256`, names."""
    weights = {"weights": training.start, "file": training.file, "sha256": training.sha256}
    return encoder.spec.load().prepare(encoder.model_copy(update=weights), RunEncoderMaterial(run))


def open_photographs(run: Run, image_id: np.ndarray | list[int]) -> Iterator[tuple[Image.Image | None, str]]:
    """The photographs `image_id` (k,), each with an empty text, or None and the reason where one cannot be read."""
    limits, read = ImageLimits.from_settings(run.config.collection), run.photographs.read
    for row in run.manifest.pick(image_id):
        photograph = Photograph.from_row(row)
        try:
            yield open_photograph(read, limits, photograph), ""
        except InputError as error:
            yield None, f"{photograph.name}: {error}"


class OpenedEncoder(NamedTuple):
    """What an encoder takes of a photograph, what makes features of that, and what a shard's card says of it."""

    view: "View"
    extractor: "Extractor"
    described: dict[str, Any]


def open_encoder(run: "Run", name: str) -> OpenedEncoder:
    """An encoder of the run, on its device."""
    from pipeline.config.stored import restore_encoder
    from pipeline.images.preprocess import View

    settings = run.config.extract
    parameters = run.encoder(name)
    network = restore_encoder(parameters.settings, parameters.tensors)
    work = network.work(run.config.device, settings.precision, run.batch_size)
    if settings.batch_size is None and work.describe is None:  # it takes pixels
        work.extractor.grow(network.preprocessing.side)
    precision = {"precision": work.extractor.plan.precision}
    described = {"name": name, "sha256": parameters.sha256, **parameters.settings, **precision}
    return OpenedEncoder(View(network.preprocessing, work.describe), work.extractor, described)


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

    from pipeline.images.extraction import Stopwatch

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
