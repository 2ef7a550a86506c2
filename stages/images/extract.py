"""`extract`: features of images."""

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pipeline.run import Job, Run, Stage

if TYPE_CHECKING:
    from pipeline.config.images import Encoder
    from pipeline.config.names import Config

log = logging.getLogger(__name__)


def extract(run: Run, *encoders: str) -> Callable[..., None]:
    """Extract image features with every encoder, or with one; each photo is decoded once. Resumable."""
    from itertools import groupby, islice

    from tqdm import tqdm

    from pipeline.images.decode import ImageLimits
    from pipeline.images.extraction import Stopwatch, extract_in_step
    from pipeline.images.preprocess import Photograph, load_views
    from pipeline.storage.features import UnfinishedShard, to_stored
    from stages.photographs import open_encoder

    opened = {name: open_encoder(run, name) for name in encoders}
    settings = run.config.extract
    limits = ImageLimits.from_settings(run.config.collection)
    read = run.images.read

    def make(*jobs: Job) -> None:
        photographs = [Photograph.from_row(row) for row in run.manifest.table("images", jobs[0].number).to_pylist()]
        stopwatch = Stopwatch()
        shards = {
            job.names[0]: UnfinishedShard(job.path, job.provenance, job.image_id, settings.checkpoint_images)
            for job in jobs
        }
        missing: dict[range, list[str]] = {}
        for name, shard in shards.items():
            for part in shard.missing():
                missing.setdefault(part, []).append(name)
        for names, group in groupby(sorted(missing, key=lambda part: part.start), key=missing.__getitem__):
            parts = list(group)
            photographs_left = [photographs[row] for part in parts for row in part]
            views = [opened[name].view for name in names]
            pictures = load_views(photographs_left, read, limits, views, run.decoders)
            bar = tqdm(pictures, "extract", len(photographs_left), unit=" images", disable=None)
            pictures = stopwatch.iterate("decode", bar)
            for part in parts:
                features = extract_in_step(islice(pictures, len(part)), [opened[name].extractor for name in names])
                for name, rows in zip(names, features, strict=True):
                    with stopwatch.measure("write"):
                        stored = to_stored(rows, settings.storage, [photographs[row].name for row in part])
                        shards[name].write(part, stored)
        shared = (
            {"decoded_for": max(opened[name].view.preprocessing.resize for name in shards)} if len(shards) > 1 else {}
        )
        for job in jobs:
            encoder = opened[job.names[0]]
            batch_size = encoder.extractor.plan.batch_size
            details = {"encoder": encoder.described, "batch_size": batch_size, **shared}
            shards[job.names[0]].publish(details)
        log.info("shard %d: %s", jobs[0].number, stopwatch.describe(sum(map(len, missing))))

    return make


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
)
