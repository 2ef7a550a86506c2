"""`fit`: a linear model, its parameters chosen on the dev split."""

from pipeline.run import Inputs, Job, Run, Stage


def fit(run: Run, job: Job, model: str) -> None:
    """Fit MODEL: a registered model, one of the configuration's variants, or a refit of either."""
    import logging

    from tqdm import tqdm

    from pipeline.models.linear.sets import FoldedMoments, Restriction, make_sets
    from pipeline.models.linear.training import FitTask, fit_best
    from pipeline.models.linear.tuning import GridTrial
    from pipeline.models.linear.views import weightings
    from pipeline.storage.moments import JoinedPairs, PairSet
    from pipeline.storage.pairs import read_split
    from pipeline.storage.parameters import encoders_of
    from stages.training import describe_model

    settings, layout, features = run.config, run.layout, run.features
    known = settings.model(model)
    sentences = run.texts({name: layout.sentences(name) for name in known.text_encoders})
    target, weak = PairSet(features, sentences, layout.moments("target").folder), None
    if known.training != "target":
        documents = run.texts({name: layout.documents(known.documents, name) for name in known.text_encoders})
        weak = PairSet(features, documents, layout.moments(f"auxiliary/{known.documents}").folder)
    base, source, dev_pairs, chosen = run.chosen(model), target, None, None
    if base:
        dev_pairs = PairSet(features, sentences, layout.moments("dev").folder)
        source, chosen = JoinedPairs(target, dev_pairs), GridTrial(**base.details["training_log"]["chosen"])
    keys = ("encoders", "text_encoders")
    learned = {key: encoders_of(target.folder, getattr(target, key), getattr(known, key)) for key in keys}
    folded, weakly = FoldedMoments(source, run.sums), FoldedMoments(weak, run.sums) if weak else None
    dev = read_split(features, sentences, known.encoders, "dev", known.fit.dev_images)

    def task(weights: dict[str, float]) -> FitTask:
        restriction = Restriction(known.encoders, weights)
        weak_folds = range(weak.n_folds if weak else 0)
        return FitTask(
            known.training,
            folded.view.select(known.encoders),
            restriction.text(folded.text),
            make_sets(folded, range(source.n_folds), weakly, weak_folds, restriction),
            restriction.pairs(dev),
            known.fit,
            known.transfer,
            known.settings,
            known.seed,
            progress=lambda trials: tqdm(trials, desc=f"fit {model}", unit="trial", disable=None),
            device=run.gpu,
            chosen=chosen,
        )

    tried = [chosen.text_weights] if base else weightings(known.text_weights)
    tuned = fit_best(known.spec.load(), map(task, tried))
    tuned = tuned.refitted(chosen) if base else tuned

    details = {**describe_model(run, model), **learned, "training_log": tuned.log()}
    run.write_model(job, tuned.model, details)
    log = logging.getLogger(__name__)
    log.info("%s on %d pairs, chosen on %d dev images: %s", model, folded.n, len(dev.image_id), tuned.chosen)
    log.info("mean correlation %.3f in training", tuned.train_correlations.mean())
    if tuned.dev_correlations is not None:
        log.info("mean correlation %.3f held out", tuned.dev_correlations.mean())


def _reads(config, layout, model: str) -> Inputs:
    known, base = config.model(model), config.refitted(model)
    found: dict = {"target": layout.moments("target")}
    found |= {f"text/{name}": layout.sentences(name) for name in known.text_encoders}
    found |= {f"features/{name}": layout.features(name) for name in known.encoders}
    if known.training != "target":
        found["auxiliary"] = layout.moments(f"auxiliary/{known.documents}")
        found |= {f"documents/{name}": layout.documents(known.documents, name) for name in known.text_encoders}
    return found | ({"chosen": layout.model(base), "dev": layout.moments("dev")} if base else {})


STAGE = Stage(
    fit,
    version=9,
    gpu=True,
    names=("model",),
    choices=lambda config: [(name,) for name in config.made_by("fit")],
    keys=lambda config, model: config.model(model).hyperparameters,
    reads=_reads,
    writes=lambda layout, model: layout.model(model),
)
