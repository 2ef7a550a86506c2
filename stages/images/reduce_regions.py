"""`reduce-regions`: the features of regions in fewer dimensions."""

from pathlib import Path

import click

from stages import options


@click.command("reduce-regions")
@options.manifest
@click.option(
    "--regions", "regions_folder", type=options.FOLDER, required=True, help="Folder of `extract-regions` shards."
)
@options.config
@options.output("folder", "Folder of the reduced shards, of the same form.")
def command(manifest_folder: Path, regions_folder: Path, config_path: Path | None, output: Path) -> None:
    """Project the features of all shards on the principal components of those of the train split's regions."""
    import numpy as np

    from pipeline import config
    from pipeline.errors import UsageError
    from pipeline.images.components import fit_projection
    from pipeline.precision import to_float32
    from pipeline.storage.features import to_stored
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.gather import shard_path
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.provenance import origin_of, same_origin
    from pipeline.storage.regions import open_regions

    settings, manifest = config.load(config_path), Manifest(manifest_folder)
    dimensions, storage = settings.regions.dimensions, settings.extract.storage
    if dimensions is None:
        raise UsageError("regions.dimensions is null: set it to the number of principal components")
    shards = [open_regions(manifest, regions_folder, number) for number in range(manifest.n_shards)]
    same_origin(regions_folder.name, {str(shard.path): origin_of(shard.sidecar) for shard in shards})
    train = manifest.splits == "train"
    kept = (shard.packed(np.flatnonzero(train[shard.image_id])).features for shard in shards)
    projection = fit_projection((features for features in kept if len(features)), dimensions)
    made_of = {str(number): shard.fingerprint for number, shard in enumerate(shards)}
    made_by = fingerprint("projection", 1, {"dimensions": dimensions}, made_of)

    for number, shard in enumerate(shards):
        names = [f"row {row} of {shard.path}" for row in range(len(shard["scores"]))]
        reduced = to_stored(projection(to_float32(shard["features"])), storage, names)
        digest = fingerprint("regions-reduced", 2, {"dimensions": dimensions, "storage": storage}, made_of)
        details = {"reduced_from": shard.fingerprint, "projection": made_by}
        shard.with_features(shard_path(output, number), reduced, digest, details)
