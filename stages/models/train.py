"""`train`: a neural model from stored features and sentences, stopped where dev is best."""

from pathlib import Path
from typing import Any

import click

from stages import options


@click.command("train")
@click.argument("name", metavar="MODEL")
@options.manifest
@options.features
@options.tfidf
@options.tokens
@options.trees
@click.option("--labels", "labels_path", type=options.FILE, help="What `build-label-table` wrote, with --trees.")
@click.option("--vocabulary", "vocabulary_path", type=options.FILE, help="What `build-token-vocabulary` wrote.")
@options.regions
@click.option("--start", "start_folder", type=options.FOLDER, help="Folder of the model that this one starts from.")
@click.option(
    "--terms",
    "terms_path",
    type=options.FILE,
    help="What `build-vocabulary` wrote; for one that reads words and starts from an ncca.",
)
@click.option("--words", "words_path", type=options.FILE, help="What `train-word-vectors` wrote.")
@options.chosen
@options.config
@options.output("folder", "Folder of the model; a killed training goes on from the checkpoints in it.")
def command(
    name: str,
    manifest_folder: Path,
    features_root: Path,
    tfidf_folder: Path,
    tokens_folder: Path | None,
    trees_folder: Path | None,
    labels_path: Path | None,
    vocabulary_path: Path | None,
    regions_root: Path | None,
    start_folder: Path | None,
    terms_path: Path | None,
    words_path: Path | None,
    chosen_folder: Path | None,
    config_path: Path | None,
    output: Path,
) -> None:
    """Train MODEL: a registered neural model, one of the configuration's variants, or a refit of either."""
    import logging

    from pipeline import config
    from pipeline.device import find_device
    from pipeline.models.neural.task import Task, train
    from pipeline.precision import choose_precision
    from pipeline.specs.models import require_made_by
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.gather import Features
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.parameters import MODEL, digest_tensors, write_parameters
    from pipeline.storage.places import require_output
    from pipeline.storage.provenance import require_same_origins
    from pipeline.storage.rows import open_rows
    from stages.inputs import follow_training
    from stages.starts import read_chosen, read_start, read_word_start, read_words

    settings = config.load(config_path)
    require_output(output / "model.safetensors", {"model": name})
    model = settings.model(name)
    spec, own = require_made_by("train", model.spec.name), model.settings
    registered = spec.load()
    device = find_device(settings.device)
    precision = choose_precision(own.precision, device)
    base = read_chosen(settings, name, chosen_folder)
    if base:
        # Refit for dev's best number of epochs; dev is training data now, so there is no early stopping.
        own = own.model_copy(update={"epochs": base.details["training_log"]["best_epoch"] + 1, "patience": 0})
    features = Features(Manifest(manifest_folder), features_root)
    splits = {"train": ("train", "dev") if base else ("train",), "dev": ("dev",)}
    folders = {"tfidf": tfidf_folder, "tokens": tokens_folder, "trees": trees_folder}
    stored = open_rows(spec.sentences, features.manifest, folders)
    view, pairs = _read_pairs(features, splits, model.encoders, settings.image_view.normalise, stored)
    learned: dict[str, Any] = {"vocabulary": stored.vocabulary}
    learned["encoders"] = {name: rows.origin for name, rows in pairs["train"].features.items()}
    region_view, region_inputs = None, {}
    if spec.regions != "none":
        region_view, pairs, found = _read_regions(settings, features.manifest, splits, regions_root, pairs)
        region_inputs, learned["regions"] = found.fingerprints, found.encoders
    if base:
        require_same_origins({str(output): learned, str(chosen_folder): base.details})
    words, start, start_inputs = None, None, {}
    if spec.starts_from_terms:
        start, start_inputs = read_word_start(start_folder, spec.starts_from, terms_path, vocabulary_path, learned)
    elif spec.starts_from:
        start, start_inputs = read_start(start_folder, spec.starts_from, learned)
    else:
        words = read_words(settings, vocabulary_path, words_path, stored.vocabulary)

    task = Task(
        view, **pairs, settings=own, seed=model.seed, precision=precision,
        train_words=settings.word_vectors.train, words=words, start=start, region_view=region_view,
        noun_phrase=_read_noun_phrase(labels_path, stored) if spec.sentences == "phrase-trees" else None,
        device=device,
    )  # fmt: skip
    kept = own.model_dump(exclude={"checkpoint_seconds", "precision"})
    about = [{**model.hyperparameters, "settings": kept}, str(precision), view.steps]
    about += [] if region_view is None else [region_view.geometry]
    about += [] if words is None else [settings.word_vectors.train, digest_tensors({"words": words})]
    inputs = {"manifest": features.manifest.fingerprint, **stored.fingerprints, **start_inputs, **region_inputs}
    inputs |= {key: value for rows in pairs["train"].features.values() for key, value in rows.fingerprints.items()}
    inputs |= {"chosen": base.fingerprint} if base else {}
    digest = fingerprint("model", 4, about, inputs)
    with follow_training(name, own, output / "checkpoints", digest) as (checkpoint, after_step):
        trained = train(registered, task, checkpoint, after_step)
        write_parameters(
            output / "model.safetensors",
            MODEL,
            trained.model.tensors(),
            settings=trained.model.settings(),
            fingerprint=digest,
            details={
                "model": name,
                "refits": settings.refitted(name),
                "registered": spec.name,
                "hyperparameters": model.hyperparameters,
                "named": model.named,
                "training": model.training,
                **learned,
                "labels": getattr(stored, "labels", None),
                "inputs": inputs,
                "training_log": trained.log | ({"chosen": base.details["training_log"]["chosen"]} if base else {}),
            },
        )
    log = logging.getLogger(__name__)
    if base:
        log.info("%s on %d pairs, for %d epochs as %s", name, trained.log["pairs"], own.epochs, base.details["model"])
    else:
        log.info("%s on %d pairs: %s", name, trained.log["pairs"], trained.log["chosen"])


