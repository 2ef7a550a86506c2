"""`fit-hubness`: a model whose scores are corrected for hubs, by what is best on dev."""

from typing import Any

from pipeline.run import Inputs, Job, Run, Stage
from stages.inputs import named

BANK_OF_SETS = 2000
"""Images, and sentences, in the bank of a model of fragments: their sets take more room than vectors."""


def fit_hubness(run: Run, job: Job, model: str) -> None:
    """Make MODEL, a variant with `csls: true`, from the same model without `csls` and from that one's embeddings."""
    import logging

    from pipeline.config.stored import restore
    from pipeline.models.linear.hubness import HubCorrected

    config, base = run.config, run.chosen(model)
    plain, refits = config.uncorrected(model), config.refitted(model)
    embeddings, stored = run.embedded_model(plain)
    bank = _draw_bank(run, embeddings, ("train", "dev") if refits else ("train",))
    log = base.details["training_log"] if base else _choose(run, embeddings, bank)
    weight, neighbours = log["chosen"]["weight"], log["chosen"]["neighbours"]
    mapping = restore(stored.details["registered"], stored.settings, stored.tensors, run.layout.model(plain).path)
    details = {**stored.details, "model": model, "refits": refits, "training_log": log}
    run.write_model(job, HubCorrected(mapping, weight, neighbours, bank), details)
    logging.getLogger(__name__).info("%s: %s", model, log["chosen"])


def _draw_bank(run: Run, embeddings: Any, splits: tuple[str, ...]) -> Any:
    """Some images and some sentences of the splits."""
    import numpy as np

    from pipeline.models.linear.hubness import Bank

    pairs, rng = run.pairs(*splits), np.random.default_rng(run.config.seed)
    most = BANK_OF_SETS if embeddings.multi_vector else run.config.csls.bank
    sides = []
    for modality, ids in (("images", pairs.image_id), ("sentences", pairs.sentence_id)):
        drawn = np.sort(rng.choice(len(ids), min(most, len(ids)), replace=False))
        sides.append(_read_items(run, embeddings, modality, ids[drawn]))
    return Bank(*sides, embeddings.comparison)


def _choose(run: Run, embeddings: Any, bank: Any) -> dict[str, Any]:
    """The weight and the number of neighbours that are best on dev, and all others."""
    from pipeline.metrics.ranks import score
    from pipeline.models.linear.hubness import choose_correction

    embeddings.require_unseen("dev")
    settings, pairs = run.config.csls, run.pairs("dev").first(run.config.fit.dev_images)
    images = _read_items(run, embeddings, "images", pairs.image_id)
    sentences = _read_items(run, embeddings, "sentences", pairs.sentence_id)
    near_images = bank.near_images(images, settings.neighbours)
    near_sentences = bank.near_sentences(sentences, settings.neighbours)
    scores = score(images, sentences, embeddings.comparison)
    trials = choose_correction(
        scores, near_images, near_sentences, pairs.owners, settings.neighbours, settings.weight
    )  # fmt: skip
    criterion = "sum of recall@1, @5 and @10 of both directions on dev"
    return {"criterion": criterion, "chosen": trials[0], "trials": trials}


def _read_items(run: Run, embeddings: Any, modality: str, ids: Any) -> Any:
    """The `images` or `sentences` with the ascending `ids` (k,), which lie all over the shards: read in parts, where
    the run sums, but for the sets of multi-vector models."""
    import numpy as np

    from pipeline.mapreduce import map_reduce
    from pipeline.run.run import MOST_CHUNKS

    if embeddings.multi_vector:
        return embeddings.read(modality, ids)
    parts = embeddings.parts_of(modality, ids, -(-len(ids) // MOST_CHUNKS))
    return map_reduce(_read_part, parts, lambda *vectors: np.concatenate(vectors), run.sums)


def _read_part(part: Any) -> Any:
    import numpy as np

    return np.concatenate(list(part.blocks()))


def _reads(config, layout, model: str) -> Inputs:
    plain, base = config.uncorrected(model), config.refitted(model)
    return named(
        layout.manifest, layout.model(plain), layout.embeddings(plain), *([layout.model(base)] if base else [])
    )


STAGE = Stage(
    fit_hubness,
    version=4,
    names=("model",),
    choices=lambda config: [(name,) for name in config.every_model() if config.uncorrected(name)],
    keys=lambda config, model: {
        "csls": config.csls.model_dump(),
        "seed": config.seed,
        "dev_images": config.fit.dev_images,
    },
    reads=_reads,
    writes=lambda layout, model: layout.model(model),
)
