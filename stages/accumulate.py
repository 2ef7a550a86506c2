"""`accumulate`: the moments of one shard's pairs, target or auxiliary."""

from pathlib import Path

import click

from stages import options


@click.command("accumulate")
@options.manifest
@options.sharded
@options.features
@options.tfidf
@click.option(
    "--pairs",
    type=click.Choice(["target", "dev", "auxiliary"]),
    default="target",
    show_default=True,
    help="Images of the train split with sentences, those of the dev split with sentences, for refits, or those of"
    " auxiliary.splits with documents; --tfidf has these texts.",
)
@click.option(
    "--folds", type=click.IntRange(min=1), default=1, show_default=True, help="Parts whose moments are kept apart."
)
@click.option("--encoder", "encoders", multiple=True, help="Encoder of the image view. [default: the configuration's]")
@options.config
@options.output("path", "The moments, an HDF5 file; a folder for all shards.")
def command(
    manifest_folder: Path,
    shard: int,
    features_root: Path,
    tfidf_folder: Path,
    pairs: str,
    folds: int,
    encoders: tuple[str, ...],
    config_path: Path | None,
    output: Path,
) -> None:
    """Sum the moments of the pairs of one shard, over the features of all encoders."""
    import numpy as np

    from pipeline import config, runtime
    from pipeline.device import find_gpu
    from pipeline.models.linear.accumulation import BLOCK_ROWS
    from pipeline.models.linear.folds import assign_folds
    from pipeline.models.linear.passes import sum_blocks
    from pipeline.models.linear.views import ImageView
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.gather import Features, Sentences, read_pairs
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.moments import write_moments
    from pipeline.storage.provenance import origin_of

    settings = config.load(config_path)
    manifest = Manifest(manifest_folder)
    rows, texts, features = manifest.shard(shard), Sentences(manifest, tfidf_folder), Features(manifest, features_root)
    shards = {name: features.open(name, shard) for name in encoders or [e.name for e in settings.encoders]}
    tfidf = texts.open(shard)
    terms = tfidf.matrix.shape[1]
    dims = tuple(opened["features"].shape[1] for opened in shards.values())
    view = ImageView(tuple(shards), dims, settings.image_view.normalise)

    splits = {"target": ("train",), "dev": ("dev",), "auxiliary": settings.auxiliary.splits}[pairs]
    wanted = np.isin(manifest.splits.astype(str), splits)
    wanted[: rows.first_image] = wanted[rows.last_image :] = False
    division = {"count": folds, "order": settings.study.order, "seed": settings.seed} if folds > 1 else {"count": 1}
    assigned = assign_folds(manifest.splits, folds, settings.study.order, settings.seed)
    ids = np.unique(tfidf.image_id[wanted[tfidf.image_id]])
    gpu, parts = find_gpu(settings.device), {}
    for fold in np.unique(assigned[ids]).tolist():
        blocks = read_pairs(features, texts, view.encoders, wanted & (assigned == fold), BLOCK_ROWS)
        parts[fold] = sum_blocks(blocks, view, terms, runtime.threads(), gpu).to_arrays()

    inputs = {
        "images": rows.fingerprints["images"],
        "splits": rows.fingerprints["splits"],
        "tfidf": tfidf.fingerprint,
        **{f"features/{name}": opened.fingerprint for name, opened in shards.items()},
    }
    about = {"view": vars(view), "pairs": pairs, "splits": list(splits), "folds": division}
    about |= {"documents": tfidf.details["documents"]} if "documents" in tfidf.details else {}
    details = {"encoders": {name: origin_of(opened.sidecar) for name, opened in shards.items()}}
    details |= {"range": [rows.first_image, rows.last_image], "vocabulary": tfidf.vocabulary, "terms": terms}
    write_moments(
        output,
        parts,
        ids,
        assigned[ids],
        fingerprint=fingerprint("moments", 3, about, inputs),
        details={**about, **details, "inputs": inputs},
    )
