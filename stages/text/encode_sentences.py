"""`encode-sentences`: sentences as the vectors of a text encoder."""

from collections.abc import Callable

from pipeline.run import Job, Run, Stage


def encode_sentences(run: Run, encoder: str) -> Callable[[Job], None]:
    """Encode the sentences by a text encoder."""
    from pipeline.storage.texts import write_vectors
    from stages.texts import open_text_encoder

    made, manifest, storage = open_text_encoder(run, encoder), run.manifest, run.config.text_encoder(encoder).storage

    def make(job: Job) -> None:
        vectors, owners = made.encode(manifest.texts(job.number)), manifest.owners(job.number)
        about = {"provenance": job.provenance, "encoder": encoder, "storage": storage}
        write_vectors(job.path, vectors, job.sentence_id, owners, **about)

    return make


STAGE = Stage(
    encode_sentences,
    version=7,
    names=("encoder",),
    sharded=True,
    choices=lambda config: [(one.name,) for one in config.text_encoders if one.spec.reads == "texts"],
    keys=lambda config, encoder: {"storage": config.text_encoder(encoder).storage},
    reads=lambda config, layout, encoder: {"text_encoder": layout.text_encoder(encoder)},
    columns=("sentences",),
    writes=lambda layout, encoder: layout.sentences(encoder),
)
