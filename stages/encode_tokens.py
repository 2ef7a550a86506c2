"""`encode-tokens`: the sentences of one shard as sequences of word numbers."""

from pathlib import Path

import click

from stages import options


@click.command("encode-tokens")
@options.manifest
@options.shard
@click.option(
    "--vocabulary", "vocabulary_path", type=options.FILE, required=True, help="What `build-token-vocabulary` wrote."
)
@options.output("file", "The shard, an HDF5 file.")
def command(manifest_folder: Path, shard: int, vocabulary_path: Path, output: Path) -> None:
    """Encode the sentences of one shard word by word."""
    import numpy as np

    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.records import read_vocabulary
    from pipeline.storage.tokens import write_tokens
    from pipeline.text.sequences import encode_tokens
    from pipeline.text.vocabulary import Vocabulary

    value = read_vocabulary(vocabulary_path)
    manifest = Manifest(manifest_folder)
    rows = manifest.shard(shard)

    tokens = encode_tokens(manifest.texts(rows), Vocabulary.from_dict(value))

    inputs = {"vocabulary": value["fingerprint"], "sentences": rows.fingerprints["sentences"]}
    write_tokens(
        output,
        tokens.ids,
        tokens.offsets,
        np.arange(rows.first_sentence, rows.last_sentence),
        manifest.sentence_images[rows.first_sentence : rows.last_sentence],
        fingerprint=fingerprint("tokens", 2, inputs=inputs),
        inputs=inputs,
    )
