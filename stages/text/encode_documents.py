"""`encode-documents`: weak texts of images as sparse tf-idf vectors."""

from collections.abc import Callable

from pipeline.plan.needs import PYTHON, Need, per_shard, process
from pipeline.run import Inputs, Job, Run, Stage


def encode_documents(run: Run, documents: str) -> Callable[[Job], None]:
    """Encode the fields of weak texts that a section of `documents` has, over the sentences' vocabulary."""
    import numpy as np

    from pipeline.storage.fingerprint import require_same
    from pipeline.storage.records import read_vocabulary
    from pipeline.storage.tables import read_table
    from pipeline.storage.text_shards import write_tfidf
    from pipeline.text.tfidf import encode, join_fields
    from pipeline.text.vocabulary import Vocabulary

    chosen, vocabulary = run.config.documents[documents], read_vocabulary(run.layout.vocabulary.path)
    terms, table = Vocabulary.from_dict(vocabulary), run.manifest.documents
    if chosen.simulate is not None:
        path = run.layout.simulated(documents).path
        table, sidecar = read_table(path, "simulated-documents")
        made_from = {str(path): sidecar.details["inputs"]["manifest"]}
        require_same("manifest", {str(run.manifest.folder): run.manifest.fingerprint, **made_from})
    image_id = table["image_id"].to_numpy()

    def make(job: Job) -> None:
        first, last = np.searchsorted(image_id, [job.rows.first_image, job.rows.last_image])
        texts = join_fields(table.slice(first, last - first).to_pylist(), chosen.fields)
        present = np.flatnonzero([bool(text) for text in texts])
        matrix, rows = encode([texts[row] for row in present], terms), first + present
        made = {"fingerprint": job.fingerprint, "inputs": job.inputs, "documents": documents}
        write_tfidf(job.path, matrix, rows, image_id[rows], **made)

    return make


def _reads(config, layout, documents: str) -> Inputs:
    simulated = config.documents[documents].simulate is not None
    return {"vocabulary": layout.vocabulary, **({"simulated": layout.simulated(documents)} if simulated else {})}


STAGE = Stage(
    encode_documents,
    version=3,
    needs=Need(process(PYTHON + 500, images=0.002), lambda s: 0.001 * s.shard_images, per_shard(50), "documents"),
    names=("documents",),
    sharded=True,
    choices=lambda config: [(name,) for name in config.documents],
    keys=lambda config, documents: {documents: config.documents[documents].model_dump()},
    reads=_reads,
    columns=("images", "documents"),
    writes=lambda layout, documents: layout.documents(documents),
)
