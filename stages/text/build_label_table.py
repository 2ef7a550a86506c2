"""`build-label-table`: the relations and phrases in the trees of the training sentences, with their counts."""

from pipeline.run import Job, Run, Stage
from stages.inputs import named


def build_label_table(run: Run, job: Job) -> None:
    """Count the labels in the dependency and phrase trees of the training captions."""
    import logging

    from pipeline.storage.commit import publish_record
    from pipeline.storage.json_files import fingerprint
    from pipeline.text.trees import count_labels
    from stages.texts import read_analyzer, read_trees

    manifest, analyze = run.manifest, read_analyzer(run)
    is_training = iter(manifest.among(["train"])[manifest.sentence_images])
    table = count_labels(
        sentence
        for number in range(manifest.n_shards)
        for sentence in read_trees(run, number, analyze)
        if next(is_training)
    )
    value = table.to_dict()
    publish_record(job.path, {"fingerprint": fingerprint("labels", 1, value), **value}, provenance=job.provenance)
    logging.getLogger(__name__).info("%d relations, %d phrases", len(table.relations), len(table.phrases))


STAGE = Stage(
    build_label_table,
    version=4,
    reads=lambda config, layout: named(layout.manifest, layout.token_vocabulary, layout.parses),
    writes=lambda layout: layout.labels,
)
