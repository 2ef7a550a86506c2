"""`build-label-table`: the relations and phrases in the trees of the training sentences, with their counts."""

import logging
from pathlib import Path

import click

from stages import options


@click.command("build-label-table")
@options.manifest
@options.parses
@options.token_vocabulary
@options.output("file", "The table, a JSON file.")
def command(manifest_folder: Path, parses_folder: Path, vocabulary_path: Path, output: Path) -> None:
    """Count the labels of the training sentences' dependency and phrase trees."""
    from pipeline.storage.atomic import publish_json
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.records import read_vocabulary
    from pipeline.storage.trees import ParseShards
    from pipeline.text.tokens import make_analyzer
    from pipeline.text.tree_encoding import count_labels
    from pipeline.text.vocabulary import Vocabulary
    from stages.inputs import read_trees

    value = read_vocabulary(vocabulary_path)
    analyze = make_analyzer(Vocabulary.from_dict(value).settings)
    manifest = Manifest(manifest_folder)
    shards = [ParseShards(manifest, parses_folder).open(number) for number in range(manifest.n_shards)]
    training = iter((manifest.splits == "train")[manifest.sentence_images])

    table = count_labels(
        sentence
        for number, shard in enumerate(shards)
        for sentence in read_trees(shard, manifest.texts(manifest.shard(number)), analyze)
        if next(training)
    )

    inputs = {"manifest": manifest.fingerprint, "vocabulary": value["fingerprint"]}
    inputs |= {f"parses {number}": shard.fingerprint for number, shard in enumerate(shards)}
    digest = fingerprint("labels", 1, table.to_dict(), inputs)
    publish_json(output, {"fingerprint": digest, "inputs": inputs, **table.to_dict()})
    logging.getLogger(__name__).info("%d relations, %d phrases", len(table.relations), len(table.phrases))
