"""`evaluate`: ranks, recall and intervals of one row on one split by one protocol."""

from pathlib import Path

import click

from stages import options


@click.command("evaluate")
@options.manifest
@options.embeddings
@click.option("--split", required=True, help="Split of the manifest to evaluate on.")
@click.option("--protocol", required=True, help="all-sentences (Karpathy) or first-sentence (Gong).")
@click.option(
    "--through-index", "bundle_folder", type=options.FOLDER,
    help="Bundle of the same row: tell what its indices cost, among all that they hold.",
)  # fmt: skip
@options.scheduler
@options.config
@options.output("file", "The evaluation, a JSON file.")
def command(
    manifest_folder: Path,
    embeddings_folder: Path,
    split: str,
    protocol: str,
    bundle_folder: Path | None,
    scheduler: str,
    config_path: Path | None,
    output: Path,
) -> None:
    """Measure retrieval in both directions."""
    import logging

    import numpy as np

    from pipeline import config
    from pipeline.device import find_gpu
    from pipeline.evaluate.summary import headline, with_folds
    from pipeline.metrics.folds import divide, measure_folds
    from pipeline.metrics.protocols import select_sentences
    from pipeline.metrics.ranks import rank
    from pipeline.metrics.retrieval import TIES, Bootstrap, evaluate, measure
    from pipeline.metrics.similarity import similarity_ranks
    from pipeline.storage.atomic import publish_record
    from pipeline.storage.embeddings import Embeddings, split_pairs
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.places import require_output

    settings = config.load(config_path)
    bootstrap = Bootstrap(settings.evaluate.bootstrap, settings.seed)
    embeddings = Embeddings(Manifest(manifest_folder), embeddings_folder)
    require_output(output, {"model": embeddings.row, "split": split, "protocol": protocol})
    embeddings.require_unseen(split)
    pairs = split_pairs(embeddings.manifest, split)
    chosen = select_sentences(pairs.owners, protocol)
    images = embeddings.read("images", pairs.image_id)
    sentences = embeddings.read("sentences", pairs.sentence_id[chosen])

    owners = pairs.owners[chosen]
    folds = divide(owners, settings.evaluate.folds) if settings.evaluate.folds > 1 else []

    similarity: dict = {}
    comparison = embeddings.comparison
    measured = evaluate(rank(images, sentences, owners, comparison, scheduler), owners, bootstrap)
    ranked = [
        rank(images[fold.images], sentences[fold.sentences], fold.owners, comparison, scheduler) for fold in folds
    ]
    if not embeddings.multi_vector and np.bincount(owners).min() > 1:
        ranks = similarity_ranks(sentences, owners, embeddings.metric)
        similarity = {"sentence_similarity": measure(ranks, owners, bootstrap)}

    through: dict = {}
    if bundle_folder:
        through = _measure_cost(bundle_folder, embeddings, pairs, chosen, images, sentences, find_gpu(settings.device))

    about = {"split": split, "protocol": protocol, "ties": TIES, "bootstrap": vars(bootstrap)}
    about |= {"folds": len(folds)} if folds else {}
    value = {
        "model": embeddings.row,
        **about,
        "n_images": len(pairs.image_id),
        "n_sentences": len(chosen),
        **vars(measured),
        **(measure_folds(folds, ranked, bootstrap) if folds else {}),
        **similarity,
        **through,
        "metric": embeddings.metric,
        "inputs": embeddings.inputs,
        "fingerprint": fingerprint("evaluation", 1, about, embeddings.inputs),
    }
    publish_record(output, value)
    for gallery in with_folds([value]):
        for line in headline(gallery):
            logging.getLogger(__name__).info(line)


def _measure_cost(bundle_folder: Path, embeddings, pairs, chosen, images, sentences, gpu) -> dict:
    """Both directions through the bundle's index files, and the bundle that they are of."""
    from pipeline.evaluate.through_index import cost_through
    from pipeline.index.gallery import open_gallery
    from pipeline.storage.revision import open_parts

    bundle, parts = open_parts(bundle_folder, embeddings)
    owners = pairs.image_id[pairs.owners[chosen]]
    asked = {
        "images": ("sentence_to_image", sentences, owners),
        "sentences": ("image_to_sentence", images, pairs.image_id),
    }
    costs = {}
    for part in parts:
        direction, queries, of = asked[part.modality]
        gallery, vectors = open_gallery(bundle, part.modality), embeddings.rows_of(part.modality, part.ids[part.alive])
        cost = cost_through(gallery, vectors, part.numbers, part.owners, queries, of, gpu)
        costs[direction] = {"factory": part.card["factory"], **cost.to_dict()}
    return {"through_index": {**costs, "bundle": bundle.card["fingerprint"]}}
