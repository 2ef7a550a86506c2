"""`learn-components`: the principal components of regions."""

from pipeline.plan.needs import TORCH, Need, fixed, manifest_mb, per_image
from pipeline.run import Job, Run, Stage


def learn_components(run: Run, job: Job, encoder: str) -> None:
    """Learn the principal components of the features of ENCODER's regions in the train split."""
    import numpy as np

    from pipeline.images.region_features import COMPONENTS, fit_projection
    from pipeline.storage.parameters import write_parameters
    from pipeline.storage.provenance import origin_of, same_origin
    from pipeline.storage.regions import open_regions

    manifest, folder = run.manifest, run.layout.regions(encoder).folder
    shards = [open_regions(manifest, folder, number) for number in range(manifest.n_shards)]
    same_origin(encoder, {str(shard.path): origin_of(shard.sidecar) for shard in shards})
    train = manifest.splits == "train"
    kept = (shard.packed(np.flatnonzero(train[shard.image_id])).features for shard in shards)
    components = fit_projection((features for features in kept if len(features)), run.config.regions.dimensions)
    inputs = {f"regions/{number}": shard.fingerprint for number, shard in enumerate(shards)}
    write_parameters(
        job.path, COMPONENTS, components._asdict(), settings={}, fingerprint=job.fingerprint, details={"inputs": inputs}
    )


STAGE = Stage(
    learn_components,
    version=1,
    needs=Need(
        lambda s: TORCH + 2500 + manifest_mb(s), fixed(50), per_image(500), "regions of the train split times D squared"
    ),
    names=("encoder",),
    choices=lambda config: [(name,) for name in config.regions.encoders if config.regions.reduced],
    keys=lambda config, encoder: {"dimensions": config.regions.dimensions},
    reads=lambda config, layout, encoder: {"manifest": layout.manifest, "regions": layout.regions(encoder)},
    writes=lambda layout, encoder: layout.components(encoder),
    threads=8,
)
