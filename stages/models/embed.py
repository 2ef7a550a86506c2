"""`embed`, `combine`, `join-embeddings`: embed images and captions with a model or an ensemble of models."""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.run import Inputs, Job, Layout, Run, ShardJob, StageRun, stage
from pipeline.run.reading.inputs import feature_shards, region_shards, sentence_shards

if TYPE_CHECKING:
    from pydantic import JsonValue

    from pipeline.config.names import Config
    from pipeline.models.linear.ensemble import Ensemble, MemberWeights
    from pipeline.storage.parameters import Parameters


def _embed_reads(config: "Config", layout: Layout, model: str) -> Inputs:
    configured = config.model(model)
    return {
        "model": layout.model(model),
        "sentences": sentence_shards(configured, layout),
        "features": feature_shards(configured.encoders, layout),
        "regions": region_shards(config.regions.encoders, layout) if configured.spec.multi_vector else None,
    }


@stage(
    version=4,
    gpu=True,
    choices=lambda config: [(name,) for name in config.every_model() if not config.members(name)],
    reads=_embed_reads,
    columns=("images", "sentences"),
    writes=lambda layout, model: layout.embeddings(model),
)
def embed(run: StageRun, jobs: Iterator[ShardJob], model: str) -> Iterator[int]:
    """Embed all images and captions in the joint space of MODEL.

    The stage writes the embeddings of each shard, and yields the number of each written shard.
    """
    from pipeline.run.reading.models import describe_embeddings, open_region_rows, restore_model
    from pipeline.run.reading.texts import read_sentences
    from pipeline.storage.embeddings import write_embeddings

    mapping, parameters = restore_model(run, model)
    details = describe_embeddings(parameters, mapping.metric)
    rule = mapping.rule if mapping.multi_vector else None
    for job in jobs:
        features = {name: run.features.open(name, job.number)["features"] for name in mapping.encoders}
        regions = []
        if mapping.multi_vector:
            regions = [open_region_rows(run, mapping.region_encoders, job.image_id)]
        sentences = read_sentences(run, mapping.sentence_view, getattr(mapping, "text_encoders", ()), [job.number])
        sides = {
            "images": mapping.embed_images(features, *regions),
            "sentences": mapping.embed_sentences(sentences),
        }
        ids = {"images": job.image_id, "sentences": job.sentence_id}
        write_embeddings(job.path, sides, ids, details, rule, provenance=job.provenance)
        yield job.number


def _reads_words(config: "Config", model: str) -> bool:
    return any(config.model(member).spec.words for member in config.members(model))


def _combine_reads(config: "Config", layout: Layout, model: str) -> Inputs:
    members = config.members(model)
    base = config.refitted(model)
    return {
        "manifest": layout.manifest,
        "members": {name: layout.model(name) for name in members},
        "embeddings": {name: layout.embeddings(name) for name in members},
        "vocabulary": layout.token_vocabulary if _reads_words(config, model) else None,
        "base": layout.model(base) if base else None,
    }


@stage(
    version=4,
    choices=lambda config: [(name,) for name in config.made_by("combine")],
    keys=lambda config, model: {"ensemble": config.ensemble(model).model_dump(), "dev_images": config.fit.dev_images},
    reads=_combine_reads,
    writes=lambda layout, model: layout.model(model),
)
def combine(run: StageRun, job: Job, model: str) -> None:
    """Choose the weights of the members of the ensemble MODEL on dev, and join the members with a positive weight into
    one model.

    A refit takes the weights from the ensemble that it refits.
    """
    from pipeline.config.registry import combining
    from pipeline.storage.batch import FileBatch
    from pipeline.storage.commit import publish_record

    config = run.config
    base = run.chosen(model)
    members = config.members(model)
    if base:
        log = base.details["training_log"]
        weights = {name: base.details["weights"][config.refitted(name)] for name in members}
    else:
        best = _choose_weights(run, model)
        weights = dict(zip(members, best.values, strict=True))
        log = {
            "criterion": "sum of recall@1, @5 and @10 of both directions on dev",
            "weights": weights,
            "recall_sum": best.judged,
            "combinations": best.trials,
        }
    used = {name: run.model(name) for name in members if weights[name]}
    ensemble = _join(used, weights)
    details = {
        "model": model,
        "refits": config.refitted(model),
        "registered": combining(ensemble.multi_vector).name,
        "training": config.model(model).training,
        "labels": next((labels for member in used.values() if (labels := member.details.get("labels"))), None),
        "weights": weights,
        "training_log": log,
    }
    for key in ("encoders", "regions", "text_encoders"):
        origins = [member.details.get(key) or {} for member in used.values()]
        details[key] = {name: origin for own in origins for name, origin in own.items()}
    batch = FileBatch()
    if _reads_words(config, model):
        vocabulary = _read_vocabularies(run, ensemble)
        details["vocabulary"] = vocabulary["fingerprint"]
        path = run.layout.model_vocabulary(model).path
        publish_record(path, vocabulary, provenance=job.provenance, batch=batch)
    run.write_model(job, ensemble, details, batch)
    batch.publish()
    judged = (
        "with the weights of the refitted ensemble" if base else f"the sum of recalls on dev is {log['recall_sum']:.1f}"
    )
    logging.getLogger(__name__).info("%s: %s. Weights: %s", model, judged, weights)


