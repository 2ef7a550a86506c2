"""`encode-trees`: parses as packed trees over the words that `encode-tokens` finds."""

from collections.abc import Callable

from pipeline.run import Job, Run, Stage


def encode_trees(run: Run) -> Callable[[Job], None]:
    """Encode the dependency and phrase trees of the sentences."""
    import logging

    from pipeline.storage.records import read_labels
    from pipeline.storage.trees import ParseShards, write_trees
    from pipeline.text.tokens import make_analyzer
    from pipeline.text.trees import LabelTable, pack_trees
    from stages.inputs import read_token_vocabulary, read_trees

    vocabulary, _ = read_token_vocabulary(run)
    labels, analyze = LabelTable.from_dict(read_labels(run.layout.labels.path)), make_analyzer(vocabulary.settings)
    manifest, parses = run.manifest, ParseShards(run.manifest, run.layout.parses.folder)

    def make(job: Job) -> None:
        sentences = list(read_trees(parses.open(job.number), manifest.texts(job.number), analyze))
        packed = pack_trees(sentences, vocabulary, labels)
        for trees in packed:
            trees.check()
        kinds = dict(zip(("dependency", "phrase"), map(vars, packed), strict=True))
        misfits = sum(not sentence.fits for sentence in sentences)
        details = {"n_misfits": misfits}
        owners = manifest.owners(job.number)
        write_trees(job.path, kinds, job.sentence_id, owners, provenance=job.provenance, details=details)
        found = "%d sentences; %d chains where words did not fit"
        logging.getLogger(__name__).info(found, len(sentences), misfits)

    return make


STAGE = Stage(
    encode_trees,
    version=4,
    sharded=True,
    reads=lambda config, layout: {
        "parses": layout.parses,
        "vocabulary": layout.token_vocabulary,
        "labels": layout.labels,
    },
    columns=("sentences",),
    writes=lambda layout: layout.sentences("trees"),
)
