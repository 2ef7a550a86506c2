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

    from pipeline.specs.stored import restore
    from pipeline.storage.fingerprint import fingerprint, require_same
    from pipeline.storage.gather import Features, Sentences
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.parameters import MODEL, read_parameters
    from pipeline.storage.provenance import origin_of, require_origins
    from pipeline.storage.shards import EMBEDDINGS, write_shard
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
        "model": parameters.details["model"], "refits": parameters.details.get("refits"),
        "registered": parameters.details["registered"], "metric": model.metric, "vocabulary": opened.vocabulary,
    }  # fmt: skip
    if model.kind == "fragments":
        regions = _open_regions(manifest, regions_root, model, ids)
        require_origins(parameters.details["regions"], model_folder, regions.origins)
        _embed_sets(output, model, blocks, form, regions, ids, inputs, details)
        return

    images = model.embed_images(blocks)
    sentences = model.embed_sentences(form)

    write_shard(
        output,
        EMBEDDINGS,
        {"images": images, "image_id": ids["images"], "sentences": sentences, "sentence_id": ids["sentences"]},
        rows=len(images),
        fingerprint=fingerprint("embeddings", 2, inputs=inputs),
        details={**details, "dim": images.shape[1], "inputs": inputs},
    )


def _open_regions(manifest: Any, root: Path | None, model: Any, ids: dict[str, Any]) -> Any:
    """The regions of the shard's images."""
    from pipeline.errors import UsageError
    from pipeline.storage.names import plain
    from pipeline.storage.region_rows import RegionRows

    if root is None:
        raise UsageError("this model embeds regions; give what extract-regions wrote as --regions")
    folders = {name: root / plain(name, "the model") for name in model.region_encoders}
    return RegionRows(manifest, folders, ids["images"])


def _embed_sets(
    output: Path, model: Any, features: dict, sentences: Any, regions: Any, ids: dict, inputs: dict, details: dict
) -> None:
    """One vector a region and one a word."""
    import numpy as np

    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.fragments import write_fragments

    sides = {"images": model.embed_image_sets(features, regions), "sentences": model.embed_sentence_sets(sentences)}

    inputs = {**inputs, **regions.fingerprints}
    write_fragments(
        output,
        sides,
        ids,
        regions.packed(np.arange(len(regions))).boxes,
        fingerprint=fingerprint("fragments", 2, inputs=inputs),
        details={**details, "dim": sides["images"].vectors.shape[1], "inputs": inputs, "score": model.rule._asdict()},
    )
