"""`encode-trees`: the parses of one shard as packed trees over the words that `encode-tokens` finds."""

import logging
from pathlib import Path

import click

from stages import options


@click.command("encode-trees")
@options.manifest
@options.shard
@options.parses
@options.token_vocabulary
@click.option(
    "--labels", "labels_path", type=options.FILE, required=True, help="The table that `build-label-table` wrote."
)
@options.output("file", "The shard, an HDF5 file.")
def command(
    manifest_folder: Path, shard: int, parses_folder: Path, vocabulary_path: Path, labels_path: Path, output: Path
) -> None:
    """Encode the dependency and phrase trees of one shard's sentences."""
    import numpy as np

    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.records import read_labels, read_vocabulary
    from pipeline.storage.trees import ParseShards, write_trees
    from pipeline.text.tokens import make_analyzer
    from pipeline.text.tree_encoding import LabelTable, pack_trees
    from pipeline.text.vocabulary import Vocabulary
    from stages.inputs import read_trees

    value, labels = read_vocabulary(vocabulary_path), read_labels(labels_path)
    vocabulary, manifest = Vocabulary.from_dict(value), Manifest(manifest_folder)
    rows, parses = manifest.shard(shard), ParseShards(manifest, parses_folder).open(shard)

    sentences = list(read_trees(parses, manifest.texts(rows), make_analyzer(vocabulary.settings)))
    packed = pack_trees(sentences, vocabulary, LabelTable.from_dict(labels))
    for trees in packed:
        trees.check()

    inputs = {
        "parses": parses.fingerprint,
        "vocabulary": value["fingerprint"],
        "labels": labels["fingerprint"],
        "sentences": rows.fingerprints["sentences"],
    }
    misfits = sum(not sentence.fits for sentence in sentences)
    write_trees(
        output,
        dict(zip(("dependency", "phrase"), map(vars, packed), strict=True)),
        np.arange(rows.first_sentence, rows.last_sentence),
        manifest.sentence_images[rows.first_sentence : rows.last_sentence],
        fingerprint=fingerprint("trees", 2, inputs=inputs),
        details={"inputs": inputs, "n_misfits": misfits},
    )
    logging.getLogger(__name__).info("%d sentences; %d chains where words did not fit", len(sentences), misfits)
