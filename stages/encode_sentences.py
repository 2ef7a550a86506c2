"""`encode-sentences`: the sentences of one shard as sparse tf-idf vectors."""

from pathlib import Path

import click

from stages import options


@click.command("encode-sentences")
@options.manifest
@options.sharded
@click.option(
    "--vocabulary", "vocabulary_path", type=options.FILE, required=True, help="What `build-vocabulary` wrote."
)
@options.output("path", "The shard, an HDF5 file; a folder for all shards.")
def command(manifest_folder: Path, shard: int, vocabulary_path: Path, output: Path) -> None:
    """Encode the sentences of one shard over the vocabulary."""
    import numpy as np

    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.records import read_vocabulary
    from pipeline.storage.sentences import write_tfidf
    from pipeline.text.tfidf import encode
    from pipeline.text.vocabulary import Vocabulary

    value = read_vocabulary(vocabulary_path)
    manifest = Manifest(manifest_folder)
    rows = manifest.shard(shard)

    matrix = encode(manifest.texts(rows), Vocabulary.from_dict(value))

    inputs = {"vocabulary": value["fingerprint"], "sentences": rows.fingerprints["sentences"]}
    write_tfidf(
        output,
        matrix,
        np.arange(rows.first_sentence, rows.last_sentence),
        manifest.sentence_images[rows.first_sentence : rows.last_sentence],
        fingerprint=fingerprint("tfidf", 2, inputs=inputs),
        inputs=inputs,
    )