def _choose_weights(run: Run, name: str) -> "MemberWeights":
    """Return the weights of the members of the ensemble `name` that are best on dev."""
    from tqdm import tqdm

    from pipeline.metrics.ranks import score
    from pipeline.models.linear.ensemble import combine_scores

    pairs = run.pairs("dev").first(run.config.fit.dev_images)
    ensemble = run.config.ensemble(name)
    assert ensemble is not None
    scores = []
    for embeddings in map(run.embeddings, run.config.members(name)):
        images = embeddings.read("images", pairs.image_id)
        sentences = embeddings.read("sentences", pairs.sentence_id)
        scores.append(score(images, sentences, embeddings.comparison))
    with tqdm(desc=f"combine {name}", unit="trial", disable=None) as bar:
        return combine_scores(scores, pairs.owners, ensemble.weights, bar.update)


def _join(members: "dict[str, Parameters]", weights: dict[str, float]) -> "Ensemble":
    from pipeline.config.stored import restore
    from pipeline.models.linear.ensemble import Ensemble, EnsembleMember

    parts = []
    for name, stored in members.items():
        kind = stored.details["registered"]
        parts.append(EnsembleMember(kind, restore(kind, stored.settings, stored.tensors), weights[name]))
    return Ensemble(parts)


def _read_vocabularies(run: Run, ensemble: "Ensemble") -> "dict[str, JsonValue]":
    """Return the vocabularies of the ensemble in the form in which they are stored with its model: a fingerprint, and
    `views`, which maps each form of captions that a member reads (tokens, or a kind of trees) to the vocabulary of this
    form."""
    from pipeline.storage.commit import read_record
    from pipeline.storage.json_files import fingerprint
    from pipeline.storage.records import VocabularyFile

    value = read_record(run.layout.token_vocabulary.path)
    vocabulary = {key: value[key] for key in VocabularyFile.model_fields if key in value}
    views: dict[str, JsonValue] = {view: vocabulary for view in ensemble.views if view != "vectors"}
    inputs = {view: str(vocabulary["fingerprint"]) for view in views}
    return {"fingerprint": fingerprint("vocabularies", 1, inputs=inputs), "views": views}


@stage(
    version=3,
    choices=lambda config: [(name,) for name in config.every_model() if config.members(name)],
    reads=lambda config, layout, model: {
        "model": layout.model(model),
        "embeddings": {name: layout.embeddings(name) for name in config.members(model)},
    },
    columns=("images", "sentences"),
    writes=lambda layout, model: layout.embeddings(model),
)
def join_embeddings(run: StageRun, jobs: Iterator[ShardJob], model: str) -> Iterator[int]:
    """Combine the embeddings by the members of the ensemble MODEL into the embeddings of the ensemble.

    The embedding of a photo or caption is the concatenation of its embeddings by the members, each multiplied by the
    weight of the member. Members with the weight 0 are left out. The stage writes the embeddings of each shard, and
    yields the number of each written shard.
    """
    from pipeline.compute.multivectors import ScoreRule
    from pipeline.models.linear.ensemble import join_images, join_sentences, joint_rule
    from pipeline.run.reading.models import describe_embeddings
    from pipeline.storage.embeddings import write_embeddings

    stored = run.model(model)
    weights = {name: weight for name, weight in stored.details["weights"].items() if weight}
    members = [run.embeddings(name) for name in weights]
    rules = [rule if isinstance(rule := member.comparison, ScoreRule) else None for member in members]
    details = describe_embeddings(stored, "inner_product")
    for job in jobs:
        ids = {"images": job.image_id, "sentences": job.sentence_id}
        sides = {}
        for modality, join in (("images", join_images), ("sentences", join_sentences)):
            parts = [member.read(modality, ids[modality]) for member in members]
            sides[modality] = join(parts, list(weights.values()), rules)
        write_embeddings(job.path, sides, ids, details, joint_rule(rules), provenance=job.provenance)
        yield job.number
