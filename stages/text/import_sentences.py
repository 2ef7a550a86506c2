"""`import-sentences`: vectors of sentences made elsewhere, as the shards that `encode-sentences` would have written."""

from collections.abc import Callable

from pipeline.run import Inputs, Job, Run, Stage
from stages.inputs import named


def import_sentences(run: Run, encoder: str) -> Callable[[Job], None]:
    """Match imported text vectors to the run's captions by image and number, by text or by order."""
    from pipeline.storage.texts import storage_key, write_vectors
    from stages.given import match_given_sentences

    entry, matched = run.config.text_encoder(encoder), match_given_sentences(run, run.config.text_encoder(encoder))
    matched.require_stored(entry.storage, storage_key(encoder))  # before the first shard is written

    def make(job: Job) -> None:
        vectors = matched.features(range(job.rows.first_sentence, job.rows.last_sentence))
        files = {name: digest for name, digest in job.inputs.items() if name.startswith("source/")}
        about = {"encoder": encoder, "imported": files, "storage": entry.storage}
        owners = run.manifest.owners(job.number)
        write_vectors(job.path, vectors, job.sentence_id, owners, provenance=job.provenance, **about)

    return make


def _reads(config, layout, encoder: str) -> Inputs:
    from stages.given import given_inputs

    entry = config.text_encoder(encoder)
    return {**given_inputs(config, entry), **named(*([layout.text_encoder(encoder)] if entry.prepared else []))}


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
