"""`rank-sentences`: retrieval by a generator, which ranks sentences and images by perplexity."""

from collections.abc import Iterator
from itertools import product

from pipeline.config.registry import ranker
from pipeline.run import Inputs, Job, Run, Stage
from stages.inputs import generator_inputs, named, text_files


def rank_sentences(run: Run, job: Job, generator: str, split: str, protocol: str) -> None:
    """Measure retrieval by the perplexity of every caption of a split given every image."""
    import logging
    from dataclasses import replace

    import numpy as np

    from pipeline.evaluate.summary import headline
    from pipeline.generate.training import likelihood_scores
    from pipeline.metrics.ranks import rank_scores
    from pipeline.metrics.retrieval import TIES, Bootstrap, evaluate, select_sentences
    from pipeline.storage.records import write_evaluation
    from stages.generators import hold_out, read_described, read_generator

    settings = run.config.evaluate
    stored = read_generator(run, generator)
    people = read_described(run, stored.generator.encoders, ("train", split))
    train, pairs = people.pairs["train"], people.pairs[split]
    chosen = select_sentences(pairs.owners, protocol)
    owners = pairs.owners[chosen]
    asked = replace(pairs, sentences=pairs.sentences.take(chosen), owners=owners, names=pairs.names[chosen])
    held_out = hold_out(run, generator, asked, [people.texts[split][i] for i in chosen], people.vocabulary)

    prior = None
    if count := min(settings.prior_images, train.n_images):
        drawn = np.random.default_rng(run.config.seed).choice(train.n_images, count, replace=False)
        prior = stored.generator.log_probabilities(train.images(np.sort(drawn)), held_out)
    likelihoods = stored.generator.log_probabilities(pairs.images(np.arange(pairs.n_images)), held_out)
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
        logging.getLogger(__name__).info(line)


def _choices(config) -> Iterator[tuple[str, ...]]:
    from pipeline.config.section import DESCRIBED, PROTOCOLS

    return product(config.evaluate.generators, DESCRIBED, PROTOCOLS)


def _reads(config, layout, generator: str, split: str, protocol: str) -> Inputs:
    features = map(layout.features, config.generator(generator).encoders)
    inputs = {**named(layout.generator(generator), *features), **generator_inputs(config, layout, generator)}
    return {**inputs, **text_files(config, generator, "treebank")}


STAGE = Stage(
    rank_sentences,
    version=1,
    gpu=True,
    names=("generator", "split", "protocol"),
    choices=_choices,
    wanted=lambda config: product(config.evaluate.generators, config.evaluate.splits, config.evaluate.protocols),
    keys=lambda config, *names: {
        "seed": config.seed,
        **config.evaluate.model_dump(include={"bootstrap", "prior_images"}),
    },
    reads=_reads,
    writes=lambda layout, generator, *names: layout.evaluation(ranker(generator), *names),
)
