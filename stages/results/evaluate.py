"""`evaluate`: ranks, recall and intervals of a model on a split by a protocol."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from pipeline.run import Job, Run, Stage
from stages.inputs import named


def evaluate(run: Run, job: Job, model: str, split: str, protocol: str) -> None:
    """Measure retrieval in both directions, by protocol all-sentences (Karpathy) or first-sentence (Gong).

    Without captions, an evaluation has 0 images.
    """
    import logging
    from dataclasses import replace

    import numpy as np

    from pipeline.evaluate.summary import headline, with_folds
    from pipeline.metrics.folds import chance, divide, measure_folds
    from pipeline.metrics.ranks import Ranks, rank, similarity_ranks
    from pipeline.metrics.retrieval import TIES, Bootstrap, evaluate, measure, select_sentences
    from pipeline.storage.records import write_evaluation

    if not run.manifest.bounds("sentences")[-1]:
        nothing = {"model": model, "split": split, "protocol": protocol, "n_images": 0, "n_sentences": 0}
        write_evaluation(job.path, nothing, {}, job.provenance)
        logging.getLogger(__name__).info("no photo has a caption, so there is nothing to evaluate")
        return
    config, embeddings, pairs = run.config.evaluate, run.embeddings(model), run.pairs(split)
    embeddings.require_unseen(split)
    bootstrap = Bootstrap(config.bootstrap, run.config.seed)
    chosen = select_sentences(pairs.owners, protocol)
    owners = pairs.owners[chosen]
    images = embeddings.read("images", pairs.image_id)
    sentences = embeddings.read("sentences", pairs.sentence_id[chosen])
    several_each = not embeddings.multi_vector and np.bincount(owners).min() > 1

    def rank_all(images: Any, sentences: Any, owners: np.ndarray) -> Ranks:
        ranks = rank(images, sentences, owners, embeddings.comparison)
        if not several_each:
            return ranks
        return replace(ranks, sentence_similarity=similarity_ranks(sentences, owners, embeddings.metric))

    ranks = rank_all(images, sentences, owners)
    value = {
        "model": embeddings.name,
        "split": split,
        "protocol": protocol,
        "ties": TIES,
        "bootstrap": vars(bootstrap),
        "n_images": len(pairs.image_id),
        "n_sentences": len(chosen),
        **evaluate(ranks, owners, bootstrap),
    }
    if config.folds > 1:
        folds = divide(owners, config.folds)
        each = [rank_all(images[fold.images], sentences[fold.sentences], fold.owners) for fold in folds]
        value |= {"folds": len(folds), **measure_folds(folds, each, bootstrap)}
    if several_each:
        value["sentence_similarity"] = measure(ranks.sentence_similarity, owners, bootstrap)
    value |= {"chance": chance(owners), "metric": embeddings.metric}
    write_evaluation(job.path, value, {**vars(ranks), "owners": owners}, job.provenance)
    for gallery in with_folds([value]):
        for line in headline(gallery):
            logging.getLogger(__name__).info(line)


def _choices(config) -> Iterator[tuple[str, ...]]:
    from pipeline.config.section import DESCRIBED, PROTOCOLS

    return product(config.every_model(), DESCRIBED, PROTOCOLS)


STAGE = Stage(
    evaluate,
    version=4,
    names=("model", "split", "protocol"),
    choices=_choices,
    wanted=lambda config: [names for names in config.evaluations() if names[0] in config.models],
    keys=lambda config, *names: {"seed": config.seed, **config.evaluate.model_dump(include={"bootstrap", "folds"})},
    reads=lambda config, layout, model, *names: named(layout.manifest, layout.embeddings(model)),
    writes=lambda layout, *names: layout.evaluation(*names),
)
