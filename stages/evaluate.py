"""`evaluate`: ranks, recall and intervals of one row on one split by one protocol."""

from pathlib import Path

import click

from stages import options


@click.command("evaluate")
@options.manifest
@options.embeddings
@click.option("--split", required=True, help="Split of the manifest to evaluate on.")
@click.option("--protocol", required=True, help="all-sentences (Karpathy) or first-sentence (Gong).")
@options.config
@options.output("file", "The evaluation, a JSON file.")
def command(
    manifest_folder: Path, embeddings_folder: Path, split: str, protocol: str, config_path: Path | None, output: Path
) -> None:
    """Measure retrieval in both directions."""
    import logging

    from pipeline import config
    from pipeline.evaluate.protocols import select_sentences
    from pipeline.evaluate.retrieval import TIES, Bootstrap, evaluate
    from pipeline.evaluate.summary import headline
    from pipeline.storage.atomic import publish_json
    from pipeline.storage.embeddings import Embeddings, split_pairs
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.manifest import Manifest

    settings = config.load(config_path)
    bootstrap = Bootstrap(settings.evaluate.bootstrap, settings.seed)
    embeddings = Embeddings(Manifest(manifest_folder), embeddings_folder)
    pairs = split_pairs(embeddings.manifest, split)
    chosen = select_sentences(pairs.owners, protocol)
    images = embeddings.read("images", pairs.image_id)
    sentences = embeddings.read("sentences", pairs.sentence_id[chosen])

    measured = evaluate(images, sentences, pairs.owners[chosen], embeddings.metric, bootstrap)

    about = {"split": split, "protocol": protocol, "ties": TIES, "bootstrap": vars(bootstrap)}
    value = {
        "model": embeddings.row,
        **about,
        "n_images": len(images),
        "n_sentences": len(sentences),
        **vars(measured),
        "metric": embeddings.metric,
        "inputs": embeddings.inputs,
        "fingerprint": fingerprint("evaluation", 1, about, embeddings.inputs),
    }
    publish_json(output, value)
    for line in headline(value):
        logging.getLogger(__name__).info(line)
