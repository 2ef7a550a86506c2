"""`evaluate`: ranks, recall and intervals of a model on a split by a protocol."""

from collections.abc import Iterator
from itertools import product

import click

from pipeline.run import Job, Run, Stage


def evaluate(run: Run, job: Job, model: str, split: str, protocol: str, through_index: bool = False) -> None:
    """Measure retrieval in both directions, by the protocol all-sentences (Karpathy) or first-sentence (Gong).

    Photographs without any sentence have an evaluation of 0 images.
    """
    import logging
    from dataclasses import replace

    import numpy as np

    from pipeline.evaluate.summary import headline, with_folds
    from pipeline.metrics.chance import chance
    from pipeline.metrics.folds import divide, measure_folds
    from pipeline.metrics.ranks import rank
    from pipeline.metrics.retrieval import TIES, Bootstrap, evaluate, measure, select_sentences
    from pipeline.metrics.similarity import similarity_ranks
    from pipeline.storage.records import write_evaluation

    if not run.manifest.bounds("sentences")[-1]:
        nothing = {"model": model, "split": split, "protocol": protocol, "n_images": 0, "n_sentences": 0}
        write_evaluation(job.path, nothing, {}, job.provenance)
        logging.getLogger(__name__).info("no photograph has a sentence, so there is nothing to evaluate")
        return

    bootstrap = Bootstrap(run.config.evaluate.bootstrap, run.config.seed)
    embeddings, pairs = run.embeddings(model), run.pairs(split)
    embeddings.require_unseen(split)
    chosen = select_sentences(pairs.owners, protocol)
    images = embeddings.read("images", pairs.image_id)
    sentences = embeddings.read("sentences", pairs.sentence_id[chosen])

    owners = pairs.owners[chosen]
    folds = divide(owners, run.config.evaluate.folds) if run.config.evaluate.folds > 1 else []

    comparison, similarity, through = embeddings.comparison, {}, {}
    alike = not embeddings.multi_vector and np.bincount(owners).min() > 1

    def ranked(images, sentences, owners):
        found = rank(images, sentences, owners, comparison, run.sums)
        own = similarity_ranks(sentences, owners, embeddings.metric) if alike else None
        return replace(found, sentence_similarity=own)

    ranks = ranked(images, sentences, owners)
    measured = evaluate(ranks, owners, bootstrap)
    each = [ranked(images[one.images], sentences[one.sentences], one.owners) for one in folds]
    if alike:
        similarity = {"sentence_similarity": measure(ranks.sentence_similarity, owners, bootstrap)}

    if through_index:
        through = _measure_cost(run.bundle(model), embeddings, pairs, chosen, images, sentences, run.gpu)

    about = {"split": split, "protocol": protocol, "ties": TIES, "bootstrap": vars(bootstrap)}
    about |= {"folds": len(folds)} if folds else {}
    value = {
        "model": embeddings.name,
        **about,
        "n_images": len(pairs.image_id),
        "n_sentences": len(chosen),
        **vars(measured),
        **(measure_folds(folds, each, bootstrap) if folds else {}),
        **similarity,
        "chance": chance(owners),
        **through,
        "metric": embeddings.metric,
    }
    write_evaluation(job.path, value, {**vars(ranks), "owners": owners}, job.provenance)
    for gallery in with_folds([value]):
        for line in headline(gallery):
            logging.getLogger(__name__).info(line)


def _measure_cost(bundle, embeddings, pairs, chosen, images, sentences, gpu) -> dict:
    """What retrieval loses in both directions by the bundle's indices."""
    from pipeline.evaluate.through_index import cost_through
    from pipeline.index.opening import open_gallery
    from pipeline.storage.revision import modalities, require_numbering

    require_numbering(bundle, parts := modalities(bundle), embeddings)
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
        costs[direction] = {"factory": part.card["factory"], **vars(cost)}
    return {"through_index": {**costs, "bundle": bundle.card["fingerprint"]}}


def _choices(config) -> Iterator[tuple[str, ...]]:
    from pipeline.config.schema.section import DESCRIBED, PROTOCOLS

    return product(config.every_model(), DESCRIBED, PROTOCOLS)


STAGE = Stage(
    evaluate,
    version=4,
    names=("model", "split", "protocol"),
    choices=_choices,
    wanted=lambda config: [names for names in config.evaluations() if names[0] in config.models],
    keys=lambda config, *names: {"seed": config.seed, **config.evaluate.model_dump(include={"bootstrap", "folds"})},
    reads=lambda config, layout, model, *names: {
        "manifest": layout.manifest,
        f"embeddings/{model}": layout.embeddings(model),
    },
    writes=lambda layout, *names: layout.evaluation(*names),
    options=(
        click.Option(
            ["--through-index"], is_flag=True, help="Measure what the indices lose, among all that they hold."
        ),
    ),
)
