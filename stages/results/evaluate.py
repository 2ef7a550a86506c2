"""`evaluate`, `rank-sentences`, `summarise`: measure the retrieval of models and generators, and list the results."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, cast

from pipeline.config.registry import ranker
from pipeline.run import Inputs, Job, Layout, Names, StageRun, stage
from pipeline.run.reading.inputs import feature_shards, generator_inputs, text_files

if TYPE_CHECKING:
    from pipeline.compute.multivectors import Items
    from pipeline.config.names import Config
    from pipeline.generate.generator import RankingGenerator

log = logging.getLogger(__name__)


def _every(names: Iterable[str]) -> Iterator[Names]:
    """Yield (name, split, protocol) for each of the `names`, each split that can be evaluated, and each protocol."""
    from pipeline.config.section import DESCRIBED, PROTOCOLS

    return product(names, DESCRIBED, PROTOCOLS)


@stage(
    version=4,
    choices=lambda config: _every(config.every_model()),
    wanted=lambda config: [names for names in config.evaluations() if names[0] in config.models],
    keys=lambda config, *names: {"seed": config.seed, **config.evaluate.model_dump(include={"bootstrap", "folds"})},
    reads=lambda config, layout, model, *names: {"manifest": layout.manifest, "embeddings": layout.embeddings(model)},
    writes=lambda layout, *names: layout.evaluation(*names),
)
def evaluate(run: StageRun, job: Job, model: str, split: str, protocol: str) -> None:
    """Measure retrieval in both directions, by protocol all-sentences (Karpathy) or first-sentence (Gong).

    If no photo of train, dev and test has a caption, an evaluation has 0 images.
    """
    import numpy as np

    from pipeline.compute.multivectors import one_vector_each
    from pipeline.config.section import DESCRIBED
    from pipeline.metrics.ranks import Ranks, rank, similarity_ranks
    from pipeline.metrics.retrieval import (
        TIES,
        Bootstrap,
        chance,
        evaluate,
        measure,
        measure_folds,
        select_sentences,
        split_into_folds,
    )
    from pipeline.metrics.summary import headline, with_folds
    from pipeline.storage.records import write_evaluation

    if not run.manifest.bounds("sentences")[-1] or not {*DESCRIBED} & run.manifest.summary["splits"].keys():
        nothing = {"model": model, "split": split, "protocol": protocol, "n_images": 0, "n_sentences": 0}
        write_evaluation(job.path, nothing, {}, job.provenance)
        log.info("No photo of train, dev or test has a caption, so no model is evaluated.")
        return
    config = run.config.evaluate
    embeddings = run.embeddings(model)
    pairs = run.pairs(split)
    embeddings.require_unseen(split)
    bootstrap = Bootstrap(config.bootstrap, run.config.seed)
    chosen = select_sentences(pairs.owners, protocol)
    owners = pairs.owners[chosen]
    images = embeddings.read("images", pairs.image_id)
    sentences = embeddings.read("sentences", pairs.sentence_id[chosen])
    several_each = not embeddings.multi_vector and np.bincount(owners).min() > 1

    def rank_all(images: "Items", sentences: "Items", owners: np.ndarray) -> Ranks:
        ranks = rank(images, sentences, owners, embeddings.comparison)
        if not several_each:
            return ranks
        similarity = similarity_ranks(one_vector_each(sentences), owners, embeddings.metric)
        return replace(ranks, sentence_similarity=similarity)

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
        folds = split_into_folds(owners, config.folds)
        each = [rank_all(images[fold.images], sentences[fold.sentences], fold.owners) for fold in folds]
        value |= {"folds": len(folds), **measure_folds(folds, each, bootstrap)}
    if ranks.sentence_similarity is not None:
        value["sentence_similarity"] = measure(ranks.sentence_similarity, owners, bootstrap)
    value |= {"chance": chance(owners), "metric": embeddings.metric}
    write_evaluation(job.path, value, {**vars(ranks), "owners": owners}, job.provenance)
    for gallery in with_folds([value]):
        for line in headline(gallery):
            log.info(line)


def _reads(config: "Config", layout: Layout, generator: str, split: str, protocol: str) -> Inputs:
    return {
        "generator": layout.generator(generator),
        "features": feature_shards(config.generator(generator).encoders, layout),
        **generator_inputs(config, layout, generator),
        "texts": text_files(config, generator, "treebank"),
    }


@stage(
    version=1,
    gpu=True,
    threads=8,
    memory=8000,
    choices=lambda config: _every(config.evaluate.generators),
    wanted=lambda config: product(config.evaluate.generators, config.evaluate.splits, config.evaluate.protocols),
    keys=lambda config, *names: {
        "seed": config.seed,
        **config.evaluate.model_dump(include={"bootstrap", "prior_images"}),
    },
    reads=_reads,
    writes=lambda layout, generator, *names: layout.evaluation(ranker(generator), *names),
)
def rank_sentences(run: StageRun, job: Job, generator: str, split: str, protocol: str) -> None:
    """Measure the retrieval of a generator, which ranks captions by their perplexity given an image.

    The probability of each caption that PROTOCOL selects is computed for each image of SPLIT. If evaluate.prior_images
    is not 0, this probability is divided by the mean probability of the caption over this number of images of train.
    """
    import numpy as np

    from pipeline.generate.training import likelihood_scores
    from pipeline.metrics.ranks import rank_scores
    from pipeline.metrics.retrieval import TIES, Bootstrap, evaluate, select_sentences
    from pipeline.metrics.summary import headline
    from pipeline.run.reading.generators import hold_out, read_described, read_generator
    from pipeline.storage.records import write_evaluation

    settings = run.config.evaluate
    # When the configuration was read, it was checked that the generators of evaluate.generators can rank sentences.
    language_model = cast("RankingGenerator", read_generator(run, generator).generator)
    people = read_described(run, language_model.encoders, ("train", split))
    train = people.pairs["train"]
    pairs = people.pairs[split]
    chosen = select_sentences(pairs.owners, protocol)
    owners = pairs.owners[chosen]
    asked = replace(pairs, sentences=pairs.sentences.take(chosen), owners=owners, names=pairs.names[chosen])
    held_out = hold_out(run, generator, asked, [people.texts[split][i] for i in chosen], people.vocabulary)

    prior = None
    if count := min(settings.prior_images, train.n_images):
        drawn = np.random.default_rng(run.config.seed).choice(train.n_images, count, replace=False)
        prior = language_model.log_probabilities(train.images(np.sort(drawn)), held_out)
    likelihoods = language_model.log_probabilities(pairs.images(np.arange(pairs.n_images)), held_out)
    ranks = rank_scores(likelihood_scores(likelihoods, asked.sentences.lengths + 1, prior), owners)
    bootstrap = Bootstrap(settings.bootstrap, run.config.seed)
    value = {
        "model": ranker(generator),
        "split": split,
        "protocol": protocol,
        "ties": TIES,
        "bootstrap": vars(bootstrap),
        "prior_images": count,
        "n_images": pairs.n_images,
        "n_sentences": len(chosen),
        **evaluate(ranks, owners, bootstrap),
        "metric": "perplexity",
    }
    write_evaluation(job.path, value, {**vars(ranks), "owners": owners}, job.provenance)
    for line in headline(value):
        log.info(line)


@stage(
    version=2,
    shown=("summary", "Evaluation"),
    wanted=lambda config: [()],
    reads=lambda config, layout: {"evaluations": [layout.evaluation(*names) for names in config.evaluations()]},
    writes=lambda layout: (layout.summary, layout.summary_table),
)
def summarise(run: StageRun, job: Job) -> None:
    """Collect all evaluations of the run in a JSON list and a table."""
    from pipeline.metrics.summary import markdown
    from pipeline.storage.commit import read_record
    from pipeline.storage.records import write_summary

    values = [read_record(run.layout.evaluation(*names).path) for names in run.config.evaluations()]
    values = [value for value in values if value["n_images"]]
    write_summary(job.path, values, markdown(values), job.provenance)
