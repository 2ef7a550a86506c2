"""`combine`: a score-level ensemble of embedded models, its weights chosen on the dev split, or those chosen before."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from stages import options


@click.command("combine")
@click.argument("ensemble")
@options.manifest
@click.option(
    "--embeddings", "embeddings_root", type=options.FOLDER, required=True, help="Folder with the members' embeddings."
)
@click.option("--models", "models_root", type=options.FOLDER, required=True, help="Folder with the members' models.")
@click.option(
    "--vocabulary", "vocabularies", type=options.FILE, multiple=True, required=True,
    help="A vocabulary of the members; once for each.",
)  # fmt: skip
@options.chosen
@options.config
@options.output("folder", "Folder of the model.")
def command(
    ensemble: str,
    manifest_folder: Path,
    embeddings_root: Path,
    models_root: Path,
    vocabularies: tuple[Path, ...],
    chosen_folder: Path | None,
    config_path: Path | None,
    output: Path,
) -> None:
    """Choose the weights of ENSEMBLE, one of the configuration's ensembles, and put its members into one model.

    A refit has the weights of the ensemble that it refits."""
    import logging

    from pipeline import config
    from pipeline.errors import UsageError
    from pipeline.models.linear.ensemble import Ensemble
    from pipeline.specs.models import combining
    from pipeline.storage.atomic import to_json
    from pipeline.storage.batch import Batch
    from pipeline.storage.fingerprint import fingerprint, require_same
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.parameters import MODEL, write_parameters
    from pipeline.storage.places import require_output
    from pipeline.storage.provenance import join_origins, require_same_origins
    from stages.starts import read_chosen

    settings = config.load(config_path)
    require_output(output / "model.safetensors", {"model": ensemble})
    if not settings.members(ensemble):
        raise UsageError(
            f"{ensemble} is not among the ensembles of the configuration ({', '.join(settings.ensembles)})"
        )
    manifest, base = Manifest(manifest_folder), read_chosen(settings, ensemble, chosen_folder)
    names = settings.members(ensemble)
    members = {name: _open_member(name, manifest, embeddings_root / name, models_root / name) for name in names}
    stored = {name: parameters for name, (_, parameters) in members.items()}
    if base:
        log = base.details["training_log"]
        weights = {name: base.details["weights"][settings.refitted(name)] for name in members}
    else:
        log = _choose(ensemble, settings, manifest, {name: embeddings for name, (embeddings, _) in members.items()})
        weights = log["weights"]
    used = {name: stored[name] for name, weight in weights.items() if weight}
    model = Ensemble([_member(parameters, weights[name]) for name, parameters in used.items()])
    vocabulary = _join_vocabularies(model, list(used.values()), vocabularies)

    labels = {name: used[name].details["labels"] for name in used if used[name].details.get("labels")}
    inputs = {"manifest": manifest.fingerprint, **{f"models/{name}": stored[name].fingerprint for name in stored}}
    inputs |= {"chosen": base.fingerprint} if base else {}
    origins = {
        key: join_origins((str(models_root / name), part.details.get(key) or {}) for name, part in used.items())
        for key in ("encoders", "regions")
    }
    learned = {**origins, "vocabulary": vocabulary["fingerprint"]}
    if base:
        require_same_origins({str(output): learned, str(chosen_folder): base.details})
    batch = Batch()
    batch.add(output / "vocabulary.json", to_json(vocabulary), commit=True)
    write_parameters(
        output / "model.safetensors",
        MODEL,
        model.tensors(),
        settings=model.settings(),
        fingerprint=fingerprint("ensemble", 2, weights, inputs),
        details={
            "model": ensemble,
            "refits": settings.refitted(ensemble),
            "registered": combining(model.multi_vector).name,
            "training": settings.model(ensemble).training,
            **learned,
            "labels": require_same("label table", labels) if labels else None,
            "weights": weights,
            "inputs": inputs,
            "training_log": log,
        },
        batch=batch,
    )
    batch.publish()
    judged = "weights chosen before" if base else f"recall sum {log['recall_sum']:.1f} on dev"
    logging.getLogger(__name__).info("%s: %s, with %s", ensemble, judged, weights)


def _choose(ensemble: str, settings: Any, manifest: Any, members: Mapping[str, Any]) -> dict[str, Any]:
    """The weights of `members`, name -> embeddings, that are best on dev, with what led to them."""
    from tqdm import tqdm

    from pipeline.metrics.combination import combine_scores
    from pipeline.metrics.scores import score
    from pipeline.storage.embeddings import split_pairs

    pairs = split_pairs(manifest, "dev").first(settings.fit.dev_images)
    for embeddings in members.values():
        embeddings.require_unseen("dev")
    scores = [
        score(one.read("images", pairs.image_id), one.read("sentences", pairs.sentence_id), one.comparison)
        for one in members.values()
    ]
    with tqdm(desc=f"combine {ensemble}", unit="trial", disable=None) as bar:
        found = combine_scores(scores, pairs.owners, settings.ensemble(ensemble).weights, bar.update)
    return {
        "criterion": "sum of recall@1, @5 and @10 of both directions on dev",
        "weights": dict(zip(members, found.values, strict=True)),
        "recall_sum": found.judged,
        "combinations": found.trials,
    }


def _open_member(name: str, manifest: Any, embeddings_folder: Path, model_folder: Path) -> tuple[Any, Any]:
    """The embeddings and the model of one member, which belong together and compare by inner products."""
    from pipeline.errors import UsageError
    from pipeline.storage.embeddings import Embeddings
    from pipeline.storage.fingerprint import require_same
    from pipeline.storage.parameters import MODEL, read_parameters

    embeddings = Embeddings(manifest, embeddings_folder, name)
    if embeddings.metric != "inner_product":
        raise UsageError(f"{name} scores by distance, not by inner products; leave it out of the ensemble")
    parameters = read_parameters(model_folder / "model.safetensors", MODEL)
    require_same("model", {str(embeddings_folder): embeddings.model, str(model_folder): parameters.fingerprint})
    return embeddings, parameters


def _member(parameters: Any, weight: float) -> Any:
    from pipeline.models.linear.ensemble import Member
    from pipeline.specs.stored import restore

    kind = parameters.details["registered"]
    return Member(kind, restore(kind, parameters.settings, parameters.tensors), weight)


def _join_vocabularies(model: Any, stored: Sequence[Any], paths: Sequence[Path]) -> dict[str, Any]:
    """The vocabulary of every form of sentences that the members take, under its name; with one fingerprint."""
    from pipeline.errors import IntegrityError
    from pipeline.storage.fingerprint import fingerprint, require_same
    from pipeline.storage.records import read_vocabulary

    given = {value["fingerprint"]: value for value in map(read_vocabulary, paths)}
    views = {}
    for view in model.views:
        members = zip(model.members, stored, strict=True)
        used = {
            p.details["model"]: p.details["vocabulary"] for member, p in members if member.model.sentence_view == view
        }
        if (digest := require_same("vocabulary", used)) not in given:
            raise IntegrityError(f"the vocabulary of {min(used)} is none of {', '.join(map(str, paths))}; give it too")
        views[view] = given[digest]
    inputs = {view: value["fingerprint"] for view, value in views.items()}
    return {"fingerprint": fingerprint("vocabularies", 1, inputs=inputs), "views": views}
