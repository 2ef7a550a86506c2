"""`encode-documents`: the weak texts of one shard's images as sparse tf-idf vectors."""

from pathlib import Path

import click

from stages import options


@click.command("encode-documents")
@click.argument("name")
@options.manifest
@options.shard
@click.option(
    "--vocabulary", "vocabulary_path", type=options.FILE, required=True, help="What `build-vocabulary` wrote."
)
@click.option(
    "--documents",
    "documents_path",
    type=options.FILE,
    help="What `simulate-documents` wrote. [default: the manifest's own]",
)
@options.config
@options.output("file", "The shard, an HDF5 file.")
def command(
    name: str,
    manifest_folder: Path,
    shard: int,
    vocabulary_path: Path,
    documents_path: Path | None,
    config_path: Path | None,
    output: Path,
) -> None:
    """Encode the fields that NAME of the configuration's `documents` has, over the sentences' vocabulary."""
    import numpy as np

    from pipeline import config
    from pipeline.storage.fingerprint import fingerprint, require_same
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.records import read_vocabulary
    from pipeline.storage.sentences import write_tfidf
    from pipeline.storage.tables import read_table
    from pipeline.text.documents import join_fields
    from pipeline.text.tfidf import encode
    from pipeline.text.vocabulary import Vocabulary

    fields, value = config.load(config_path).documents_named(name).fields, read_vocabulary(vocabulary_path)
    manifest = Manifest(manifest_folder)
    rows = manifest.shard(shard)
    documents, inputs = manifest.documents, {"documents": rows.fingerprints["documents"]}
    if documents_path:
        documents, sidecar = read_table(documents_path, "simulated-documents")
        made_from = {str(documents_path): sidecar.details["inputs"]["manifest"]}
        require_same("manifest", {str(manifest_folder): manifest.fingerprint, **made_from})
        inputs = {"simulated": sidecar.fingerprint}
    inputs |= {"vocabulary": value["fingerprint"], "images": rows.fingerprints["images"]}
    image_id = documents["image_id"].to_numpy()
    first, last = np.searchsorted(image_id, [rows.first_image, rows.last_image])
    texts = join_fields(documents.slice(first, last - first).to_pylist(), fields)
    present = np.flatnonzero([bool(text) for text in texts])

    matrix = encode([texts[row] for row in present], Vocabulary.from_dict(value))

    write_tfidf(
        output,
        matrix,
        first + present,
        image_id[first + present],
        fingerprint=fingerprint("tfidf", 2, [name, *fields], inputs),
        inputs=inputs,
        documents=name,
    )
