"""`pool-regions`: one shard's regions as features of whole images."""

from pathlib import Path

import click

from stages import options

BLOCK = 256
"""Images whose regions are in memory at once."""


@click.command("pool-regions")
@options.manifest
@click.option(
    "--encoder", "encoder_folder", type=options.FOLDER, required=True, help="Folder that `prepare-encoder` wrote."
)
@click.option(
    "--regions", "regions_folder", type=options.FOLDER, required=True, help="Folder of `extract-regions` shards."
)
@options.shard
@options.config
@options.output("file", "The features, an HDF5 file.")
def command(
    manifest_folder: Path,
    encoder_folder: Path,
    regions_folder: Path,
    shard: int,
    config_path: Path | None,
    output: Path,
) -> None:
    """Pool the features of each image's regions into one vector of the image."""
    import json

    import numpy as np

    from pipeline import config
    from pipeline.errors import IntegrityError, UsageError
    from pipeline.images.pooled_regions import pool
    from pipeline.storage.features import to_stored, write_features
    from pipeline.storage.fingerprint import fingerprint, require_same
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.parameters import ENCODER, read_parameters
    from pipeline.storage.regions import open_regions

    manifest, storage = Manifest(manifest_folder), config.load(config_path).extract.storage
    parameters = read_parameters(encoder_folder / "model.safetensors", ENCODER)
    if "pooling" not in parameters.settings:
        raise UsageError(f"{encoder_folder} pools no regions; give an encoder whose architecture is pooled")
    regions = open_regions(manifest, regions_folder, shard)
    made_by = regions.details["inputs"]["encoder"]
    require_same("encoder", {str(regions.path): made_by, str(encoder_folder): parameters.details["of"]})
    if "projection" in regions.details:
        raise UsageError(f"{regions.path} was reduced; give the regions as extract-regions wrote them")
    told = {key: regions.details["regions"].get(key) for key in parameters.settings["regions"]}
    cut = {str(regions.path): told, str(encoder_folder): parameters.settings["regions"]}
    require_same("the regions", {file: json.dumps(regions, sort_keys=True) for file, regions in cut.items()})
    if not np.diff(regions.offsets).all():
        first = regions.image_id[np.diff(regions.offsets).argmin()]
        raise IntegrityError(f"image {first} has no regions in {regions.path}; run ingest again, without it")

    n, pooling = len(regions.image_id), parameters.settings["pooling"]
    blocks = (regions.packed(np.arange(start, min(start + BLOCK, n))) for start in range(0, n, BLOCK))
    features = np.concatenate([pool(block.features, block.offsets, pooling) for block in blocks])
    names = [f"image {number}" for number in regions.image_id]
    inputs = {"encoder": parameters.fingerprint, "images": regions.details["inputs"]["images"]}
    inputs["regions"] = regions.fingerprint
    described = {"name": parameters.details["name"], "sha256": parameters.sha256, **parameters.settings}
    digest = fingerprint("features-pooled", 2, {"storage": storage}, inputs)
    stored = to_stored(features, storage, names)
    write_features(output, stored, regions.image_id, digest, {"encoder": described, "inputs": inputs})
