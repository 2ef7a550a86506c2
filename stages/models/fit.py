"""Linear models: fitted, their parameters chosen on the dev split, or a space that encoders share already."""

import logging

from pipeline.errors import UsageError
from pipeline.run import Inputs, Job, Run, stage
from pipeline.run.reading.inputs import sentence_shards


def _fit_reads(config, layout, model: str) -> Inputs:
    configured, base = config.model(model), config.refitted(model)
    texts, documents = configured.text_encoders, configured.documents
    read = [layout.moments("target"), *map(layout.sentences, texts), *map(layout.features, configured.encoders)]
    if configured.training != "target":
        read.append(layout.moments(f"auxiliary/{documents}"))
        read += [layout.documents(documents, name) for name in texts]
    if base:
        read += [layout.model(base), layout.moments("dev")]
    return read


@stage(
    version=10,
    gpu=True,
    choices=lambda config: [(name,) for name in config.made_by("fit")],
    keys=lambda config, model: config.model(model).hyperparameters,
    reads=_fit_reads,
    writes=lambda layout, model: layout.model(model),
)
def fit(run: Run, job: Job, model: str) -> None:
    """Fit MODEL in closed form: a registered model, a variant from the configuration, or a refit of either."""
    from tqdm import tqdm

    from pipeline.models.linear.sets import FoldedMoments, Restriction, make_sets
    from pipeline.models.linear.training import FitTask, fit_best
    from pipeline.models.linear.tuning import GridTrial, choices_at_edges
    from pipeline.models.linear.views import weightings
    from pipeline.run.reading.models import describe_model
    from pipeline.storage.pairs import JoinedPairs, PairSet, read_split

    configured, layout, features, base = run.config.model(model), run.layout, run.features, run.chosen(model)
    sentences = {name: layout.sentences(name) for name in configured.text_encoders}
    target = PairSet(features, sentences, layout.moments("target").folder)
    source, chosen, weak = target, None, None
    if base:
        dev_pairs = PairSet(features, sentences, layout.moments("dev").folder)
        source = JoinedPairs(target, dev_pairs)
        chosen = GridTrial(**base.details["training_log"]["chosen"])
    if configured.training != "target":
        documents = {name: layout.documents(configured.documents, name) for name in configured.text_encoders}
        folder = layout.moments(f"auxiliary/{configured.documents}").folder
        weak = PairSet(features, documents, folder)
    moments = FoldedMoments(source, run.sums)
    weak_moments = FoldedMoments(weak, run.sums) if weak else None
    dev = read_split(features, sentences, configured.encoders, "dev", configured.fit.dev_images)

    def task(weights: dict[str, float]) -> FitTask:
        restriction = Restriction(configured.encoders, weights)
        weak_folds = range(weak.n_folds if weak else 0)
        return FitTask(
            configured.training,
            moments.view.select(configured.encoders),
            restriction.text(moments.text),
            make_sets(moments, range(source.n_folds), weak_moments, weak_folds, restriction),
            restriction.pairs(dev),
            configured.fit,
            configured.transfer,
            configured.settings,
            configured.seed,
            progress=lambda trials: tqdm(trials, desc=f"fit {model}", unit="trial", disable=None),
            device=run.gpu,
            chosen=chosen,
        )

    weightings_tried = [chosen.text_weights] if base else weightings(configured.text_weights)
    tuned = fit_best(configured.spec.load(), map(task, weightings_tried))
    tuned = tuned.refitted(chosen) if base else tuned
    origins = {
        "encoders": {name: target.encoders[name] for name in configured.encoders},
        "text_encoders": {name: target.text_encoders[name] for name in configured.text_encoders},
    }
    training_log = tuned.log()
    run.write_model(job, tuned.model, {**describe_model(run, model), **origins, "training_log": training_log})
    log = logging.getLogger(__name__)
    log.info("%s on %d pairs, chosen on %d dev images: %s", model, moments.n, len(dev.image_id), tuned.chosen)
    log.info("mean correlation %.3f in training", tuned.train_correlations.mean())
    if edges := choices_at_edges(training_log["trials"], training_log["chosen"]):
        log.warning("%s: dev chose %s, where the grid ends; values beyond may be better", model, " and ".join(edges))
    if tuned.dev_correlations is not None:
        log.info("mean correlation %.3f held out", tuned.dev_correlations.mean())


@stage(
    version=1,
    choices=lambda config: [(name,) for name in config.made_by("adopt")],
    keys=lambda config, model: config.model(model).hyperparameters,
    reads=lambda config, layout, model: [
        *map(layout.features, config.model(model).encoders),
        *sentence_shards(config.model(model), layout),
    ],
    writes=lambda layout, model: layout.model(model),
)
def adopt(run: Run, job: Job, model: str) -> None:
    """Use the vectors of an image encoder and a text encoder, unchanged, as the space of MODEL."""
    from pipeline.run.reading.models import describe_model
    from pipeline.storage.parameters import origin_of
    from pipeline.storage.texts import VectorShard

    configured = run.config.model(model)
    (encoder,), (text_encoder,) = configured.encoders, configured.text_encoders
    features = run.features.open(encoder, 0)
    sentences = VectorShard(run.layout.sentences(text_encoder).shard(0))
    dim, text_dim = features["features"].shape[1], sentences.matrix.shape[1]
    if dim != text_dim:
        raise UsageError(
            f"{model}: {encoder} has {dim} dimensions and {text_encoder} {text_dim}; name two encoders that share a"
            " space, or use ncca"
        )
    origins = {
        "encoders": {encoder: origin_of(features.commit)},
        "text_encoders": {text_encoder: origin_of(sentences.commit)},
    }
    run.write_model(job, configured.spec.load()(encoder, text_encoder), {**describe_model(run, model), **origins})
