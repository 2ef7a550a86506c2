"""`import-sentences`: vectors of sentences made elsewhere, as the shards that `encode-sentences` would have written."""

from collections.abc import Callable

from pipeline.run import Inputs, Job, Run, Stage


def import_sentences(run: Run, encoder: str) -> Callable[[Job], None]:
    """Match vectors made elsewhere with the run's sentences, by image and number, by their words or by their order."""
    from pipeline.storage.texts import storage_key, write_vectors
    from stages.given import match_given_sentences

    chosen = run.config.text_encoder(encoder)
    matched, storage = match_given_sentences(run, chosen), chosen.storage
    matched.require_stored(storage, storage_key(encoder))  # before the first shard is written

    def make(job: Job) -> None:
        vectors = matched.features(range(job.rows.first_sentence, job.rows.last_sentence))
        files = {name: digest for name, digest in job.inputs.items() if name.startswith("source/")}
        about = {"provenance": job.provenance, "encoder": encoder, "imported": files}
        owners = run.manifest.owners(job.number)
        write_vectors(job.path, vectors, job.sentence_id, owners, **about, storage=storage)

    return make


def _reads(config, layout, encoder: str) -> Inputs:
    from stages.given import given_inputs

    chosen = config.text_encoder(encoder)
    made_by = {"text_encoder": layout.text_encoder(encoder)} if chosen.prepared else {}
    return given_inputs(config, chosen) | made_by


STAGE = Stage(
    import_sentences,
    version=3,
    names=("encoder",),
    sharded=True,
    choices=lambda config: [(one.name,) for one in config.text_encoders if one.spec.reads == "vectors"],
    keys=lambda config, encoder: {
        "storage": config.text_encoder(encoder).storage,
        **config.text_encoder(encoder).own.model_dump(include={"features", "names"}),
    },
    reads=_reads,
    columns=("images", "sentences"),
    writes=lambda layout, encoder: layout.sentences(encoder),
)
