"""`pool-regions`: regions as features of whole images."""

from collections.abc import Callable

from pipeline.run import Job, Run, stage

BLOCK = 256
"""Images whose regions are in memory at once."""


@stage(
    version=3,
    choices=lambda config: [(one.name,) for one in config.every_encoder if one.spec.reads == "regions"],
    keys=lambda config, encoder: {"storage": config.extract.storage},
    reads=lambda config, layout, encoder: [layout.encoder(encoder), layout.regions(config.encoder(encoder).of)],
    columns=("images",),
    writes=lambda layout, encoder: layout.features(encoder),
)
def pool_regions(run: Run, encoder: str) -> Callable[[Job], None]:
    """Pool the features of each image's regions into one vector per image."""
    import json

    import numpy as np

    from pipeline.config.stored import stored_kind
    from pipeline.errors import IntegrityError, UsageError
    from pipeline.images.regions import pool
    from pipeline.storage.features import to_stored, write_features
    from pipeline.storage.json_files import require_same
    from pipeline.storage.regions import RegionShard

    storage, parameters = run.config.extract.storage, run.encoder(encoder)
    folder = run.layout.encoder(encoder).path
    if stored_kind(parameters.settings).reads != "regions":
        raise UsageError(f"{folder} does not pool regions; name an encoder that does")
    pooling = parameters.settings["pooling"]
    source = run.layout.regions(run.config.encoder(encoder).of)
    described = {"name": encoder, "sha256": parameters.sha256, **parameters.settings}

    def make(job: Job) -> None:
        regions = RegionShard(source.shard(job.number))
        recorded = {key: regions.details["regions"].get(key) for key in parameters.settings["regions"]}
        cut = {str(regions.path): recorded, str(folder): parameters.settings["regions"]}
        require_same("the regions", {file: json.dumps(settings, sort_keys=True) for file, settings in cut.items()})
        if not np.diff(regions.offsets).all():
            first = regions.image_id[np.diff(regions.offsets).argmin()]
            raise IntegrityError(f"image {first} has no regions in {regions.path}; ingest again without this image")
        n = len(regions.image_id)
        blocks = (regions.packed(np.arange(start, min(start + BLOCK, n))) for start in range(0, n, BLOCK))
        features = np.concatenate([pool(block.features, block.offsets, pooling) for block in blocks])
        stored = to_stored(features, storage, [f"image {number}" for number in regions.image_id])
        details = {"encoder": described}
        write_features(job.path, stored, regions.image_id, job.provenance, details)

    return make
