"""`embed`: the images and sentences of one shard in the joint space of a model."""

from pathlib import Path
from typing import Any

import click

from stages import options


@click.command("embed")
@options.manifest
@options.sharded
@options.features
@options.tfidf
@options.tokens
@options.trees
@options.regions
@click.option("--model", "model_folder", type=options.FOLDER, required=True, help="Folder of a fitted model.")
@options.config
@options.output("path", "The shard, an HDF5 file; a folder for all shards.")
def command(
    manifest_folder: Path,
    shard: int,
    features_root: Path,
    tfidf_folder: Path,
    tokens_folder: Path | None,
    trees_folder: Path | None,
    regions_root: Path | None,
    model_folder: Path,
    config_path: Path | None,
    output: Path,
) -> None:
    """Embed all images and sentences of one shard."""
    import numpy as np

    from pipeline.specs import restore
    from pipeline.storage.embeddings import write_embeddings
    from pipeline.storage.fingerprint import require_same
    from pipeline.storage.gather import Features, Sentences
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.parameters import MODEL, read_parameters
    from pipeline.storage.provenance import origin_of, require_origins
    from pipeline.storage.tokens import TokenShards
    from pipeline.storage.trees import TreeShards
    from pipeline.text.sequences import Tokens
    from pipeline.text.trees import Trees
    from stages.inputs import read_gpu

    parameters = read_parameters(model_folder / "model.safetensors", MODEL)
    model = restore(parameters.details["registered"], parameters.settings, parameters.tensors, model_folder)
    if (gpu := read_gpu(config_path)) is not None:
        model.to(gpu)
    manifest = Manifest(manifest_folder)
    rows = manifest.shard(shard)
    features = {name: Features(manifest, features_root).open(name, shard) for name in model.encoders}
    made_by = {name: {str(stored.path): origin_of(stored.sidecar)} for name, stored in features.items()}
    require_origins(parameters.details["encoders"], model_folder, made_by)
    if model.sentence_view == "tokens":
        opened = TokenShards(manifest, tokens_folder).open(shard)
        form = Tokens(opened.ids, opened.offsets)
    elif model.sentence_view.endswith("-trees"):
        opened = TreeShards(manifest, trees_folder).open(shard)
        form = Trees(**getattr(opened, model.sentence_view.removesuffix("-trees")))
        require_same("label table", {str(model_folder): parameters.details["labels"], str(opened.path): opened.labels})
    else:
        opened = Sentences(manifest, tfidf_folder).open(shard)
        form = opened.matrix
    vocabularies = {str(model_folder): parameters.details["vocabulary"], str(opened.path): opened.vocabulary}
    require_same("vocabulary", vocabularies)

    blocks = {name: stored["features"] for name, stored in features.items()}
    ids = {
        "images": np.arange(rows.first_image, rows.last_image),
        "sentences": np.arange(rows.first_sentence, rows.last_sentence),
    }
    inputs = {
        "model": parameters.fingerprint,
        model.sentence_view: opened.fingerprint,
        **{f"features/{name}": stored.fingerprint for name, stored in features.items()},
        "images": rows.fingerprints["images"],
        "sentences": rows.fingerprints["sentences"],
    }
    details = {
        "model": parameters.details["row"], "refits": parameters.details.get("refits"),
        "registered": parameters.details["registered"], "metric": model.metric, "vocabulary": opened.vocabulary,
    }  # fmt: skip
    given = ()
    if model.multi_vector:
        given = (_open_regions(manifest, regions_root, model, ids["images"]),)
        require_origins(parameters.details["regions"], model_folder, given[0].origins)
        inputs |= given[0].fingerprints
    sides = {"images": model.embed_images(blocks, *given), "sentences": model.embed_sentences(form)}
    rule = model.rule if model.multi_vector else None
    write_embeddings(output, sides, ids, {**details, "inputs": inputs}, rule)


def _open_regions(manifest: Any, root: Path | None, model: Any, image_id: Any) -> Any:
    """The regions of the shard's images."""
    from pipeline.errors import UsageError
    from pipeline.storage.names import plain
    from pipeline.storage.region_rows import RegionRows

    if root is None:
        raise UsageError("this model embeds regions; give what extract-regions wrote as --regions")
    folders = {name: root / plain(name, "the model") for name in model.region_encoders}
    return RegionRows(manifest, folders, image_id)
