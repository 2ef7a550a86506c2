"""`extract`: the features of one shard's images."""

from pathlib import Path

import click

from stages import options


@click.command("extract")
@options.manifest
@click.option(
    "--encoder", "encoder_folder", type=options.FOLDER, required=True, help="Folder that `prepare-encoder` wrote."
)
@options.shard
@options.config
@options.output("file", "The features, an HDF5 file.")
def command(manifest_folder: Path, encoder_folder: Path, shard: int, config_path: Path | None, output: Path) -> None:
    """Extract the features of one shard's images, going on where a killed run has stopped."""
    import logging
    from itertools import islice

    import numpy as np
    from tqdm import tqdm

    from pipeline import config
    from pipeline.images.decode import ImageLimits
    from pipeline.images.preprocess import Photograph, load_all
    from pipeline.storage.features import UnfinishedShard, to_stored
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.parameters import ENCODER, read_parameters
    from pipeline.storage.sources import ImageSource

    settings, manifest = config.load(config_path), Manifest(manifest_folder)
    extract, collection, rows = settings.extract, settings.collection, manifest.shard(shard)
    parameters = read_parameters(encoder_folder / "model.safetensors", ENCODER)
    inputs = {"encoder": parameters.fingerprint, "images": rows.fingerprints["images"]}
    digest = fingerprint("features", 2, extract.model_dump(include={"precision", "storage"}), inputs)
    images = manifest.images.slice(rows.first_image, rows.last_image - rows.first_image)
    unfinished = UnfinishedShard(output, digest, images["image_id"].to_numpy(), extract.checkpoint_images)
    log = logging.getLogger(__name__)
    if unfinished.is_published():
        log.info("%s is there already", output)
        return

    from pipeline.images.extraction import Stopwatch  # torch, which nothing above has needed
    from pipeline.images.kinds import divide, restore

    encoder = restore(parameters.settings, parameters.tensors)
    work = divide(encoder, settings.device, extract.precision, extract.batch_size)
    limits = ImageLimits.from_settings(collection)
    photographs = [Photograph.from_row(row) for row in images.to_pylist()]
    missing, stopwatch = unfinished.missing(), Stopwatch()
    todo = [photographs[row] for part in missing for row in part]
    read, preprocessing = ImageSource(manifest.root, collection.follow_links).read, encoder.spec.preprocessing
    pictures = load_all(todo, read, limits, preprocessing, extract.decode_workers, work.describe)
    pictures = stopwatch.iterate("decode", tqdm(pictures, "extract", len(todo), unit=" images", disable=None))
    for part in missing:
        features = np.concatenate(list(work.extractor(islice(pictures, len(part)))))
        with stopwatch.measure("write"):
            stored = to_stored(features, extract.storage, [photographs[row].name for row in part])
            unfinished.write(part, stored)

    described = {"name": parameters.details["name"], "sha256": parameters.sha256, **parameters.settings}
    described["precision"] = work.extractor.plan.precision
    unfinished.publish({"encoder": described, "inputs": inputs})
    log.info("shard %d: %s", shard, stopwatch.describe(len(todo)))
