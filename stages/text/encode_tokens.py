"""`encode-tokens`: sentences as sequences of words."""

from collections.abc import Callable

from pipeline.run import Job, Run, Stage


def encode_tokens(run: Run) -> Callable[[Job], None]:
    """Encode the sentences word by word."""
    from pipeline.storage.text_shards import write_tokens
    from pipeline.text.sequences import encode_tokens
    from stages.inputs import read_token_vocabulary

    (vocabulary, _), manifest = read_token_vocabulary(run), run.manifest

    def make(job: Job) -> None:
        tokens, owners = encode_tokens(manifest.texts(job.number), vocabulary), manifest.owners(job.number)
        made = {"provenance": job.provenance}
        write_tokens(job.path, tokens.ids, tokens.offsets, job.sentence_id, owners, **made)

    return make


STAGE = Stage(
    encode_tokens,
    version=5,
    sharded=True,
    reads=lambda config, layout: {"vocabulary": layout.token_vocabulary},
    columns=("sentences",),
    writes=lambda layout: layout.sentences("tokens"),
)
