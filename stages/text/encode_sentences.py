"""`encode-sentences`: sentences as the vectors of a text encoder."""

from collections.abc import Callable

from pipeline.run import Job, Run, Stage
from stages.inputs import named


def encode_sentences(run: Run, encoder: str) -> Callable[[Job], None]:
    """Encode the captions with a text encoder."""
    from pipeline.storage.texts import write_vectors
    from stages.texts import open_text_encoder

    text_encoder = open_text_encoder(run, encoder)
    about = {"encoder": encoder, "storage": run.config.text_encoder(encoder).storage}

    def make(job: Job) -> None:
        vectors = text_encoder.encode(run.manifest.texts(job.number))
        owners = run.manifest.owners(job.number)
        write_vectors(job.path, vectors, job.sentence_id, owners, provenance=job.provenance, **about)

    return make


STAGE = Stage(
    encode_sentences,
    version=7,
    names=("encoder",),
    sharded=True,
    choices=lambda config: [(one.name,) for one in config.text_encoders if one.spec.reads == "texts"],
    keys=lambda config, encoder: {"storage": config.text_encoder(encoder).storage},
    reads=lambda config, layout, encoder: named(layout.text_encoder(encoder)),
    columns=("sentences",),
    writes=lambda layout, encoder: layout.sentences(encoder),
)
