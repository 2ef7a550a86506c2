"""`build-label-table`: the relations and phrases in the trees of the training sentences, with their counts."""

import logging

from pipeline.plan.needs import Need, fixed, process
from pipeline.run import Job, Run, Stage


def build_label_table(run: Run, job: Job) -> None:
    """Count the labels of the training sentences' dependency and phrase trees."""
    from pipeline.storage.atomic import publish_json
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.records import read_vocabulary
    from pipeline.storage.trees import ParseShards
    from pipeline.text.tokens import make_analyzer
    from pipeline.text.tree_encoding import count_labels
    from pipeline.text.vocabulary import Vocabulary
    from stages.inputs import read_trees

    manifest, vocabulary = run.manifest, read_vocabulary(run.layout.token_vocabulary.path)
    analyze = make_analyzer(Vocabulary.from_dict(vocabulary).settings)
    parses = ParseShards(manifest, run.layout.parses.folder)
    shards = [parses.open(number) for number in range(manifest.n_shards)]
    training = iter((manifest.splits == "train")[manifest.sentence_images])

    table = count_labels(
        sentence
        for number, shard in enumerate(shards)
        for sentence in read_trees(shard, manifest.texts(manifest.shard(number)), analyze)
        if next(training)
    )

    inputs = {"manifest": manifest.fingerprint, "vocabulary": vocabulary["fingerprint"]}
    inputs |= {f"parses {number}": shard.fingerprint for number, shard in enumerate(shards)}
    digest = fingerprint("labels", 1, table.to_dict(), inputs)
    publish_json(job.path, {"fingerprint": digest, "inputs": inputs, **table.to_dict()})
    logging.getLogger(__name__).info("%d relations, %d phrases", len(table.relations), len(table.phrases))


STAGE = Stage(
    build_label_table,
    version=2,
    needs=Need(process(1000), fixed(10), fixed(30), "sentences"),
    reads=lambda config, layout: {
        "manifest": layout.manifest,
        "vocabulary": layout.token_vocabulary,
        "parses": layout.parses,
    },
    writes=lambda layout: layout.labels,
)
