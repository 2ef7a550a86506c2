"""`encode-tokens`: sentences as sequences of words."""

from collections.abc import Callable

from pipeline.run import Job, Run, Stage
from stages.inputs import named


def encode_tokens(run: Run) -> Callable[[Job], None]:
    """Encode the captions as sequences of tokens."""
    from pipeline.storage.texts import write_tokens
    from pipeline.text.sequences import encode_tokens
    from stages.texts import read_token_vocabulary

    vocabulary, _ = read_token_vocabulary(run)

    def make(job: Job) -> None:
        tokens = encode_tokens(run.manifest.texts(job.number), vocabulary)
        owners = run.manifest.owners(job.number)
        write_tokens(job.path, tokens.ids, tokens.offsets, job.sentence_id, owners, provenance=job.provenance)

    return make


STAGE = Stage(
    encode_tokens,
    version=5,
    sharded=True,
    reads=lambda config, layout: named(layout.token_vocabulary),
    columns=("sentences",),
    writes=lambda layout: layout.sentences("tokens"),
)
