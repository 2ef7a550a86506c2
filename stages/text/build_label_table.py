"""`build-label-table`: the relations and phrases in the trees of the training sentences, with their counts."""

from pipeline.run import Job, Run, Stage


def build_label_table(run: Run, job: Job) -> None:
    """Count the labels of the training sentences' dependency and phrase trees."""
    import logging

    from pipeline.storage.commit import publish_record
    from pipeline.storage.json_files import fingerprint
    from pipeline.storage.trees import ParseShards
    from pipeline.text.tokens import make_analyzer
    from pipeline.text.trees import count_labels
    from stages.inputs import read_token_vocabulary, read_trees

    manifest, (vocabulary, _) = run.manifest, read_token_vocabulary(run)
    analyze = make_analyzer(vocabulary.settings)
    parses = ParseShards(manifest, run.layout.parses.folder)
    training = iter(manifest.among(["train"])[manifest.sentence_images])

    table = count_labels(
        sentence
        for number in range(manifest.n_shards)
        for sentence in read_trees(parses.open(number), manifest.texts(number), analyze)
        if next(training)
    )

    value = table.to_dict()
    publish_record(job.path, {"fingerprint": fingerprint("labels", 1, value), **value}, provenance=job.provenance)
    logging.getLogger(__name__).info("%d relations, %d phrases", len(table.relations), len(table.phrases))


STAGE = Stage(
    build_label_table,
    version=3,
    reads=lambda config, layout: {
        "manifest": layout.manifest,
        "vocabulary": layout.token_vocabulary,
        "parses": layout.parses,
    },
    writes=lambda layout: layout.labels,
)
