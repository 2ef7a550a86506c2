"""`rank-sentences`: retrieval by a generator, which ranks sentences and images by perplexity."""

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

from pipeline.config.registry.generators import ranker
from pipeline.run import Inputs, Job, Outside, Run, Stage
from stages.generators import space_of

if TYPE_CHECKING:
    import numpy as np


def rank_sentences(run: Run, job: Job, generator: str, split: str, protocol: str) -> None:
    """Measure retrieval by the perplexity of every sentence of a split given every image."""
    import logging
    from dataclasses import replace

    import numpy as np

    from pipeline.evaluate.summary import headline
    from pipeline.generate.training import likelihood_scores
    from pipeline.metrics.ranks import rank_scores
    from pipeline.metrics.retrieval import TIES, Bootstrap, evaluate, select_sentences
    from pipeline.storage.records import write_evaluation
    from stages.generators import hold_out, read_generator
    from stages.inputs import read_described

    config, stored = run.config, read_generator(run, generator)
    found = read_described(run, stored.generator.encoders, ("train", split))
    pairs, bootstrap = found.pairs[split], Bootstrap(config.evaluate.bootstrap, config.seed)
    chosen = select_sentences(pairs.owners, protocol)
    own = replace(pairs, sentences=pairs.sentences.take(chosen), owners=pairs.owners[chosen], names=pairs.names[chosen])
    given = hold_out(run, generator, own, [found.texts[split][i] for i in chosen], found.vocabulary)
    owners, train = own.owners, found.pairs["train"]

    def log_probabilities(features: Any) -> "np.ndarray":
        return stored.generator.log_probabilities(features, given)

    prior = None
    if count := min(config.evaluate.prior_images, train.n_images):
        drawn = np.random.default_rng(config.seed).choice(train.n_images, count, replace=False)
        prior = log_probabilities(train.images(np.sort(drawn)))
    made = log_probabilities(pairs.images(np.arange(pairs.n_images)))
    ranks = rank_scores(likelihood_scores(made, own.sentences.lengths + 1, prior), owners)
    value = {
        "model": ranker(generator),
        "split": split,
        "protocol": protocol,
        "ties": TIES,
        "bootstrap": vars(bootstrap),
        "prior_images": count,
        "n_images": pairs.n_images,
        "n_sentences": len(chosen),
        **vars(evaluate(ranks, owners, bootstrap)),
        "metric": "perplexity",
    }
    write_evaluation(job.path, value, {**vars(ranks), "owners": owners}, job.provenance)
    for line in headline(value):
        logging.getLogger(__name__).info(line)


def _choices(config) -> Iterator[tuple[str, ...]]:
    from pipeline.config.schema.section import DESCRIBED, PROTOCOLS

    return product(config.evaluate.generators, DESCRIBED, PROTOCOLS)


def _reads(config, layout, generator: str, split: str, protocol: str) -> Inputs:
    found: dict = {
        "manifest": layout.manifest,
        "generator": layout.generator(generator),
        "vocabulary": layout.token_vocabulary,
        "tokens": layout.sentences("tokens"),
        **{f"features/{name}": layout.features(name) for name in config.generator(generator).encoders},
    }
    found |= {"space": space} if (space := space_of(config, layout, generator)) else {}
    tagged = config.generator(generator).spec.treebank
    return found | ({"treebank": Outside(config.language_text.treebank)} if tagged else {})


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
)  # fmt: skip
