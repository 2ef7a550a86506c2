"""`embed`: the images and sentences of one shard in the joint space of a model."""

from pathlib import Path

import click

from stages import options


@click.command("embed")
@options.manifest
@options.shard
@options.features
@options.tfidf
@options.tokens
@click.option("--model", "model_folder", type=options.FOLDER, required=True, help="Folder of a fitted model.")
@options.output("file", "The shard, an HDF5 file.")
def command(
    manifest_folder: Path,
    shard: int,
    features_root: Path,
    tfidf_folder: Path,
    tokens_folder: Path | None,
    model_folder: Path,
    output: Path,
) -> None:
    """Embed all images and sentences of one shard."""
    import numpy as np

    from pipeline.models import model_class
    from pipeline.storage.fingerprint import fingerprint, require_same
    from pipeline.storage.gather import Features, Sentences
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.parameters import MODEL, read_parameters
    from pipeline.storage.shards import EMBEDDINGS, write_shard
    from pipeline.storage.tokens import TokenShards
    from pipeline.text.sequences import Tokens

    parameters = read_parameters(model_folder / "model.safetensors", MODEL)
    model = model_class(parameters.details["registered"]).from_parts(parameters.settings, parameters.tensors)
    manifest = Manifest(manifest_folder)
    rows = manifest.shard(shard)
    features = {name: Features(manifest, features_root).open(name, shard) for name in model.encoders}
    if model.sentence_view == "tokens":
        opened = TokenShards(manifest, tokens_folder).open(shard)
        form = Tokens(opened.ids, opened.offsets)
    else:
        opened = Sentences(manifest, tfidf_folder).open(shard)
        form = opened.matrix
    vocabularies = {str(model_folder): parameters.details["vocabulary"], str(opened.path): opened.vocabulary}
    require_same("vocabulary", vocabularies)

    images = model.embed_images({name: stored["features"] for name, stored in features.items()})
    sentences = model.embed_sentences(form)

    inputs = {
        "model": parameters.fingerprint,
        model.sentence_view: opened.fingerprint,
        **{f"features/{name}": stored.fingerprint for name, stored in features.items()},
        "images": rows.fingerprints["images"],
        "sentences": rows.fingerprints["sentences"],
    }
    write_shard(
        output,
        EMBEDDINGS,
        {
            "images": images,
            "image_id": np.arange(rows.first_image, rows.last_image),
            "sentences": sentences,
            "sentence_id": np.arange(rows.first_sentence, rows.last_sentence),
        },
        rows=len(images),
        fingerprint=fingerprint("embeddings", 1, inputs=inputs),
        details={
            "model": parameters.details["row"],
            "registered": parameters.details["registered"],
            "metric": model.metric,
            "dim": images.shape[1],
            "inputs": inputs,
        },
    )
