"""`encode-trees`: parses as packed trees over the words that `encode-tokens` finds."""

from collections.abc import Callable

from pipeline.run import Job, Run, Stage
from stages.inputs import named


def encode_trees(run: Run) -> Callable[[Job], None]:
    """Encode the dependency and phrase trees of the captions."""
    import logging

    from pipeline.storage.records import read_labels
    from pipeline.storage.texts import write_trees
    from pipeline.text.tokens import make_analyzer
    from pipeline.text.trees import LabelTable, pack_trees
    from stages.texts import read_token_vocabulary, read_trees

    vocabulary, _ = read_token_vocabulary(run)
    labels = LabelTable.from_dict(read_labels(run.layout.labels.path))
    analyze = make_analyzer(vocabulary.settings)

    def make(job: Job) -> None:
        sentences = list(read_trees(run, job.number, analyze))
        dependency, phrase = pack_trees(sentences, vocabulary, labels)
        kinds = {"dependency": vars(dependency), "phrase": vars(phrase)}
        misfits = sum(not sentence.fits for sentence in sentences)
        owners = run.manifest.owners(job.number)
        details = {"n_misfits": misfits}
        write_trees(job.path, kinds, job.sentence_id, owners, provenance=job.provenance, details=details)
        message = "%d sentences; %d chains where words did not fit"
        logging.getLogger(__name__).info(message, len(sentences), misfits)

    return make


STAGE = Stage(
    encode_trees,
    version=5,
    sharded=True,
    reads=lambda config, layout: named(layout.parses, layout.token_vocabulary, layout.labels),
    columns=("sentences",),
    writes=lambda layout: layout.sentences("trees"),
)
