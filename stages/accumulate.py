"""`accumulate`: the moments of one shard's training pairs."""

from pathlib import Path

import click

from stages import options


@click.command("accumulate")
@options.manifest
@options.shard
@options.features
@options.tfidf
@options.config
@options.output("file", "The moments, an HDF5 file.")
def command(
    manifest_folder: Path, shard: int, features_root: Path, tfidf_folder: Path, config_path: Path | None, output: Path
) -> None:
    """Sum the moments of the training pairs of one shard, over the features of all encoders."""
    import numpy as np

    from pipeline import config, runtime
    from pipeline.linear.accumulation import BLOCK_ROWS, MomentsAccumulator
    from pipeline.linear.views import ImageView
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.gather import Features, Sentences
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.shards import MOMENTS, write_shard

    settings = config.load(config_path)
    manifest = Manifest(manifest_folder)
    rows = manifest.shard(shard)
    shards = {e.name: Features(manifest, features_root).open(e.name, shard) for e in settings.encoders}
    tfidf = Sentences(manifest, tfidf_folder).open(shard)
    dims = tuple(opened["features"].shape[1] for opened in shards.values())
    view = ImageView(tuple(shards), dims, settings.image_view.normalise)

    training = np.flatnonzero(manifest.splits[tfidf.image_id] == "train")
    owners = tfidf.image_id[training] - rows.first_image
    accumulator = MomentsAccumulator(view.dim, tfidf.matrix.shape[1], runtime.threads())
    for start in range(0, rows.last_image - rows.first_image, BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        first, last = np.searchsorted(owners, [block.start, block.stop])
        x = view.stack({name: opened["features"][block] for name, opened in shards.items()})
        accumulator.add(x, tfidf.matrix[training[first:last]], owners[first:last] - start)

    inputs = {
        "splits": rows.fingerprints["splits"],
        "tfidf": tfidf.fingerprint,
        **{f"features/{name}": opened.fingerprint for name, opened in shards.items()},
    }
    write_shard(
        output,
        MOMENTS,
        accumulator.result().to_arrays(),
        rows=len(np.unique(owners)),
        fingerprint=fingerprint("moments", 1, vars(view), inputs),
        details={"view": vars(view), "inputs": inputs, "vocabulary": tfidf.vocabulary},
    )
