"""`extract`: features of images."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from pipeline.run import ShardJob, stage

if TYPE_CHECKING:
    from pipeline.config.images import Encoder
    from pipeline.config.names import Config
    from pipeline.run.jobs import StageRun


def _extracted(config: "Config", encoders: "Iterable[Encoder]") -> list[tuple[str]]:
    """The names of the encoders that read photos, and whose features are not mapped from those of another encoder."""
    return [(one.name,) for one in encoders if one.spec.reads == "pixels" and one.name not in config.extract.mapped]


@stage(
    version=6,
    gpu=True,
    threads=16,
    memory=4000,
    choices=lambda config: _extracted(config, config.every_encoder),
    wanted=lambda config: _extracted(config, config.encoders),
    keys=lambda config, encoder: config.extract.decisive(),
    reads=lambda config, layout, encoder: {"encoders": {encoder: layout.encoder(encoder)}},
    columns=("images",),
    writes=lambda layout, encoder: layout.features(encoder),
)
def extract(run: "StageRun", jobs: Iterator[ShardJob], *encoders: str) -> Iterator[int]:
    """Extract image features with every encoder, or with one; each photo is decoded once. Resumable."""
    from pipeline.compute.workers import behind
    from pipeline.images.preprocess import Photograph
    from pipeline.run.reading.photos import FeatureExtraction, missing_parts
    from pipeline.storage.features import UnfinishedShard

    extraction = FeatureExtraction(run, encoders)

    def list_parts() -> Iterator:
        for number, jobs_of_shard in groupby(jobs, key=attrgetter("number")):
            photographs = [Photograph.from_row(row) for row in run.manifest.table("images", number).to_pylist()]
            shards = {
                job.names[0]: UnfinishedShard(
                    job.path, job.provenance, job.image_id, run.config.extract.checkpoint_images
                )
                for job in jobs_of_shard
            }
            yield from missing_parts(number, shards, photographs)

    return behind(extraction.write, extraction.describe(list_parts()))
