"""`fit-csls`: a model whose scores are corrected for hubs, as far as dev would have it."""

from pathlib import Path
from typing import Any

import click

from stages import options


@click.command("fit-csls")
@click.argument("name", metavar="MODEL")
@options.manifest
@options.embeddings
@click.option("--model", "model_folder", type=options.FOLDER, required=True, help="Folder of NAME or NAME-refit.")
@options.chosen
@options.config
@options.output("folder", "Folder of the model.")
def command(
    name: str,
    manifest_folder: Path,
    embeddings_folder: Path,
    model_folder: Path,
    chosen_folder: Path | None,
    config_path: Path | None,
    output: Path,
) -> None:
    """Make MODEL, NAME-csls or NAME-csls-refit, of the model and the embeddings of NAME or NAME-refit."""
    import logging

    from pipeline import config
    from pipeline.errors import UsageError
    from pipeline.models.linear.csls import Scaled
    from pipeline.specs.stored import restore
    from pipeline.storage.embeddings import Embeddings, split_pairs
    from pipeline.storage.fingerprint import fingerprint, require_same
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.parameters import MODEL, read_parameters, write_parameters
    from pipeline.storage.places import require_output
    from pipeline.storage.provenance import require_same_origins
    from stages.starts import read_chosen

    settings = config.load(config_path)
    require_output(output / "model.safetensors", {"model": name})
    plain, refits = settings.scaled(name), settings.refitted(name)
    if plain is None:
        raise UsageError(f"{name} is not scaled; name {name}-csls")
    settings.model(name)  # or there is no such model
    base = read_chosen(settings, name, chosen_folder)
    embeddings = Embeddings(Manifest(manifest_folder), embeddings_folder)
    parameters = read_parameters(model_folder / "model.safetensors", MODEL)
    require_same("model", {str(embeddings_folder): embeddings.model, str(model_folder): parameters.fingerprint})
    if parameters.details["model"] != plain:
        raise UsageError(f"{model_folder} holds {parameters.details['model']}; {name} is made of {plain}, give that")
    if embeddings.metric != "inner_product":
        raise UsageError(f"{plain} scores by distance, not by inner products, and cannot be scaled")

    if base:
        require_same_origins({str(model_folder): parameters.details, str(chosen_folder): base.details})
    learned = split_pairs(embeddings.manifest, *(("train", "dev") if refits else ("train",)))
    bank = _draw_bank(embeddings, learned, settings)
    if base:
        log = base.details["training_log"]
    else:
        embeddings.require_unseen("dev")
        dev = split_pairs(embeddings.manifest, "dev").first(settings.fit.dev_images)
        trials = _try_all(embeddings, dev, bank, settings)
        log = {
            "criterion": "sum of recall@1, @5 and @10 of both directions on dev", "chosen": trials[0], "trials": trials
        }  # fmt: skip
    registered, (weight, k) = parameters.details["registered"], (log["chosen"][key] for key in ("weight", "neighbours"))
    plainly = restore(registered, parameters.settings, parameters.tensors, model_folder)
    model = Scaled(plainly, weight, k, bank)

    inputs = {"manifest": embeddings.manifest.fingerprint, "model": parameters.fingerprint, **embeddings.inputs}
    inputs |= {"chosen": base.fingerprint} if base else {}
    write_parameters(
        output / "model.safetensors",
        MODEL,
        model.tensors(),
        settings=model.settings(),
        fingerprint=fingerprint("model", 3, [name, settings.csls.model_dump(), settings.seed], inputs),
        details={**parameters.details, "model": name, "refits": refits, "inputs": inputs, "training_log": log},
    )
    logging.getLogger(__name__).info("%s: %s", name, log["chosen"])


def _draw_bank(embeddings: Any, pairs: Any, settings: Any) -> Any:
    """Some images and some sentences of `pairs`."""
    import numpy as np

    from pipeline.models.linear.csls import Bank

    rng, sides = np.random.default_rng(settings.seed), []
    most = settings.csls.bank_of_sets if embeddings.multi_vector else settings.csls.bank
    for modality, ids in (("images", pairs.image_id), ("sentences", pairs.sentence_id)):
        drawn = rng.choice(len(ids), min(most, len(ids)), replace=False)
        sides.append(embeddings.read(modality, ids[np.sort(drawn)]))
    return Bank(*sides, embeddings.comparison)


def _try_all(embeddings: Any, pairs: Any, bank: Any, settings: Any) -> list[dict[str, float]]:
    """Every weight and number of neighbours on `pairs`, the best first."""
    from pipeline.metrics.scores import score
    from pipeline.models.linear.csls import choose_scaling

    ks = settings.csls.neighbours
    images, sentences = embeddings.read("images", pairs.image_id), embeddings.read("sentences", pairs.sentence_id)
    near = bank.near_images(images, ks), bank.near_sentences(sentences, ks)
    scores = score(images, sentences, embeddings.comparison)
    return choose_scaling(scores, *near, pairs.owners, ks, settings.csls.weight)
