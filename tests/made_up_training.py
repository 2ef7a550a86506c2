"""A small collection ready for `fit` and `train`: features, tf-idf and tokens of all shards, with a dev split."""

from pathlib import Path

import numpy as np
from made_up import CONFIG as COLOUR
from made_up import THINGS, by_colour, features_of, make_run, make_stage, write_config

from pipeline.storage.features import write_features
from pipeline.storage.manifest import Manifest
from pipeline.storage.parameters import MODEL, Parameters, read_parameters
from pipeline.storage.shards import shard_path

CONFIG = {
    **COLOUR,
    "tokens": {"min_count": 1},
    "word_vectors": {"dim": 16},
    "train_defaults": {
        "dimensions": 16, "batch_size": 16, "epochs": 20, "patience": 20, "learning_rate": 0.02, "dropout": 0.0,
        "precision": "float32", "checkpoint_seconds": 0,
    },
}  # fmt: skip


def make_trainable(folder: Path) -> Path:
    """A run of 48 images in five shards in `folder`; every third image is of the dev split."""
    manifest = Manifest(make_run(folder, images=48, held_out="dev") / "manifest")
    write_config(folder, CONFIG)
    build_tokens(folder)
    for number in range(manifest.n_shards):
        rows = manifest.shard(number)
        ids = np.arange(rows.first_image, rows.last_image)
        features = np.concatenate([features_of(THINGS[i % 8])["colour"] for i in ids])
        features += np.random.default_rng(number).normal(0, 0.1, features.shape).astype(np.float32)
        write_features(shard_path(folder / "features/colour", number), features, ids, by_colour(folder), {})
    make_stage("encode_sentences", folder)
    return folder


def build_tokens(run: Path) -> None:
    """The vocabulary of words, and the sentences over it."""
    make_stage("build_token_vocabulary", run)
    make_stage("encode_tokens", run)


def encode_parses(run: Path) -> None:
    """The parses as trees over the words that `build_tokens` finds."""
    build_tokens(run)
    make_stage("build_label_table", run)
    make_stage("encode_trees", run)


def train(run: Path, model: str, *settings: dict) -> Path:
    """The folder of `model` after `train`; the run has the configuration CONFIG with `settings` over it from now on."""
    write_config(run, CONFIG, {"models": [model]}, *settings)
    make_stage("train", run, model)
    return run / "models" / model


def add_moments(run: Path, settings: dict) -> None:
    """The configuration CONFIG with `settings` over it, and the moments of both splits."""
    write_config(run, CONFIG, settings)
    for pairs in ("target", "dev"):
        make_stage("accumulate", run, pairs)


def fit(run: Path, model: str, *more: object) -> None:
    """`model` by the run's configuration, in `run / models`."""
    make_stage("fit", run, model, *more)


def read_model(run: Path, model: str) -> Parameters:
    return read_parameters(run / "models" / model / "model.safetensors", MODEL)
