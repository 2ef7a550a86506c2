"""`import-features`: features made elsewhere, as the shards that `extract` would have written."""

from pathlib import Path

import click

from stages import options


@click.command("import-features")
@options.manifest
@click.option(
    "--source", "source_path", type=options.PATH, required=True, help=".npy, HDF5, Parquet, or clip-retrieval's folder."
)
@click.option("--name", required=True, help="Name of the encoder that made them.")
@click.option("--features", help="HDF5 dataset or Parquet column of the features. [default: the only one]")
@click.option("--names", help="Dataset or column of the names; for .npy a text file. [default: the only one, FILE.txt]")
@click.option(
    "--encoder", "encoder_folder", type=options.FOLDER,
    help="Encoder of this run that made them, which indices carry then, for photographs. [default: none]",
)  # fmt: skip
@options.config
@options.output("folder", "Folder of the shards.")
def command(
    manifest_folder: Path,
    source_path: Path,
    name: str,
    features: str | None,
    names: str | None,
    encoder_folder: Path | None,
    config_path: Path | None,
    output: Path,
) -> None:
    """Match features with the manifest's images by path, or by file name, and write all shards."""
    import logging

    from tqdm import trange

    from pipeline import config
    from pipeline.errors import InputError
    from pipeline.images.matching import match_names, some
    from pipeline.run.layout import Shards
    from pipeline.run.parts import divide
    from pipeline.run.runner import commit_part
    from pipeline.storage.atomic import is_published
    from pipeline.storage.features import to_stored, write_features
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.foreign import Source, open_foreign
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.provenance import read_encoder
    from pipeline.storage.shards import FEATURES

    manifest, chosen = Manifest(manifest_folder), config.load(config_path)
    dtype, shards = chosen.extract.storage, Shards(f"features/{name}", output)
    source = open_foreign(Source(source_path, features, names))
    images = [row["member"] or row["path"] for row in manifest.images.select(["path", "member"]).to_pylist()]
    matching = match_names(source.names, images)
    log = logging.getLogger(__name__)
    if matching.unmatched:
        log.warning("%d rows are of no image: %s", len(matching.unmatched), some(matching.unmatched))
    if missing := matching.missing(images):
        raise InputError(
            f"{len(missing)} images have no row in {source_path}: {some(missing)}; add them, or ingest less"
        )

    made_by = {}
    if encoder_folder:
        encoder = read_encoder(encoder_folder.parent, encoder_folder.name)
        dim, own = source.blocks[0].shape[1], encoder.details.get("dim")
        if own not in (None, dim):
            raise InputError(f"{source_path} has {dim} dimensions, the encoder in {encoder_folder} {own}; leave it out")
        made_by = {"encoder": encoder.fingerprint}
    files = {f"source/{file}": digest for file, digest in source.sha256.items()}
    for number in trange(manifest.n_shards, desc="import", unit=" shards", disable=None):
        rows = manifest.shard(number)
        inputs = {"images": rows.fingerprints["images"], **files, **made_by}
        digest = fingerprint("imported-features", 2, {"name": name, "storage": dtype}, inputs)
        path = shards.shard(number)
        if is_published(path, FEATURES, digest):
            continue
        span = slice(rows.first_image, rows.last_image)
        stored = to_stored(source.take(matching.rows[span]), dtype, images[span])
        details = {"encoder": {"name": name, "imported": source.sha256}, "inputs": inputs}
        write_features(path, stored, manifest.images["image_id"][span].to_numpy(), digest, details)
    parts = divide(manifest.n_shards, manifest.shard_size, chosen.shards_per_job, chosen.scheduler is not None)
    for number, part in enumerate(parts):  # so that Snakemake has no reason to extract what is here
        commit_part(shards, number, part)
    log.info("%d images with %d dimensions", len(images), source.blocks[0].shape[1])
