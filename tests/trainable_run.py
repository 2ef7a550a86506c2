"""Functions that make a small run that is ready for `fit` and `train`, and that fit and train models in it. The run has
features, tf-idf vectors and tokens of all shards, and a dev split.
"""

from pathlib import Path

import numpy as np
from synthetic_run import CONFIG as COLOUR
from synthetic_run import THINGS, by_colour, features_of, make_run, make_stage, write_config

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
    """Make a run of 48 images in five shards in `folder`, and return `folder`. Every third image belongs to the split
    dev.
    """
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
    """Build the token vocabulary of the run, and encode the sentences with it."""
    make_stage("build_token_vocabulary", run)
    make_stage("encode_tokens", run)


def encode_parses(run: Path) -> None:
    """Build the token vocabulary and the label table of the run, and encode the parses of the run as trees with
    both.
    """
    build_tokens(run)
    make_stage("build_label_table", run)
    make_stage("encode_trees", run)


def train(run: Path, model: str, *settings: dict) -> Path:
    """Train `model` and return its folder. The configuration of the run becomes CONFIG, into which `settings` are
    merged.
    """
    write_config(run, CONFIG, {"models": [model]}, *settings)
    make_stage("train", run, model)
    return run / "models" / model


def add_moments(run: Path, settings: dict) -> None:
    """Make CONFIG, into which `settings` are merged, the configuration of the run. Compute the moments of the training
    pairs (`target`) and of dev.
    """
    write_config(run, CONFIG, settings)
    for pairs in ("target", "dev"):
        make_stage("accumulate", run, pairs)


def fit(run: Path, model: str, *more: object) -> None:
    """Fit `model` with the configuration of the run. The model is in `models` of the run. `more` are options of the
    stage.
    """
    make_stage("fit", run, model, *more)


def read_model(run: Path, model: str) -> Parameters:
    return read_parameters(run / "models" / model / "model.safetensors", MODEL)
