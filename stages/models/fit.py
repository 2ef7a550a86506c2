"""`fit`, `adopt`: fit linear models, or use the joint space that an image encoder and a text encoder already share."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.errors import UsageError
from pipeline.run import Inputs, Job, Layout, StageRun, stage
from pipeline.run.reading.inputs import feature_shards, sentence_shards

if TYPE_CHECKING:
    from pipeline.config.names import Config
    from pipeline.models.linear.sets import FoldedMoments
    from pipeline.models.linear.training import FitTask
    from pipeline.models.linear.tuning import GridTrial, Tuned
    from pipeline.storage.pairs import PairSet, SplitRows

log = logging.getLogger(__name__)


def _fit_reads(config: "Config", layout: Layout, model: str) -> Inputs:
    configured = config.model(model)
    base = config.refitted(model)
    has_weak = configured.training != "target"
    documents = {name: layout.documents(configured.documents, name) for name in configured.text_encoders}
    return {
        "manifest": layout.manifest,  # The manifest says which images belong to dev.
        "target": layout.moments("target"),
        "sentences": sentence_shards(configured, layout),
        "features": feature_shards(configured.encoders, layout),
        "weak": layout.moments(f"auxiliary/{configured.documents}") if has_weak else None,
        "documents": documents if has_weak else None,
        "base": layout.model(base) if base else None,
        "dev": layout.moments("dev") if base else None,
    }


@stage(
    version=10,
    gpu=True,
    threads=8,
    memory=3000,
    choices=lambda config: [(name,) for name in config.made_by("fit")],
    keys=lambda config, model: config.model(model).hyperparameters,
    reads=_fit_reads,
    writes=lambda layout, model: layout.model(model),
)
def fit(run: StageRun, job: Job, model: str) -> None:
    """Fit a linear MODEL, and choose its parameters on dev.

    MODEL is a registered model, a variant from the configuration, or a refit of one of them. A refit is fitted on train
    and dev with the parameters that were chosen before.
    """
    from pipeline.models.linear.sets import FoldedMoments
    from pipeline.models.linear.training import fit_best
    from pipeline.models.linear.tuning import GridTrial
    from pipeline.models.linear.views import weightings
    from pipeline.run.reading.models import describe_model
    from pipeline.storage.pairs import JoinedPairs, read_split

    configured = run.config.model(model)
    base = run.chosen(model)
    target = _open_pairs(run, "target", "sentences")
    source = target
    chosen = None
    if base:
        source = JoinedPairs(target, _open_pairs(run, "dev", "sentences"))
        chosen = GridTrial(**base.details["training_log"]["chosen"])
    moments = FoldedMoments(source, run.sums)
    weak = None
    if configured.training != "target":
        weak = FoldedMoments(_open_pairs(run, "weak", "documents"), run.sums)
    sentences = run.inputs.all_shards("sentences")
    dev = read_split(run.features, sentences, configured.encoders, "dev", configured.fit.dev_images)
    tried = [chosen.text_weights] if chosen else weightings(configured.text_weights)
    tasks = (_make_task(run, model, weights, moments, weak, dev, chosen) for weights in tried)
    tuned = fit_best(configured.spec.load(), tasks)
    if chosen:
        tuned = tuned.refitted(chosen)
    details = {
        **describe_model(run, model),
        "encoders": {name: target.encoders[name] for name in configured.encoders},
        "text_encoders": {name: target.text_encoders[name] for name in configured.text_encoders},
        "training_log": tuned.log(),
    }
    run.write_model(job, tuned.model, details)
    _report(model, tuned, moments.n, len(dev.image_id))


def _open_pairs(run: StageRun, moments: str, texts: str) -> "PairSet":
    """Return the image-text pairs of a fit. `moments` is the name of the stage's input that has their moments, and
    `texts` is the name of the input that has the vectors of their texts."""
    from pipeline.storage.pairs import PairSet

    return PairSet(run.features, run.inputs.all_shards(texts), run.inputs.shards(moments).folder)


def _make_task(
    run: StageRun,
    model: str,
    weights: Mapping[str, float],
    moments: "FoldedMoments",
    weak: "FoldedMoments | None",
    dev: "SplitRows",
    chosen: "GridTrial | None",
) -> "FitTask":
    """Return the task that fits a model with the `weights` of its text encoders.

    `moments` has the moments of the training pairs, and `weak` the moments of pairs of images and weak texts, or is
    None. The parameters are chosen on the pairs `dev`. `chosen` has the parameters of the model that is refitted, or is
    None.
    """
    from tqdm import tqdm

    from pipeline.models.linear.sets import Restriction, make_sets
    from pipeline.models.linear.training import FitTask

    configured = run.config.model(model)
    restriction = Restriction(configured.encoders, weights)
    weak_folds = range(weak.source.n_folds if weak else 0)
    return FitTask(
        configured.training,
        moments.view.select(configured.encoders),
        restriction.text(moments.text),
        make_sets(moments, range(moments.source.n_folds), weak, weak_folds, restriction),
        restriction.pairs(dev),
        configured.fit,
        configured.transfer,
        configured.settings,
        configured.seed,
        progress=lambda trials: tqdm(trials, desc=f"fit {model}", unit="trial", disable=None),
        device=run.gpu,
        chosen=chosen,
    )


def _report(model: str, tuned: "Tuned", pairs: float, dev_images: int) -> None:
    """Log the chosen parameters and the mean correlations, and warn about each parameter whose chosen value is at an
    end of its grid.

    `pairs` is the number of training pairs, and `dev_images` the number of dev images on which the parameters were
    chosen.
    """
    from pipeline.models.linear.tuning import choices_at_edges

    training_log = tuned.log()
    log.info(
        "%s was fitted on %d pairs, with the parameters that are best on %d dev images: %s",
        model,
        pairs,
        dev_images,
        tuned.chosen,
    )
    log.info("The mean correlation of the training pairs is %.3f", tuned.train_correlations.mean())
    if edges := choices_at_edges(training_log["trials"], training_log["chosen"]):
        log.warning(
            "%s: the value that is best on dev is at the end of its grid: %s. Add values beyond this end to the grid.",
            model,
            " and ".join(edges),
        )
    if tuned.dev_correlations is not None:
        log.info("The mean correlation of the dev pairs is %.3f", tuned.dev_correlations.mean())


def _adopt_reads(config: "Config", layout: Layout, model: str) -> Inputs:
    configured = config.model(model)
    return {"features": feature_shards(configured.encoders, layout), "sentences": sentence_shards(configured, layout)}


@stage(
    version=1,
    choices=lambda config: [(name,) for name in config.made_by("adopt")],
    keys=lambda config, model: config.model(model).hyperparameters,
    reads=_adopt_reads,
    writes=lambda layout, model: layout.model(model),
)
def adopt(run: StageRun, job: Job, model: str) -> None:
    """Use the shared space of an image encoder and a text encoder, such as CLIP, as the joint space of MODEL.

    The vectors are not changed and nothing is fitted.
    """
    from pipeline.run.reading.models import describe_model
    from pipeline.storage.parameters import origin_of
    from pipeline.storage.shards import FEATURES, Shard
    from pipeline.storage.texts import VectorShard

    configured = run.config.model(model)
    ((encoder, feature_shards),) = run.inputs.all_shards("features").items()
    ((text_encoder, sentence_shards),) = run.inputs.all_shards("sentences").items()
    features = Shard(feature_shards.shard(0), FEATURES)
    sentences = VectorShard(sentence_shards.shard(0))
    text_shape = sentences.matrix.shape
    assert text_shape is not None  # SciPy's type stubs allow None for sparse arrays
    dim = features["features"].shape[1]
    text_dim = text_shape[1]
    if dim != text_dim:
        raise UsageError(
            f"{model}: the image encoder {encoder} has {dim} dimensions, but the text encoder {text_encoder} has"
            f" {text_dim}. Name two encoders that share a space, or use the model ncca."
        )
    origins = {
        "encoders": {encoder: origin_of(features.commit)},
        "text_encoders": {text_encoder: origin_of(sentences.commit)},
    }
    run.write_model(job, configured.spec.load()(encoder, text_encoder), {**describe_model(run, model), **origins})
