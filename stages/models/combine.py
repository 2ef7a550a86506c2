"""`combine`: a score-level ensemble of embedded models, its weights chosen on the dev split, or those chosen before."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.run import Inputs, Job, Run, Stage


def combine(run: Run, job: Job, model: str) -> None:
    """Choose the weights of MODEL, one of the configuration's ensembles, and put its members into one model.

    A refit has the weights of the ensemble that it refits."""
    import logging

    from pipeline.config.registry.models import combining
    from pipeline.models.linear.ensemble import Ensemble
    from pipeline.storage.batch import FileBatch
    from pipeline.storage.commit import publish_record

    settings, layout, base = run.config, run.layout, run.chosen(model)
    members = {name: run.embedded_model(name) for name in settings.members(model)}
    stored = {name: parameters for name, (_, parameters) in members.items()}
    if base:
        log = base.details["training_log"]
        weights = {name: base.details["weights"][settings.refitted(name)] for name in members}
    else:
        log = _choose(run, model, {name: embeddings for name, (embeddings, _) in members.items()})
        weights = log["weights"]
    used = {name: stored[name] for name, weight in weights.items() if weight}
    joined = Ensemble([_member(parameters, weights[name]) for name, parameters in used.items()])
    paths = [one.path for one in _vocabularies(settings, layout, model).values()]
    vocabulary = _join_vocabularies(joined, *paths) if paths else None

    labels = [part.details["labels"] for part in used.values() if part.details.get("labels")]
    origins = {
        key: {name: origin for part in used.values() for name, origin in (part.details.get(key) or {}).items()}
        for key in ("encoders", "regions", "text_encoders")
    }
    learned = {**origins, **({"vocabulary": vocabulary["fingerprint"]} if vocabulary else {})}
    batch = FileBatch()
    if vocabulary:
        publish_record(layout.model_vocabulary(model).path, vocabulary, provenance=job.provenance, batch=batch)
    details = {
        "model": model,
        "refits": settings.refitted(model),
        "registered": combining(joined.multi_vector).name,
        "training": settings.model(model).training,
        **learned,
        "labels": labels[0] if labels else None,
        "weights": weights,
        "training_log": log,
    }
    run.write_model(job, joined, details, batch)
    batch.publish()
    judged = "weights chosen before" if base else f"recall sum {log['recall_sum']:.1f} on dev"
    logging.getLogger(__name__).info("%s: %s, with %s", model, judged, weights)


def _choose(run: Run, ensemble: str, members: Mapping[str, Any]) -> dict[str, Any]:
    """The weights of `members` (name -> embeddings) that are best on dev, and how they were chosen."""
    from tqdm import tqdm

    from pipeline.metrics.combination import combine_scores
    from pipeline.metrics.ranks import score

    pairs = run.pairs("dev").first(run.config.fit.dev_images)
    for embeddings in members.values():
        embeddings.require_unseen("dev")
    scores = [
        score(one.read("images", pairs.image_id), one.read("sentences", pairs.sentence_id), one.comparison)
        for one in members.values()
    ]
    with tqdm(desc=f"combine {ensemble}", unit="trial", disable=None) as bar:
        found = combine_scores(scores, pairs.owners, run.config.ensemble(ensemble).weights, bar.update)
    return {
        "criterion": "sum of recall@1, @5 and @10 of both directions on dev",
        "weights": dict(zip(members, found.values, strict=True)),
        "recall_sum": found.judged,
        "combinations": found.trials,
    }


def _member(parameters: Any, weight: float) -> Any:
    from pipeline.config.registry.stored import restore
    from pipeline.models.linear.ensemble import EnsembleMember

    kind = parameters.details["registered"]
    return EnsembleMember(kind, restore(kind, parameters.settings, parameters.tensors), weight)


def _join_vocabularies(model: Any, path: Path) -> dict[str, Any]:
    """The vocabulary of every form of tokens or trees that the members take, under its name; with one fingerprint."""
    from pipeline.storage.json_files import fingerprint
    from pipeline.storage.records import VocabularyFile, read_vocabulary

    value = read_vocabulary(path)
    own = {key: value[key] for key in VocabularyFile.model_fields if key in value}
    views = {view: own for view in model.views if view != "vectors"}
    inputs = {view: value["fingerprint"] for view, value in views.items()}
    return {"fingerprint": fingerprint("vocabularies", 1, inputs=inputs), "views": views}


def _vocabularies(config, layout, model: str) -> Mapping[str, Any]:
    """The one that members that read words were trained with, by its name; nothing where none does."""
    words = any(config.model(member).spec.words for member in config.members(model))
    return {layout.token_vocabulary.name: layout.token_vocabulary} if words else {}


def _reads(config, layout, model: str) -> Inputs:
    members, base = config.members(model), config.refitted(model)
    return {
        "manifest": layout.manifest,
        **{f"models/{name}": layout.model(name) for name in members},
        **{f"embeddings/{name}": layout.embeddings(name) for name in members},
        **_vocabularies(config, layout, model),
        **({"chosen": layout.model(base)} if base else {}),
    }


STAGE = Stage(
    combine,
    version=4,
    names=("model",),
    choices=lambda config: [(name,) for name in config.made_by("combine")],
    keys=lambda config, model: {"ensemble": config.ensemble(model).model_dump(), "dev_images": config.fit.dev_images},
    reads=_reads,
    writes=lambda layout, model: layout.model(model),
)
