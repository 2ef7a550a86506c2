"""`import-features`: features made elsewhere, as the shards that `extract` would have written."""

from pathlib import Path

import click

from pipeline.run import Run
from stages.commands import PATH, on_run


@click.command("import-features")
@click.argument("name")
@click.option(
    "--from", "source_path", type=PATH, required=True, help=".npy, HDF5, Parquet, or clip-retrieval's folder."
)
@click.option("--features", help="HDF5 dataset or Parquet column of the features. [default: the only one]")
@click.option("--names", help="Dataset or column of the names; for .npy a text file. [default: the only one, FILE.txt]")
@click.option(
    "--encoder", help="Encoder of this run that made them, which indices carry then, for photographs. [default: none]"
)
@on_run
def command(
    run: Run, name: str, source_path: Path, features: str | None, names: str | None, encoder: str | None
) -> None:
    """Match the features of an encoder NAME with the run's images by path, or by file name, and write all shards."""
    import logging

    from tqdm import trange

    from pipeline.errors import InputError, UsageError
    from pipeline.images.matching import match_names, some
    from pipeline.run.runner import commit_part
    from pipeline.storage.atomic import is_published
    from pipeline.storage.features import to_stored, write_features
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.foreign import Source, open_foreign
    from pipeline.storage.locks import hold
    from pipeline.storage.shards import FEATURES

    if Path(name).name != name:
        raise UsageError(f"{name} is a path; give the name of an encoder")
    manifest, dtype, shards = run.manifest, run.config.extract.storage, run.layout.features(name)
    source = open_foreign(Source(source_path, features, names))
    images = [row["member"] or row["path"] for row in manifest.images.select(["path", "member"]).to_pylist()]
    matching = match_names(source.names, images)
    log = logging.getLogger(__name__)
    if matching.unmatched:
        log.warning("%d rows match no image: %s", len(matching.unmatched), some(matching.unmatched))
    if missing := matching.missing(images):
        raise InputError(
            f"{len(missing)} images have no row in {source_path}: {some(missing)}; add them, or ingest fewer images"
        )

    made_by = {}
    if encoder:
        used = run.encoder(encoder)
        dim, own = source.blocks[0].shape[1], used.details.get("dim")
        if own not in (None, dim):
            raise InputError(
                f"{source_path} has {dim} dimensions, but the encoder {encoder} has {own}; leave out --encoder"
            )
        made_by = {"encoder": used.fingerprint}
    files = {f"source/{file}": digest for file, digest in source.sha256.items()}
    with hold(shards.folder):
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
        for number, part in enumerate(run.parts):  # so that Snakemake has no reason to extract what is here
            commit_part(shards, number, part)
    log.info("%d images with %d dimensions", len(images), source.blocks[0].shape[1])
