"""`import-features`: features made elsewhere, as the shards that `extract` would have written."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.run import Inputs, ShardJob, stage

if TYPE_CHECKING:
    from pipeline.config.names import Config
    from pipeline.run.jobs import StageRun
    from pipeline.run.layout import Layout


def _reads(config: "Config", layout: "Layout", encoder: str) -> Inputs:
    from pipeline.run.reading.precomputed import given_inputs

    chosen = config.encoder(encoder)
    return {
        "source": given_inputs(config, chosen),
        "encoder": layout.encoder(encoder) if chosen.prepared else None,
    }


@stage(
    version=3,
    choices=lambda config: [(one.name,) for one in config.every_encoder if one.spec.reads == "vectors"],
    keys=lambda config, encoder: {
        "storage": config.extract.storage,
        **config.encoder(encoder).model_dump(include={"features", "names"}),
    },
    reads=_reads,
    columns=("images",),
    writes=lambda layout, encoder: layout.features(encoder),
)
def import_features(run: "StageRun", jobs: Iterator[ShardJob], encoder: str) -> Iterator[int]:
    """Match imported features to the run's images by path or file name."""
    from pipeline.run.reading.precomputed import match_given
    from pipeline.storage.features import to_stored, write_features

    matched, storage = match_given(run, run.config.encoder(encoder)), run.config.extract.storage
    matched.require_stored(storage, "extract.storage")  # before the first shard is written
    for job in jobs:
        rows = range(job.rows.first_image, job.rows.last_image)
        stored = to_stored(matched.features(rows), storage, matched.names(rows))
        files = {name: digest for name, digest in job.digests.items() if name.startswith("source/")}
        details = {"encoder": {"name": encoder, "imported": files}}
        write_features(job.path, stored, job.image_id, job.provenance, details)
        yield job.number
