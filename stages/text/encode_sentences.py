"""`encode-sentences`: sentences as sparse tf-idf vectors."""

from collections.abc import Callable

from pipeline.plan.needs import PYTHON, Need, per_shard, process
from pipeline.run import Job, Run, Stage


def encode_sentences(run: Run) -> Callable[[Job], None]:
    """Encode the sentences over the vocabulary."""
    from pipeline.storage.records import read_vocabulary
    from pipeline.storage.text_shards import write_tfidf
    from pipeline.text.tfidf import encode
    from pipeline.text.vocabulary import Vocabulary

    vocabulary, manifest = Vocabulary.from_dict(read_vocabulary(run.layout.vocabulary.path)), run.manifest

    def make(job: Job) -> None:
        matrix, owners = encode(manifest.texts(job.rows), vocabulary), manifest.sentence_images[job.sentence_id]
        write_tfidf(job.path, matrix, job.sentence_id, owners, fingerprint=job.fingerprint, inputs=job.inputs)

    return make


STAGE = Stage(
    encode_sentences,
    version=3,
    needs=Need(process(PYTHON + 500), lambda s: 0.0005 * s.shard_images * s.texts, per_shard(50), "sentences"),
    sharded=True,
    reads=lambda config, layout: {"vocabulary": layout.vocabulary},
    columns=("sentences",),
    writes=lambda layout: layout.sentences("tfidf"),
)
