"""`encode-documents`: weak texts of images as the vectors of a text encoder."""

from collections.abc import Callable

from pipeline.errors import UsageError
from pipeline.run import Inputs, Job, Run, Stage
from stages.inputs import named


def encode_documents(run: Run, documents: str, encoder: str) -> Callable[[Job], None]:
    """Encode titles, tags and descriptions (a section of `documents`) with a text encoder."""
    import numpy as np

    from pipeline.storage.texts import write_vectors
    from pipeline.text.tfidf import join_fields
    from stages.texts import open_documents, open_text_encoder

    encoder_of_texts, read_shard = open_text_encoder(run, encoder), open_documents(run, documents)
    fields = run.config.documents[documents].fields
    about = {"encoder": encoder, "storage": run.config.text_encoder(encoder).storage, "documents": documents}

    def make(job: Job) -> None:
        table, first = read_shard(job.rows)
        texts = join_fields(table.to_pylist(), fields)
        present = np.flatnonzero([bool(text) for text in texts])
        vectors = encoder_of_texts.encode([texts[row] for row in present])
        owners = table["image_id"].to_numpy()[present]
        write_vectors(job.path, vectors, first + present, owners, provenance=job.provenance, **about)

    return make


def _reads(config, layout, documents: str, encoder: str) -> Inputs:
    if not config.text_encoder(encoder).prepared:
        raise UsageError(
            f"the text encoder {encoder} has vectors of captions only, but {documents} must be encoded too; name the"
            " encoder that made them in made_by"
        )
    simulated = [] if config.documents[documents].simulate is None else [layout.simulated(documents)]
    return named(layout.text_encoder(encoder), *simulated)


STAGE = Stage(
    encode_documents,
    version=7,
    names=("documents", "encoder"),
    sharded=True,
    choices=lambda config: [(name, one.name) for name in config.documents for one in config.text_encoders],
    keys=lambda config, documents, encoder: {
        documents: config.documents[documents].model_dump(),
        "storage": config.text_encoder(encoder).storage,
    },
    reads=_reads,
    columns=("images", "documents"),
    writes=lambda layout, documents, encoder: layout.documents(documents, encoder),
)
