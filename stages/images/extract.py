"""`extract`: features of images."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pipeline.run import Job, Run, Stage

if TYPE_CHECKING:
    import numpy as np

    from pipeline.config.images import Encoder
    from pipeline.config.names import Config
    from pipeline.images.preprocess import Photograph
    from pipeline.storage.features import UnfinishedShard

log = logging.getLogger(__name__)


class Part(NamedTuple):
    """The images `rows` of shard `number`, which the encoders `names` have not described yet; `last` says whether the
    `shards` of all encoders are whole with it."""

    number: int
    shards: "dict[str, UnfinishedShard]"
    rows: range
    names: list[str]
    photographs: "list[Photograph]"
    last: bool


def extract(run: Run, *encoders: str) -> Callable[[Iterable[Sequence[Job]]], Iterator[int]]:
    """Extract image features with every encoder, or with one; each photo is decoded once. Resumable."""
    from contextlib import closing
    from itertools import chain, groupby, tee
    from operator import attrgetter

    from tqdm import tqdm

    from pipeline.images.decode import ImageLimits
    from pipeline.images.extraction import Stopwatch, extract_in_step
    from pipeline.images.preprocess import load_views
    from pipeline.storage.features import to_stored
    from pipeline.workers import behind
    from stages.photographs import open_encoder

    opened = {name: open_encoder(run, name) for name in encoders}
    settings = run.config.extract
    limits = ImageLimits.from_settings(run.config.collection)
    read = run.images.read

    def write(described: "tuple[Part, list[np.ndarray]]") -> int | None:
        """Keep the features of a part, and publish the shards that are whole with it; returns their number then."""
        part, features = described
        for name, rows in zip(part.names, features, strict=True):
            stored = to_stored(rows, settings.storage, [photograph.name for photograph in part.photographs])
            part.shards[name].write(part.rows, stored)
        if not part.last:
            return None
        sides = [opened[name].view.preprocessing.resize for name in part.shards]
        shared = {"decoded_for": max(sides)} if len(sides) > 1 else {}
        for name, shard in part.shards.items():
            batch_size = opened[name].extractor.plan.batch_size
            shard.publish({"encoder": opened[name].described, "batch_size": batch_size, **shared})
        return part.number

    def describe(names: list[str], parts: Iterable[Part]) -> "Iterator[tuple[Part, list[np.ndarray]]]":
        """The features of parts by the same encoders; photographs are decoded ahead of them, whatever their part."""
        parts, ahead, lengths = tee(parts, 3)

        def photographs() -> "Iterator[Photograph]":
            for part in ahead:
                bar.total += len(part.rows)
                yield from part.photographs

        views, extractors = zip(*((opened[name].view, opened[name].extractor) for name in names), strict=True)
        stopwatch, images = Stopwatch(), 0
        with closing(load_views(photographs(), read, limits, views, run.decoders)) as pictures:
            bar = tqdm(pictures, "extract", 0, unit=" images", disable=None)
            sizes = (len(part.rows) for part in lengths)
            features = extract_in_step(stopwatch.iterate("decode", bar), extractors, sizes)
            for part, rows in zip(parts, features, strict=True):
                with stopwatch.measure("write"):
                    yield part, rows
                images += len(part.rows)
                if part.last:
                    log.info("shard %d: %s", part.number, stopwatch.describe(images))
                    images = 0

    def make(shards: Iterable[Sequence[Job]]) -> Iterator[int]:
        parts = chain.from_iterable(_parts(run, jobs) for jobs in shards)
        groups = groupby(parts, key=attrgetter("names"))
        described = chain.from_iterable(describe(names, group) for names, group in groups)
        return (number for number in behind(write, described) if number is not None)

    return make


def _parts(run: Run, jobs: Sequence[Job]) -> "Iterator[Part]":
    """What is still to be described of a shard."""
    from pipeline.images.preprocess import Photograph
    from pipeline.storage.features import UnfinishedShard

    photographs = [Photograph.from_row(row) for row in run.manifest.table("images", jobs[0].number).to_pylist()]
    part_rows = run.config.extract.checkpoint_images
    shards = {job.names[0]: UnfinishedShard(job.path, job.provenance, job.image_id, part_rows) for job in jobs}
    missing = sorted({rows for shard in shards.values() for rows in shard.missing}, key=lambda rows: rows.start)
    for rows in missing:
        names = [name for name, shard in shards.items() if rows in shard.missing]
        yield Part(jobs[0].number, shards, rows, names, photographs[rows.start : rows.stop], rows == missing[-1])


def _extracted(config: "Config", encoders: "Iterable[Encoder]") -> list[tuple[str]]:
    """Those of the encoders that read photographs, and whose features are not mapped from others."""
    return [(one.name,) for one in encoders if one.spec.reads == "pixels" and one.name not in config.extract.mapped]


STAGE = Stage(
    extract,
    version=5,
    gpu=True,
    names=("encoder",),
    sharded=True,
    choices=lambda config: _extracted(config, config.every_encoder),
    wanted=lambda config: _extracted(config, config.encoders),
    keys=lambda config, encoder: config.extract.decisive(),
    reads=lambda config, layout, encoder: {"encoder": layout.encoder(encoder)},
    columns=("images",),
    writes=lambda layout, encoder: layout.features(encoder),
    together=True,
    in_stream=True,
)
