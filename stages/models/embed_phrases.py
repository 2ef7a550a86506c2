"""`embed-phrases`: the noun phrases of a split and the regions of its images in the joint space of a model."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stages import options

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from pipeline.storage.region_rows import RegionRows

BLOCK = 512
"""Images whose regions are embedded at once."""


@click.command("embed-phrases")
@options.manifest
@click.option("--model", "model_folder", type=options.FOLDER, required=True, help="Folder of a trained hmlstm.")
@options.parses
@options.token_vocabulary
@click.option("--labels", "labels_path", type=options.FILE, required=True, help="What `build-label-table` wrote.")
@click.option(
    "--regions", "regions_root", type=options.FOLDER, required=True, help="Folder with region shards of each encoder."
)
@click.option("--split", required=True, help="Split of the manifest whose sentences are taken.")
@options.config
@options.output("folder", "Folder of the two tables.")
def command(
    manifest_folder: Path,
    model_folder: Path,
    parses_folder: Path,
    vocabulary_path: Path,
    labels_path: Path,
    regions_root: Path,
    split: str,
    config_path: Path | None,
    output: Path,
) -> None:
    """Embed every noun phrase within a sentence of a split, and every region of its images."""
    from itertools import chain

    import numpy as np
    import pyarrow as pa

    from pipeline.errors import UsageError
    from pipeline.specs.stored import restore
    from pipeline.storage.embeddings import split_pairs
    from pipeline.storage.fingerprint import fingerprint, require_same
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.names import plain
    from pipeline.storage.parameters import MODEL, read_parameters
    from pipeline.storage.phrases import vectors_column, write_phrases
    from pipeline.storage.provenance import require_origins
    from pipeline.storage.records import read_labels, read_vocabulary
    from pipeline.storage.region_rows import RegionRows
    from pipeline.text.noun_phrases import list_noun_phrases
    from pipeline.text.tokens import make_analyzer
    from pipeline.text.tree_encoding import LabelTable, pack_trees
    from pipeline.text.vocabulary import Vocabulary
    from stages.boxes import read_sentence_trees
    from stages.inputs import read_gpu

    parameters = read_parameters(model_folder / "model.safetensors", MODEL)
    model = restore(parameters.details["registered"], parameters.settings, parameters.tensors, model_folder)
    if not hasattr(model, "embed_phrases"):
        raise UsageError(f"{parameters.details['registered']} embeds no noun phrases; give the folder of an hmlstm")
    if (gpu := read_gpu(config_path)) is not None:
        model.to(gpu)
    value, labels = read_vocabulary(vocabulary_path), read_labels(labels_path)
    for what, given, path in (("vocabulary", value, vocabulary_path), ("labels", labels, labels_path)):
        require_same(what, {str(path): given["fingerprint"], str(model_folder): parameters.details[what]})
    vocabulary, manifest = Vocabulary.from_dict(value), Manifest(manifest_folder)
    pairs = split_pairs(manifest, split)
    folders = {name: regions_root / plain(name, model_folder) for name in model.encoders}
    regions = RegionRows(manifest, folders, pairs.image_id)
    require_origins(parameters.details["regions"], model_folder, regions.origins)

    sentences, parsed = read_sentence_trees(
        manifest, parses_folder, make_analyzer(vocabulary.settings), pairs.sentence_id
    )
    vectors = model.embed_phrases(pack_trees(sentences, vocabulary, LabelTable.from_dict(labels))[1])
    phrases = [list_noun_phrases(sentence.tree) for sentence in sentences]
    counts = [len(own) for own in phrases]
    spoken = list(chain.from_iterable(phrases))
    inputs = {
        "manifest": manifest.fingerprint,
        "model": parameters.fingerprint,
        **parsed,
        **regions.fingerprints,
    }
    write_phrases(
        output,
        _embed_regions(model, regions, pairs.image_id),
        pa.table(
            {
                "sentence_id": np.repeat(pairs.sentence_id, counts),
                "image_id": np.repeat(pairs.image_id[pairs.owners], counts),
                "text": [phrase.text for phrase in spoken],
                "head": [phrase.head for phrase in spoken],
                "vector": vectors_column(vectors),
            }
        ),
        fingerprint=fingerprint("embedded-phrases", 1, split, inputs),
        details={"model": parameters.details["model"], "split": split, "dim": vectors.shape[1], "inputs": inputs},
    )
    logging.getLogger(__name__).info("%d noun phrases in %d sentences of %s", len(spoken), len(sentences), split)


def _embed_regions(model: object, regions: "RegionRows", image_id: "np.ndarray") -> "pa.Table":
    """The table of all regions of the images `image_id` (n,)."""
    import numpy as np
    import pyarrow as pa

    from pipeline.storage.phrases import CORNERS, vectors_column

    parts = []
    for start in range(0, len(image_id), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(image_id)))
        block = regions.packed(rows)
        columns = {
            "image_id": image_id[rows][block.owners],
            "number": block.numbers,
            **dict(zip(CORNERS, block.boxes.T, strict=True)),
            "vector": vectors_column(model.embed_regions(block)),
        }
        parts.append(pa.table(columns))
    return pa.concat_tables(parts)
