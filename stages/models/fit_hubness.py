"""`fit-hubness`: makes a model whose scores are corrected for hubs. The correction is chosen on dev.

A hub is an item that is near many queries. pipeline/models/linear/hubness.py describes the corrections.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.run import Inputs, Job, Layout, Outside, StageRun, stage
from pipeline.run.reading.inputs import vocabulary_of

if TYPE_CHECKING:
    import numpy as np

    from pipeline.compute.multivectors import Items
    from pipeline.config.names import Config
    from pipeline.models.joint_model import JointModel
    from pipeline.models.linear.hubness import Bank
    from pipeline.storage.embeddings import Embeddings

MAX_MULTI_VECTOR_BANK = 2000
"""Maximum number of images, of captions and of queries in the bank of a multi-vector model. The items of such a model
need more memory than single vectors."""


def _plain(config: "Config", model: str) -> str:
    """Return the name of the uncorrected model to which the corrected model `model` belongs, such as `ncca` for
    `ncca-csls`."""
    plain = config.uncorrected(model)
    assert plain is not None
    return plain


def _reads(config: "Config", layout: Layout, model: str) -> Inputs:
    plain = _plain(config, model)
    base = config.refitted(model)
    queries = config.hubness.queries
    reader = config.model(plain)
    encoders = reader.text_encoders if queries is not None and reader.spec.sentences == "vectors" else ()
    return {
        "manifest": layout.manifest,
        "plain": layout.model(plain),
        "embeddings": layout.embeddings(plain),
        "base": layout.model(base) if base else None,
        "text_encoders": {name: layout.text_encoder(name) for name in encoders},
        "vocabulary": vocabulary_of(config, layout, plain) if queries is not None else None,
        "queries": Outside("queries", Path(queries)) if queries is not None else None,
    }


@stage(
    version=6,
    memory=4000,
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
def fit_hubness(run: StageRun, job: Job, model: str) -> None:
    """Add a hubness correction to a fitted model, and store the corrected model as MODEL.

    MODEL is a variant of the configuration with the key `hubness`. The fitted model is the same variant without this
    key. The parameters of the correction are chosen on dev. If MODEL is a refit, the parameters are copied from the
    model that is refitted.
    """
    from pipeline.models.linear.corrected import HubCorrected, HubnessCorrection
    from pipeline.models.linear.hubness import choose_correction

    config = run.config
    base = run.chosen(model)
    plain = _plain(config, model)
    refits = config.refitted(model)
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
    logging.getLogger(__name__).info("%s has a correction with these parameters: %s", model, log["chosen"])


def _draw_bank(run: StageRun, embeddings: "Embeddings", model: "JointModel", splits: tuple[str, ...]) -> "Bank":
    """Return the bank of a correction: embedded images and captions that are drawn at random from the splits, and the
    queries of the file `hubness.queries`, if the configuration names one. `model` embeds the queries."""
    import numpy as np

    from pipeline.models.linear.hubness import Bank

    pairs = run.pairs(*splits)
    rng = np.random.default_rng(run.config.seed)
    most = MAX_MULTI_VECTOR_BANK if embeddings.multi_vector else run.config.hubness.bank

    def draw(modality: str, ids: np.ndarray) -> "Items":
        drawn = np.sort(rng.choice(len(ids), min(most, len(ids)), replace=False))
        return embeddings.read(modality, ids[drawn])

    images = draw("images", pairs.image_id)
    sentences = draw("sentences", pairs.sentence_id)
    return Bank(images, sentences, embeddings.comparison, queries=_embed_queries(run, model, most, rng))


def _embed_queries(run: StageRun, model: "JointModel", most: int, rng: "np.random.Generator") -> "Items | None":
    """Embed at most `most` queries, drawn at random from the file `hubness.queries`.

    Return None if the configuration names no file. Raises InputError if the file has no query.
    """
    from pipeline.run.reading.texts import open_text_encoder, read_queries, read_token_vocabulary
    from pipeline.text.vocabulary import encode_tokens

    if (file := run.inputs.path("queries")) is None:
        return None
    queries = read_queries(file)
    queries = [queries[row] for row in sorted(rng.choice(len(queries), min(most, len(queries)), replace=False))]
    if model.sentence_view == "tokens":
        return model.embed_sentences(encode_tokens(queries, read_token_vocabulary(run)[0]))
    return model.embed_sentences({name: open_text_encoder(run, name).encode(queries) for name in model.text_encoders})
