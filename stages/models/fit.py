"""`fit`: a linear model, its parameters chosen on the dev split."""

from pathlib import Path

import click

from stages import options


@click.command("fit")
@click.argument("name", metavar="MODEL")
@options.manifest
@options.features
@options.tfidf
@click.option("--moments", "moments_folder", type=options.FOLDER, required=True, help="Moments of the target pairs.")
@click.option(
    "--auxiliary", "auxiliary_folder", type=options.FOLDER, help="Moments of the auxiliary pairs. [default: none]"
)
@click.option(
    "--documents", "documents_folder", type=options.FOLDER, help="Folder of `encode-documents` shards. [default: none]"
)
@options.chosen
@click.option(
    "--dev-moments", "dev_folder", type=options.FOLDER, help="Moments of the dev pairs, for a refit. [default: none]"
)
@options.scheduler
@options.config
@options.output("folder", "Folder of the model.")
def command(
    name: str,
    manifest_folder: Path,
    features_root: Path,
    tfidf_folder: Path,
    moments_folder: Path,
    auxiliary_folder: Path | None,
    documents_folder: Path | None,
    chosen_folder: Path | None,
    dev_folder: Path | None,
    scheduler: str,
    config_path: Path | None,
    output: Path,
) -> None:
    """Fit MODEL: a registered model, one of the configuration's variants, or a refit of either."""
    import logging

    from tqdm import tqdm

    from pipeline import config
    from pipeline.device import find_gpu
    from pipeline.errors import UsageError
    from pipeline.models.linear.sets import FoldedMoments, Restriction, make_sets
    from pipeline.models.linear.training import Task
    from pipeline.models.linear.tuning import Trial
    from pipeline.specs.models import require_made_by
    from pipeline.storage.fingerprint import fingerprint, require_same
    from pipeline.storage.gather import Features, Sentences, read_split
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.moments import JoinedPairs, PairSet
    from pipeline.storage.parameters import MODEL, write_parameters
    from pipeline.storage.places import require_output
    from pipeline.storage.provenance import encoders_of, join_origins, require_same_origins
    from stages.starts import read_chosen

    settings = config.load(config_path)
    require_output(output / "model.safetensors", {"model": name})
    model = settings.model(name)
    registered = require_made_by("fit", model.spec.name).load()
    features = Features(Manifest(manifest_folder), features_root)
    sentences = Sentences(features.manifest, tfidf_folder)
    target, weak = PairSet(features, sentences, moments_folder, "target"), None
    vocabularies = {str(moments_folder): target.vocabulary}
    if bool(auxiliary_folder) != bool(documents_folder):
        raise UsageError("--auxiliary and --documents belong together; give both or neither")
    if auxiliary_folder:
        weak = PairSet(features, Sentences(features.manifest, documents_folder), auxiliary_folder, "auxiliary")
        vocabularies[str(auxiliary_folder)] = weak.vocabulary
    vocabulary = require_same("vocabulary", vocabularies)
    base = read_chosen(settings, name, chosen_folder)
    if bool(base) != bool(dev_folder):
        raise UsageError("a refit, and only that, learns from --dev-moments too; give --chosen and it, or neither")
    known = Trial(**base.details["training_log"]["chosen"]) if base else None
    dev_pairs = PairSet(features, sentences, dev_folder, "dev") if base else None
    source = JoinedPairs(target, dev_pairs) if base else target
    sides = [(str(moments_folder), source.encoders)] + ([(str(auxiliary_folder), weak.encoders)] if weak else [])
    origins = join_origins((file, encoders_of(file, known, model.encoders)) for file, known in sides)
    learned = {"encoders": origins, "vocabulary": vocabulary}
    if base:
        require_same_origins({str(output): learned, str(chosen_folder): base.details})
    restriction = Restriction(model.encoders)
    folded = FoldedMoments(source, scheduler)
    sets = make_sets(
        folded, range(source.n_folds),
        FoldedMoments(weak, scheduler) if weak else None, range(weak.n_folds if weak else 0), restriction,
    )  # fmt: skip
    dev = read_split(features, sentences, model.encoders, "dev", model.fit.dev_images)

    task = Task(
        model.training,
        folded.view.select(model.encoders),
        sets,
        restriction.pairs(dev),
        model.fit,
        model.transfer,
        model.settings,
        model.seed,
        progress=lambda trials: tqdm(trials, desc=f"fit {name}", unit="trial", disable=None),
        device=find_gpu(settings.device),
        chosen=known,
    )
    tuned = registered.fit(task)
    tuned = tuned.refitted(known) if base else tuned

    inputs = {f"target/{number}": digest for number, digest in target.inputs.items()}
    inputs |= {f"auxiliary/{number}": digest for number, digest in (weak.inputs if weak else {}).items()}
    if base:
        inputs |= {"chosen": base.fingerprint} | {f"dev/{n}": digest for n, digest in dev_pairs.inputs.items()}
    write_parameters(
        output / "model.safetensors",
        MODEL,
        tuned.model.tensors(),
        settings=tuned.model.settings(),
        fingerprint=fingerprint("model", 4, model.hyperparameters, inputs),
        details={
            "model": name,
            "refits": settings.refitted(name),
            "registered": model.spec.name,
            "hyperparameters": model.hyperparameters,
            "named": model.named,
            "training": model.training,
            **learned,
            "inputs": inputs,
            "training_log": tuned.log(),
        },
    )
    log = logging.getLogger(__name__)
    log.info("%s on %d pairs, chosen on %d dev images: %s", name, sets.target.n, len(dev.image_id), tuned.chosen)
    log.info("mean correlation %.3f in training", tuned.train_correlations.mean())
    if tuned.dev_correlations is not None:
        log.info("mean correlation %.3f held out", tuned.dev_correlations.mean())
