"""`import-features`: features made elsewhere, as the shards that `extract` would have written."""

from collections.abc import Callable

from pipeline.run import Inputs, Job, Run, stage


def _reads(config, layout, encoder: str) -> Inputs:
    from pipeline.run.reading.precomputed import given_inputs

    chosen = config.encoder(encoder)
    return [*given_inputs(config, chosen), *([layout.encoder(encoder)] if chosen.prepared else [])]


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
def import_features(run: Run, encoder: str) -> Callable[[Job], None]:
    """Match imported features to the run's images by path or file name."""
    from pipeline.run.reading.precomputed import match_given
    from pipeline.storage.features import to_stored, write_features

    matched, storage = match_given(run, run.config.encoder(encoder)), run.config.extract.storage
    matched.require_stored(storage, "extract.storage")  # before the first shard is written

    def make(job: Job) -> None:
        rows = range(job.rows.first_image, job.rows.last_image)
        stored = to_stored(matched.features(rows), storage, matched.names(rows))
        files = {name: digest for name, digest in job.inputs.items() if name.startswith("source/")}
        details = {"encoder": {"name": encoder, "imported": files}}
        write_features(job.path, stored, job.image_id, job.provenance, details)

    return make