def _read_pairs(
    features: Any, splits: dict, encoders: tuple[str, ...], steps: tuple[str, ...], stored: Any
) -> tuple[Any, dict]:
    """The image view, and the pairs to train on and of dev, each of the `splits` that its name has."""
    from pipeline.models.linear.views import ImageView
    from pipeline.models.neural.task import Pairs
    from pipeline.storage.embeddings import split_pairs
    from pipeline.storage.rows import FeatureRows
    from pipeline.text.sequences import Tokens
    from pipeline.text.trees import Trees

    pairs = {}
    for use, names in splits.items():
        found = split_pairs(features.manifest, *names)
        rows = {name: FeatureRows(features, name, found.image_id) for name in encoders}
        if hasattr(stored, "matrix"):
            sentences = stored.matrix[found.sentence_id]
        elif hasattr(stored, "trees"):
            sentences = Trees(**stored.trees).take(found.sentence_id)
        else:
            sentences = Tokens(stored.ids, stored.offsets).take(found.sentence_id)
        pairs[use] = Pairs(rows, sentences, found.owners, found.sentence_id)
    return ImageView(tuple(encoders), tuple(block.shape[1] for block in rows.values()), tuple(steps)), pairs


def _read_noun_phrase(labels_path: Path | None, stored: Any) -> int:
    """The number that noun phrases have in the label table."""
    from pipeline.errors import UsageError
    from pipeline.storage.fingerprint import require_same
    from pipeline.storage.records import read_labels

    if labels_path is None:
        raise UsageError("this model takes phrase trees; give text/labels.json as --labels")
    table = read_labels(labels_path)
    require_same("label table", {str(labels_path): table["fingerprint"], "the trees": stored.labels})
    if "NP" not in table["phrases"]:
        raise UsageError(f"{labels_path} has no NP; parse with an engine that names noun phrases so")
    return table["phrases"].index("NP")


def _read_regions(settings: Any, manifest: Any, splits: dict, root: Path | None, pairs: dict) -> tuple[Any, dict, Any]:
    """The view of regions, the pairs with their regions, and those of the training pairs."""
    from dataclasses import replace

    from pipeline.errors import UsageError
    from pipeline.models.linear.views import ImageView
    from pipeline.models.neural.region_views import RegionView
    from pipeline.storage.embeddings import split_pairs
    from pipeline.storage.region_rows import RegionRows

    names = settings.regions.encoders
    if root is None or not names:
        raise UsageError("this model learns from regions; name regions.encoders, and give extract-regions' --regions")
    folders = {name: root / name for name in names}
    rows = {key: RegionRows(manifest, folders, split_pairs(manifest, *splits[key]).image_id) for key in pairs}
    features = ImageView(tuple(names), rows["train"].dims, tuple(settings.image_view.normalise))
    view = RegionView(features, settings.regions.geometry)
    return view, {key: replace(pairs[key], regions=rows[key]) for key in pairs}, rows["train"]
