"""`reduce-regions`: the features of regions in fewer dimensions."""

import click

from pipeline.run.run import Run
from stages.commands import on_run


@click.command("reduce-regions")
@click.argument("encoder")
@on_run
def command(run: Run, encoder: str) -> None:
    """Project the features of ENCODER's regions on the principal components of those of the train split.

    The reduced shards are of the same form, in the folder reduced/ENCODER of the run.
    """
    import numpy as np

    from pipeline.errors import UsageError
    from pipeline.images.components import fit_projection
    from pipeline.precision import to_float32
    from pipeline.storage.features import to_stored
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.locks import hold
    from pipeline.storage.provenance import origin_of, same_origin
    from pipeline.storage.regions import open_regions

    manifest, layout = run.manifest, run.layout
    dimensions, storage = run.config.regions.dimensions, run.config.extract.storage
    if dimensions is None:
        raise UsageError("regions.dimensions is null: set it to the number of principal components")
    shards = [open_regions(manifest, layout.regions(encoder).folder, number) for number in range(manifest.n_shards)]
    same_origin(encoder, {str(shard.path): origin_of(shard.sidecar) for shard in shards})
    train = manifest.splits == "train"
    kept = (shard.packed(np.flatnonzero(train[shard.image_id])).features for shard in shards)
    projection = fit_projection((features for features in kept if len(features)), dimensions)
    made_of = {str(number): shard.fingerprint for number, shard in enumerate(shards)}
    made_by = fingerprint("projection", 1, {"dimensions": dimensions}, made_of)

    output = layout.regions(encoder, reduced=True)
    with hold(output.folder):
        for number, shard in enumerate(shards):
            names = [f"row {row} of {shard.path}" for row in range(len(shard["scores"]))]
            reduced = to_stored(projection(to_float32(shard["features"])), storage, names)
            digest = fingerprint("regions-reduced", 2, {"dimensions": dimensions, "storage": storage}, made_of)
            details = {"reduced_from": shard.fingerprint, "projection": made_by}
            shard.with_features(output.shard(number), reduced, digest, details)
