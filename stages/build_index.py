"""`build-index`: the bundle that a search needs, from the embeddings of one row."""

from pathlib import Path

import click

from stages import options


@click.command("build-index")
@options.manifest
@options.embeddings
@click.option("--model", "model_folder", type=options.FOLDER, required=True, help="Folder of the model that embedded.")
@click.option(
    "--vocabulary", "vocabulary_path", type=options.FILE, required=True, help="What `build-vocabulary` wrote."
)
@click.option(
    "--encoders", "encoders_root", type=options.FOLDER, required=True, help="Folder with one folder for each encoder."
)
@options.config
@options.output("folder", "Folder of the bundle.")
def command(
    manifest_folder: Path,
    embeddings_folder: Path,
    model_folder: Path,
    vocabulary_path: Path,
    encoders_root: Path,
    config_path: Path | None,
    output: Path,
) -> None:
    """Index images and sentences, measure the indices, and put beside them what a query needs."""
    import logging

    from pipeline import config
    from pipeline.index.build import QUERIES, build_index, evenly_spaced
    from pipeline.models import model_class
    from pipeline.storage.atomic import read_json
    from pipeline.storage.bundle import BundleWriter
    from pipeline.storage.embeddings import Embeddings, split_ids
    from pipeline.storage.fingerprint import fingerprint, require_same
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.parameters import ENCODER, MODEL, read_parameters

    settings = config.load(config_path).index
    manifest = Manifest(manifest_folder)
    embeddings = Embeddings(manifest, embeddings_folder)
    model = read_parameters(model_folder / "model.safetensors", MODEL)
    require_same("model", {str(embeddings_folder): embeddings.model, str(model_folder): model.fingerprint})
    vocabulary = read_json(vocabulary_path)["fingerprint"]
    require_same("vocabulary", {str(vocabulary_path): vocabulary, str(model_folder): model.details["vocabulary"]})
    names = model_class(embeddings.registered).from_parts(model.settings, model.tensors).encoders
    encoders = {name: read_parameters(encoders_root / name / "model.safetensors", ENCODER) for name in names}

    ids = split_ids(manifest, settings.splits)
    writer, cards = BundleWriter(output), {}
    for modality, other in (("images", "sentences"), ("sentences", "images")):
        vectors = embeddings.read(modality, ids[modality])
        queries = embeddings.read(other, ids[other][evenly_spaced(len(ids[other]), QUERIES)])
        built = build_index(vectors, queries, embeddings.metric, settings.exact_limit, settings.recall_floor)
        writer.add(f"{modality}.faiss", built.data)
        writer.add_table(f"{modality}.parquet", getattr(manifest, modality).take(ids[modality]))
        cards[modality] = built.card.to_dict()
    writer.add_parameters(model_folder)
    writer.add("vocabulary.json", vocabulary_path.read_bytes())
    for name in encoders:
        writer.add_parameters(encoders_root / name, f"encoders/{name}/")

    inputs = {**embeddings.inputs, "model": model.fingerprint, "vocabulary": vocabulary}
    inputs |= {f"encoders/{name}": encoder.fingerprint for name, encoder in encoders.items()}
    writer.commit(
        {
            "model": embeddings.row,
            "registered": embeddings.registered,
            "metric": embeddings.metric,
            "dim": embeddings.dim,
            **cards,
            "splits": list(settings.splits),
            "data_root": str(manifest.root),
            "encoders": {name: encoder.settings for name, encoder in encoders.items()},
            "inputs": inputs,
            "fingerprint": fingerprint("bundle", 1, settings.model_dump(), inputs),
        }
    )
    for modality, card in cards.items():
        logging.getLogger(__name__).info(
            "%s: %d %s in %s, index recall@10 %.3f, %.0f queries/s",
            embeddings.row, card["count"], modality, card["factory"], card["recall@10"], card["queries_per_second"],
        )  # fmt: skip
