"""`fit`: a linear model from the sum of all shards' moments, its parameters chosen on the dev split."""

from pathlib import Path

import click

from stages import options


@click.command("fit")
@click.argument("row")
@options.manifest
@options.features
@options.tfidf
@click.option("--moments", "moments_folder", type=options.FOLDER, required=True, help="Folder of moments shards.")
@options.config
@options.output("folder", "Folder of the model.")
def command(
    row: str,
    manifest_folder: Path,
    features_root: Path,
    tfidf_folder: Path,
    moments_folder: Path,
    config_path: Path | None,
    output: Path,
) -> None:
    """Fit ROW: a registered model, or one of the configuration's variants."""
    import logging

    from tqdm import tqdm

    from pipeline import config
    from pipeline.linear.moments import Moments, sum_moments
    from pipeline.linear.tuning import Grid, Pairs, tune
    from pipeline.linear.views import ImageView
    from pipeline.models import model_class
    from pipeline.storage.fingerprint import fingerprint, require_same
    from pipeline.storage.gather import Features, Sentences, open_shards, read_split
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.parameters import MODEL, write_parameters
    from pipeline.storage.shards import MOMENTS

    settings = config.load(config_path)
    variant = settings.row(row)
    manifest = Manifest(manifest_folder)
    shards = open_shards(moments_folder, MOMENTS, manifest.n_shards)
    vocabulary = require_same("vocabulary", {str(shard.path): shard.details["vocabulary"] for shard in shards})
    whole = ImageView.from_dict(shards[0].details["view"])
    moments = sum_moments(Moments.from_arrays(shard) for shard in shards).select_x(whole.columns(variant.encoders))
    view = whole.select(variant.encoders)
    sentences = Sentences(manifest, tfidf_folder)
    dev = read_split(Features(manifest, features_root), sentences, view.encoders, "dev", settings.fit.dev_images)

    tuned = tune(
        model_class(variant.model),
        view,
        moments,
        Pairs(dev.features, dev.sentences, dev.owners),
        Grid(**settings.fit.model_dump(exclude={"dev_images"})),
        progress=lambda ridges: tqdm(ridges, desc=f"fit {row}", unit="ridge pair", disable=None),
    )

    inputs = {str(number): shard.fingerprint for number, shard in enumerate(shards)}
    write_parameters(
        output / "model.safetensors",
        MODEL,
        tuned.model.tensors(),
        settings=tuned.model.settings(),
        fingerprint=fingerprint("model", 1, [variant.model_dump(), settings.fit.model_dump()], inputs),
        details={
            "row": row,
            "registered": variant.model,
            "vocabulary": vocabulary,
            "inputs": inputs,
            "training_log": tuned.log(),
        },
    )
    chosen, log = tuned.chosen, logging.getLogger(__name__)
    log.info("%s on %d pairs, chosen on %d dev images: %s", row, moments.n, len(dev.image_id), chosen)
    mean_train, mean_dev = tuned.train_correlations.mean(), tuned.dev_correlations.mean()
    log.info("mean correlation %.3f in training, %.3f held out", mean_train, mean_dev)
