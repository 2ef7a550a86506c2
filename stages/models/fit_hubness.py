"""`fit-hubness`: a model whose scores are corrected for hubs, by what is best on dev."""

import logging
from pathlib import Path
from typing import Any

from pipeline.errors import InputError
from pipeline.run import Inputs, Job, Outside, Run, stage
from pipeline.run.reading.inputs import vocabulary_of

BANK_OF_SETS = 2000
"""Images, and sentences, in the bank of a model of fragments: their sets take more room than vectors."""


def _reads(config, layout, model: str) -> Inputs:
    plain, base = config.uncorrected(model), config.refitted(model)
    read = [layout.manifest, layout.model(plain), layout.embeddings(plain), *([layout.model(base)] if base else [])]
    if (queries := config.hubness.queries) is None:
        return read
    reader = config.model(plain)
    encoders = reader.text_encoders if reader.spec.sentences == "vectors" else ()
    vocabulary = vocabulary_of(config, layout, plain)
    read += [*map(layout.text_encoder, encoders), *([vocabulary] if vocabulary else [])]
    return [*read, Outside("queries", Path(queries))]


@stage(
    version=6,
    choices=lambda config: [(name,) for name in config.every_model() if config.uncorrected(name)],
    keys=lambda config, model: {
        "method": config.hubness_method(model),
        "hubness": config.hubness.model_dump(exclude={"queries"}),
        "seed": config.seed,
        "dev_images": config.fit.dev_images,
    },
    reads=_reads,
    writes=lambda layout, model: layout.model(model),
)
def fit_hubness(run: Run, job: Job, model: str) -> None:
    """Make MODEL, a variant with `hubness`, from the same model without it."""
    from pipeline.models.linear.corrected import HubCorrected, HubnessCorrection
    from pipeline.models.linear.hubness import choose_correction

    config, base = run.config, run.chosen(model)
    plain, refits = config.uncorrected(model), config.refitted(model)
    embeddings = run.embeddings(plain)
    mapping, stored = run.restored(plain)
    bank = _draw_bank(run, embeddings, mapping, ("train", "dev") if refits else ("train",))
    if base:
        log = base.details["training_log"]
        terms = base.settings["hubness"]
    else:
        pairs = run.pairs("dev").first(config.fit.dev_images)
        images = embeddings.read("images", pairs.image_id)
        sentences = embeddings.read("sentences", pairs.sentence_id)
        method = config.hubness_method(model)
        terms, log = choose_correction(method, bank, images, sentences, pairs.owners, config.hubness)
        log["criterion"] = "sum of recall@1, @5 and @10 of a direction on dev; of both for csls"
    details = {**stored.details, "model": model, "refits": refits, "training_log": log}
    run.write_model(job, HubCorrected(mapping, HubnessCorrection(bank, terms)), details)
    logging.getLogger(__name__).info("%s: %s", model, log["chosen"])


def _draw_bank(run: Run, embeddings: Any, model: Any, splits: tuple[str, ...]) -> Any:
    """Some images and some sentences of the splits, and the queries of `hubness.queries`."""
    import numpy as np

    from pipeline.models.linear.hubness import Bank

    pairs, rng = run.pairs(*splits), np.random.default_rng(run.config.seed)
    most = BANK_OF_SETS if embeddings.multi_vector else run.config.hubness.bank
    sides = []
    for modality, ids in (("images", pairs.image_id), ("sentences", pairs.sentence_id)):
        drawn = np.sort(rng.choice(len(ids), min(most, len(ids)), replace=False))
        sides.append(embeddings.read(modality, ids[drawn]))
    return Bank(*sides, embeddings.comparison, queries=_embed_queries(run, model, most, rng))


def _embed_queries(run: Run, model: Any, most: int, rng: Any) -> Any:
    """At most `most` of the queries of `hubness.queries` in the joint space; None where there are none."""
    from pipeline.foreign.files import read_lines
    from pipeline.run.reading.texts import open_text_encoder, read_token_vocabulary
    from pipeline.text.sequences import encode_tokens

    if (file := run.config.hubness.queries) is None:
        return None
    if not (queries := [line.strip() for line in read_lines(Path(file)) if line.strip()]):
        raise InputError(f"{file} has no query; write one per line, or leave out hubness.queries")
    queries = [queries[row] for row in sorted(rng.choice(len(queries), min(most, len(queries)), replace=False))]
    if model.sentence_view == "tokens":
        return model.embed_sentences(encode_tokens(queries, read_token_vocabulary(run)[0]))
    return model.embed_sentences({name: open_text_encoder(run, name).encode(queries) for name in model.text_encoders})
