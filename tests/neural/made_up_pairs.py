"""A small collection whose sentences say what their image shows, for every kind of neural model."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from made_up_settings import text_view
from made_up_trees import NOUN_PHRASE, Shown, grow
from scipy import sparse

from pipeline.config.models import TrainSettings
from pipeline.config.registry import import_place, model_spec
from pipeline.models.linear.projection import Directions
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.task import RegionView, TrainingPairs, TrainingTask
from pipeline.models.neural.training import Checkpoint
from pipeline.models.neural.word_towers import WordStart
from pipeline.storage.parameters import Checkpoints
from pipeline.text.sequences import Tokens
from pipeline.text.wordvectors import random_vectors

VIEW = ImageView(("one", "two"), (10, 6), ("sqrt", "l2"))
WORDS = 20
SETTINGS = {
    "dimensions": 16, "loss": "info-nce", "score": "cosine", "negatives": "all", "reduction": "mean", "contrastive": 8,
    "margin": 0.2, "temperature": 0.1,
    "optimiser": "adam", "learning_rate": 0.01, "decay": 0.9, "weight_decay": 0.0, "penalty": 0.0,
    "averaging": 0.0, "dropout": 0.1, "encoder_dropout": 0.2, "clip": 2.0,
    "batch_size": 32, "epochs": 4, "patience": 4, "precision": "float32", "checkpoint_seconds": 0,
}  # fmt: skip


OWN = {
    "rnn": {"activation": "tanh", "bias": True},
    "lstm": {"peepholes": False, "forget_bias": 0.0},
    "ctrnn": {"activation": "tanh"},
    "dtrnn": {"activation": "tanh"},
    "sdtrnn": {"activation": "tanh", "rare": 100},
    "hmlstm": {
        "simplified_epochs": 1,
        "correspondence_epochs": 2,
        "phrase_share": 0.3,
        "phrase_contrasts": "other-images",
        "forget_bias": 0.0,
    },
    "ncca-recurrent": {"hidden": 6},
}
"""Settings that only these models have."""


class Start:
    """A stand-in for a fitted ncca: directions that carry the signal, badly scaled."""

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        w, u = rng.standard_normal((16, 16)), 7 * rng.standard_normal((WORDS, 16))
        self.view, self.text, self.eigenvalue_power = VIEW, text_view(WORDS), 1
        self.directions = Directions(
            w.astype(np.float32), u.astype(np.float32), np.linspace(1, 0.1, 16, dtype=np.float32)
        )
        self.mean_x, self.mean_y = np.full(16, 0.2, np.float32), np.full(WORDS, 0.1, np.float32)


def make_start() -> WordStart:
    """Every word but the last one known by one term of its own."""
    return WordStart(Start(), sparse.csr_array(np.vstack([np.eye(WORDS), np.zeros(WORDS)]).astype(np.float32)))


def make_task(view: str, train: int = 300, dev: int = 60, seed: int = 0, **settings: object) -> TrainingTask:
    """A task on images of four kinds of thing each, named in their two sentences in any order, in the form `view`."""
    rng = np.random.default_rng(0)
    n = train + dev
    things = np.stack([rng.permutation(WORDS - 1)[:4] for _ in range(n)])
    shown = np.zeros((n, WORDS - 1))
    shown[np.arange(n)[:, None], things] = 1
    looks = {name: rng.random((WORDS - 1, dim)) ** 3 for name, dim in (("one", 10), ("two", 6))}
    features = {name: (shown @ look).astype(np.float16) for name, look in looks.items()}
    ids = np.concatenate([rng.permutation(row) for row in np.repeat(things, 2, axis=0)]).astype(np.int32)
    tokens = Tokens(ids, np.arange(0, len(ids) + 1, 4))
    matrix = sparse.csr_array((np.full(len(ids), 0.5, np.float32), ids, tokens.offsets), shape=(2 * n, WORDS))
    sentences = {"tokens": lambda: tokens, "vectors": lambda: None}.get(view, lambda: grow(view, tokens))()
    look = np.hstack(list(looks.values()))
    regions = np.concatenate([(shown @ look)[:, None], look[things]], axis=1).astype(np.float32)
    owners = np.repeat(np.arange(n), 2)
    pairs = {}
    for name, first, last in (("train", 0, train), ("dev", train, n)):
        rows = np.flatnonzero((owners >= first) & (owners < last))
        own = {"tfidf": matrix[rows]} if view == "vectors" else sentences.take(rows)
        block = {encoder: values[first:last] for encoder, values in features.items()}
        pairs[name] = TrainingPairs(block, own, owners[rows] - first, rows, regions=Shown(regions[first:last]))
    chosen = TrainSettings(**{**SETTINGS, **settings})
    return TrainingTask(
        VIEW, **pairs, settings=chosen, seed=seed, precision=torch.float32, train_words=True,
        words=random_vectors(WORDS, 16, 0.5, seed), start=Start() if view == "vectors" else None,
        region_view=RegionView(VIEW, geometry=False), noun_phrase=NOUN_PHRASE,
    )  # fmt: skip


def make_task_of(model: str, **settings: object) -> TrainingTask:
    """A task in the form that the registered `model` takes."""
    spec = model_spec(model)
    own = OWN.get(model, {}) | {name: settings.pop(name) for name in OWN.get(model, {}) if name in settings}
    task = make_task(spec.sentences, **settings)
    if model == "ncca-recurrent":
        task = replace(task, start=make_start())
    return replace(task, settings=import_place(spec.section)(**task.settings.model_dump() | own))


def through_a_file(checkpoint: Checkpoint, folder: Path) -> Checkpoint:
    """What the next process finds of it."""
    checkpoints = Checkpoints(folder, "fingerprint", 0)
    checkpoints.offer(lambda: vars(checkpoint).values())
    found = checkpoints.latest()
    return Checkpoint(found.tensors, found.settings)
