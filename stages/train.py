"""`train`: a neural model from stored features and sentences, stopped where dev is best."""

from pathlib import Path
from typing import Any

import click

from stages import options


@click.command("train")
@click.argument("row")
@options.manifest
@options.features
@options.tfidf
@options.tokens
@click.option("--vocabulary", "vocabulary_path", type=options.FILE, help="What `build-token-vocabulary` wrote.")
@click.option("--start", "start_folder", type=options.FOLDER, help="Folder of the ncca that ncca-refined starts from.")
@options.config
@options.output("folder", "Folder of the model; a killed training goes on from the checkpoints in it.")
def command(
    row: str,
    manifest_folder: Path,
    features_root: Path,
    tfidf_folder: Path,
    tokens_folder: Path | None,
    vocabulary_path: Path | None,
    start_folder: Path | None,
    config_path: Path | None,
    output: Path,
) -> None:
    """Train ROW: a registered neural model, or one of the configuration's variants."""
    import logging

    import torch
    from tqdm import tqdm

    from pipeline import config
    from pipeline.models import trained_class
    from pipeline.neural.task import Settings, Task, train
    from pipeline.neural.training import Checkpoint, Training
    from pipeline.precision import choose_precision
    from pipeline.storage.checkpoints import Checkpoints
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.gather import Features
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.parameters import MODEL, digest_tensors, write_parameters
    from pipeline.storage.rows import open_rows

    settings = config.load(config_path)
    variant = settings.row(row)
    model, own = trained_class(variant.model), settings.own_section(variant.model)
    seconds, precision = own.pop("checkpoint_seconds"), choose_precision(own.pop("precision"), torch.device("cpu"))
    features = Features(Manifest(manifest_folder), features_root)
    stored = open_rows(model.sentence_view, features.manifest, {"tfidf": tfidf_folder, "tokens": tokens_folder})
    view, pairs = _read_pairs(features, variant.encoders, settings.image_view.normalise, stored)
    words = _read_words(settings, vocabulary_path, stored.vocabulary) if model.sentence_view == "tokens" else None
    start, start_inputs = _read_start(start_folder, stored.vocabulary)

    task = Task(
        view, **pairs, settings=Settings(**own), seed=settings.seed, precision=precision,
        train_words=settings.word_vectors.train, words=words, start=start,
    )  # fmt: skip
    about = [variant.model_dump(), own, str(precision), view.steps, settings.seed]
    about += [] if words is None else [settings.word_vectors.train, digest_tensors({"words": words})]
    inputs = {"manifest": features.manifest.fingerprint, **stored.fingerprints, **start_inputs}
    inputs |= {key: value for rows in pairs["train"].features.values() for key, value in rows.fingerprints.items()}
    digest = fingerprint("model", 2, about, inputs)
    checkpoints = Checkpoints(output / "checkpoints", digest, seconds)
    found = checkpoints.latest()

    with tqdm(desc=f"train {row}", unit="batch", disable=None) as bar:

        def after_step(training: Training) -> None:
            bar.total, bar.n = training.steps * own["epochs"], training.steps_done
            bar.update(0)
            checkpoints.offer(lambda: vars(training.checkpoint()).values())

        trained = train(model, task, Checkpoint(found.tensors, found.settings) if found else None, after_step)

    write_parameters(
        output / "model.safetensors",
        MODEL,
        trained.model.tensors(),
        settings=trained.model.settings(),
        fingerprint=digest,
        details={
            "row": row,
            "registered": variant.model,
            "training": variant.training,
            "vocabulary": stored.vocabulary,
            "inputs": inputs,
            "training_log": trained.log,
        },
    )
    checkpoints.clear()
    best, n = trained.log["chosen"], trained.log["pairs"]
    logging.getLogger(__name__).info("%s on %d pairs: %s", row, n, best)


def _read_pairs(features: Any, encoders: tuple[str, ...], steps: tuple[str, ...], stored: Any) -> tuple[Any, dict]:
    """The image view, and the pairs of train and dev."""
    from pipeline.linear.views import ImageView
    from pipeline.neural.task import Pairs
    from pipeline.storage.embeddings import split_pairs
    from pipeline.storage.rows import FeatureRows
    from pipeline.text.sequences import Tokens

    pairs = {}
    for split in ("train", "dev"):
        found = split_pairs(features.manifest, split)
        rows = {name: FeatureRows(features, name, found.image_id) for name in encoders}
        if hasattr(stored, "matrix"):
            sentences = stored.matrix[found.sentence_id]
        else:
            sentences = Tokens(stored.ids, stored.offsets).take(found.sentence_id)
        pairs[split] = Pairs(rows, sentences, found.owners, found.sentence_id)
    return ImageView(tuple(encoders), tuple(block.shape[1] for block in rows.values()), tuple(steps)), pairs


def _read_words(settings: Any, vocabulary_path: Path | None, expected: str) -> Any:
    """The first word vectors, (V + 1, d): from the configured file, or drawn."""
    from pipeline.errors import InputError, UsageError
    from pipeline.neural.sentences import INITIAL
    from pipeline.storage.atomic import read_json
    from pipeline.storage.fingerprint import require_same
    from pipeline.text.wordvectors import random_vectors, read_binary_vectors, read_text_vectors

    if vocabulary_path is None:
        raise UsageError("this model takes sentences word by word; give text/tokens.json as --vocabulary")
    value, chosen = read_json(vocabulary_path), settings.word_vectors
    require_same("vocabulary", {str(vocabulary_path): value["fingerprint"], "the token shards": expected})
    if chosen.file is None:
        return random_vectors(len(value["terms"]), chosen.dim, INITIAL, settings.seed)
    path = Path(settings.weights_root) / chosen.file
    read = read_text_vectors if chosen.format == "text" else read_binary_vectors
    try:
        with open(path, "rb") as stream:
            return read(stream, str(path), value["terms"]).table(value["terms"], settings.seed)
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror}); correct word_vectors.file or weights_root") from error


def _read_start(folder: Path | None, vocabulary: str) -> tuple[Any, dict[str, str]]:
    """The ncca in `folder` and its fingerprint; nothing where there is no folder."""
    from pipeline.errors import UsageError
    from pipeline.models import model_class
    from pipeline.storage.fingerprint import require_same
    from pipeline.storage.parameters import MODEL, read_parameters

    if folder is None:
        return None, {}
    parameters = read_parameters(folder / "model.safetensors", MODEL)
    if parameters.details["registered"] != "ncca":
        raise UsageError(f"{folder} holds {parameters.details['registered']}; give the folder of an ncca as --start")
    require_same("vocabulary", {str(folder): parameters.details["vocabulary"], "the sentences": vocabulary})
    start = model_class(parameters.details["registered"]).from_parts(parameters.settings, parameters.tensors)
    return start, {"start": parameters.fingerprint}
