"""`fit-csls`: a model whose scores are corrected for hubs, by the weight that is best on dev."""

from typing import Any

from pipeline.run import Inputs, Job, Run, Stage

BANK_OF_SETS = 2000
"""Images, and sentences, in the bank of a model of fragments: their sets take more room than vectors."""


def fit_csls(run: Run, job: Job, model: str) -> None:
    """Make MODEL, which has `csls`, of the same model without it and its embeddings."""
    import logging

    from pipeline.config.registry.stored import restore
    from pipeline.models.linear.csls import Scaled

    settings, layout = run.config, run.layout
    plain, refits, base = settings.scaled(model), settings.refitted(model), run.chosen(model)
    (embeddings, parameters), folder = run.embedded_model(plain), layout.model(plain).path
    learned = run.pairs(*(("train", "dev") if refits else ("train",)))
    bank = _draw_bank(embeddings, learned, settings, run.sums)
    if base:
        log = base.details["training_log"]
    else:
        embeddings.require_unseen("dev")
        dev = run.pairs("dev").first(settings.fit.dev_images)
        trials = _try_all(embeddings, dev, bank, settings, run.sums)
        log = {
            "criterion": "sum of recall@1, @5 and @10 of both directions on dev", "chosen": trials[0], "trials": trials
        }  # fmt: skip
    registered, (weight, k) = parameters.details["registered"], (log["chosen"][key] for key in ("weight", "neighbours"))
    scaled = Scaled(restore(registered, parameters.settings, parameters.tensors, folder), weight, k, bank)

    details = {**parameters.details, "model": model, "refits": refits, "training_log": log}
    run.write_model(job, scaled, details)
    logging.getLogger(__name__).info("%s: %s", model, log["chosen"])


def _read_items(embeddings: Any, modality: str, ids: Any, scheduler: str) -> Any:
    """The `images` or `sentences` with the ascending `ids` (k,), which lie all over the shards: read in parts, where
    the scheduler says, but for the sets of multi-vector models."""
    import numpy as np

    from pipeline.mapreduce import map_reduce
    from pipeline.run.run import MOST_CHUNKS

    if embeddings.multi_vector:
        return embeddings.read(modality, ids)
    parts = embeddings.parts_of(modality, ids, -(-len(ids) // MOST_CHUNKS))
    return map_reduce(_read_part, parts, lambda *vectors: np.concatenate(vectors), scheduler)


def _read_part(part: Any) -> Any:
    import numpy as np

    return np.concatenate(list(part.blocks()))


def _draw_bank(embeddings: Any, pairs: Any, settings: Any, scheduler: str) -> Any:
    """Some images and some sentences of `pairs`."""
    import numpy as np

    from pipeline.models.linear.csls import Bank

    rng, sides = np.random.default_rng(settings.seed), []
    most = BANK_OF_SETS if embeddings.multi_vector else settings.csls.bank
    for modality, ids in (("images", pairs.image_id), ("sentences", pairs.sentence_id)):
        drawn = rng.choice(len(ids), min(most, len(ids)), replace=False)
        sides.append(_read_items(embeddings, modality, ids[np.sort(drawn)], scheduler))
    return Bank(*sides, embeddings.comparison)


def _try_all(embeddings: Any, pairs: Any, bank: Any, settings: Any, scheduler: str) -> list[dict[str, float]]:
    """Every weight and number of neighbours on `pairs`, the best first."""
    from pipeline.metrics.ranks import score
    from pipeline.models.linear.csls import choose_scaling

    ks = settings.csls.neighbours
    images = _read_items(embeddings, "images", pairs.image_id, scheduler)
    sentences = _read_items(embeddings, "sentences", pairs.sentence_id, scheduler)
    near = bank.near_images(images, ks), bank.near_sentences(sentences, ks)
    scores = score(images, sentences, embeddings.comparison)
    return choose_scaling(scores, *near, pairs.owners, ks, settings.csls.weight)


def _reads(config, layout, model: str) -> Inputs:
    plain, base = config.scaled(model), config.refitted(model)
    return {
        "manifest": layout.manifest,
        "model": layout.model(plain),
        "embeddings": layout.embeddings(plain),
        **({"chosen": layout.model(base)} if base else {}),
    }


STAGE = Stage(
    fit_csls,
    version=4,
    names=("model",),
    choices=lambda config: [(name,) for name in config.every_model() if config.scaled(name)],
    keys=lambda config, model: {
        "csls": config.csls.model_dump(),
        "seed": config.seed,
        "dev_images": config.fit.dev_images,
    },
    reads=_reads,
    writes=lambda layout, model: layout.model(model),
)
