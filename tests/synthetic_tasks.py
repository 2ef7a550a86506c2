"""Functions that make small synthetic collections, whose sentences describe their images, as training tasks for every
registered model.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy import sparse
from small_settings import TRANSFER, make_grid, own_settings, text_view

from pipeline.config.models import RecurrentTrainSettings, TrainSettings
from pipeline.config.registry import import_object, model_spec
from pipeline.models.linear.accumulation import MomentsAccumulator
from pipeline.models.linear.cca import NormalizedCCA
from pipeline.models.linear.moments import Moments
from pipeline.models.linear.projection import Directions, WordStart
from pipeline.models.linear.training import FitTask, Sets
from pipeline.models.linear.tuning import PairArrays
from pipeline.models.linear.views import ImageView, ViewBlock
from pipeline.models.neural.task import RegionView, TrainingPairs, TrainingTask
from pipeline.models.neural.training import Checkpoint
from pipeline.models.neural.word_towers import RecurrentCCA
from pipeline.storage.parameters import Checkpoints
from pipeline.text.trees import Trees, pack
from pipeline.text.vocabulary import Tokens
from pipeline.text.wordvectors import random_vectors

FIT_VIEW = ImageView(("one", "two"), (10, 6), (("sqrt", "l2"), ("l2", "times 1.5")))
VIEW = ImageView(("one", "two"), (10, 6), ("sqrt", "l2"))
REGION_VIEW = RegionView(ImageView(("one", "two"), (10, 6), ("l2",)), geometry=True)
TERMS = WORDS = 20
NOUN_PHRASE = 0
SETTINGS = {
    "dimensions": 16, "loss": "info-nce", "score": "cosine", "negatives": "all", "reduction": "mean", "contrastive": 8,
    "margin": 0.2, "temperature": 0.1,
    "optimiser": "adam", "learning_rate": 0.01, "decay": 0.9, "weight_decay": 0.0, "penalty": 0.0,
    "averaging": 0.0, "dropout": 0.1, "encoder_dropout": 0.2, "clip": 2.0,
    "batch_size": 32, "epochs": 4, "patience": 4, "precision": "float32", "checkpoint_seconds": 0,
}  # fmt: skip
SETS = {"sum": "words", "global_weight": 0.0, "element_clip": None}
OWN = {
    "rnn": {"activation": "tanh", "bias": True},
    "lstm": {"peepholes": False, "forget_bias": 0.0},
    "ctrnn": {"activation": "tanh"},
    "dtrnn": {"activation": "tanh"},
    "sdtrnn": {"activation": "tanh", "rare": 100},
    "hmlstm": {
        "simplified_epochs": 1, "correspondence_epochs": 2, "phrase_share": 0.3, "phrase_contrasts": "other-images",
        "forget_bias": 0.0,
    },
    "ncca-recurrent": {"hidden": 6},
    "dvsa": {**SETS, "hidden": 12},
    "deptree": {**SETS, "least_share": 0.01},
    "defrag": {**SETS, "least_share": 0.01, "instance_weight": 1.0, "sum": "positive"},
    "fragments": SETS,
    "projector": {"layers": 2, "hidden": 24, "structure": 1.0},
}  # fmt: skip
"""Mapping from a registered model to the settings that only this model has."""


# --- models that `fit` makes


def make_fit_pairs() -> PairArrays:
    """Make 460 images with features of the encoders `one` and `two`, and one to three sentences for each image.
    Features and `tfidf` vectors of sentences depend on the same five hidden numbers of an image.
    """
    rng = np.random.default_rng(0)
    hidden = rng.random((460, 5))
    features = {
        name: (hidden @ rng.random((5, dim)) ** 3).astype(np.float16) for name, dim in (("one", 10), ("two", 6))
    }
    owners = np.repeat(np.arange(460), rng.integers(1, 4, 460))
    noise = 0.2 * rng.standard_normal((len(owners), TERMS))
    words = np.maximum(hidden[owners] @ rng.standard_normal((5, TERMS)) + noise, 0)
    return PairArrays(features, {"tfidf": sparse.csr_array(words.astype(np.float32))}, owners)


def moments_of(block: ViewBlock) -> Moments:
    accumulator = MomentsAccumulator(FIT_VIEW.dim, TERMS, threads=1)
    accumulator.add(block.x, block.y, block.owners)
    return accumulator.result()


def make_fit_task(
    name: str,
    training: str = "target",
    view: ImageView = FIT_VIEW,
    change: Callable[[np.ndarray], np.ndarray] = lambda features: features,
) -> tuple[FitTask, PairArrays]:
    """Make a task for the registered linear model `name`, with the kind of training `training`. Return the task and its
    held-out pairs.

    The task has 250 target images, whose features of encoder `one` pass through `change`, and 150 auxiliary images,
    whose words are blurred. The last 60 images are held out.
    """
    features, sentences, owners = vars(make_fit_pairs()).values()

    def rows_of(first: int, last: int) -> np.ndarray:
        return np.flatnonzero((owners >= first) & (owners < last))

    def block(first: int, last: int, noise: float, change=lambda features: features) -> ViewBlock:
        rows = rows_of(first, last)
        words = sentences["tfidf"][rows].toarray() + noise * np.random.default_rng(1).random((len(rows), TERMS))
        stored = {name: part[first:last] for name, part in features.items()}
        x = view.stack({**stored, "one": change(stored["one"])})
        return ViewBlock(x, sparse.csr_array(words.astype(np.float32)), owners[rows] - first)

    target = block(0, 250, 0, change)
    weak = block(250, 400, 1)
    unseen = rows_of(400, 460)
    held_out = PairArrays(
        {name: part[400:] for name, part in features.items()}, {"tfidf": sentences["tfidf"][unseen]},
        owners[unseen] - 400,
    )  # fmt: skip
    sets = Sets(moments_of(target), moments_of(weak), lambda: [target], lambda: [weak])
    grid = make_grid([4], [0.01, 0.1], [0.01, 0.1], [0, 1])
    task = FitTask(training, view, text_view(TERMS), sets, held_out, grid, TRANSFER, own_settings(name), seed=0)
    return task, held_out


# --- models that `train` makes


class Block(NamedTuple):
    """The regions of several images, with the fields of the protocol RegionBlock."""

    features: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    offsets: np.ndarray


def draw_boxes(count: int) -> np.ndarray:
    """Draw `count` boxes (count, 4) in pixels, as x1, y1, x2, y2. The first box is a whole image of 30 by 20 pixels,
    and the other boxes are parts of it.
    """
    boxes = np.sort(np.random.default_rng(count).random((count, 2, 2)) * [30, 20], axis=1).reshape(-1, 4)
    boxes[:1] = 0, 0, 30, 20
    return boxes


class SyntheticRegions:
    """Regions of n images, from which `packed` takes a block. `images` has an array of features (k, 16) for the k
    regions of each image, and `draw` makes the boxes (k, 4) of k regions.
    """

    def __init__(self, images: list[np.ndarray], draw: Callable[[int], np.ndarray] = draw_boxes) -> None:
        self.images = images
        self.draw = draw

    def __len__(self) -> int:
        return len(self.images)

    def packed(self, rows: np.ndarray) -> Block:
        chosen = [self.images[row] for row in rows]
        lengths = [len(image) for image in chosen]
        features = np.concatenate([*chosen, np.zeros((0, 16))]).astype(np.float32)
        boxes = np.concatenate([*map(self.draw, lengths), np.zeros((0, 4))])
        return Block(features, boxes, np.ones(len(features), np.float32), np.cumsum([0, *lengths]))


def grow(view: str, tokens: Tokens) -> Trees:
    """Make a tree for each sentence of `tokens`, which must have four words a b c d. `view` is `dependency-trees` or
    `phrase-trees`.

    In dependency trees, b and c depend on a, and d depends on c. Phrase trees are (S (NP a) (X (NP b) c d)).
    """
    trees = []
    for a, b, c, d in map(np.ndarray.tolist, tokens):
        if view == "dependency-trees":
            trees.append([(-1, a, 0), (0, b, 1), (0, c, 2), (2, d, 1)])
        else:
            leaves = [(4, a, 2), (5, b, 2), (6, c, 2), (6, d, 2)]
            trees.append([*leaves, (7, -1, NOUN_PHRASE), (6, -1, NOUN_PHRASE), (7, -1, 1), (-1, -1, 1)])
    return pack(trees)


def make_fitted_ncca() -> NormalizedCCA:
    """Make an `ncca` as if it had been fitted, with 16 random directions in each view. The directions of the text view
    have a scale that is seven times too large.
    """
    rng = np.random.default_rng(5)
    w = rng.standard_normal((16, 16))
    u = 7 * rng.standard_normal((WORDS, 16))
    values = np.linspace(1, 0.1, 16, dtype=np.float32)
    directions = Directions(w.astype(np.float32), u.astype(np.float32), values)
    means = np.full(16, 0.2, np.float32), np.full(WORDS, 0.1, np.float32)
    return NormalizedCCA(VIEW, text_view(WORDS), *means, directions, eigenvalue_power=1)


def make_task(view: str, train: int = 300, dev: int = 60, seed: int = 0, **settings: object) -> TrainingTask:
    """Make a training task of `train` images and `dev` images, with sentences in the form `view`: `tokens`, `vectors`,
    or a form of trees. `settings` replace values of SETTINGS.

    Each image shows four kinds of things, which its two sentences name in any order. The first region of an image is
    the whole image, and each further region is one thing.
    """
    rng = np.random.default_rng(0)
    looks = rng.random((WORDS - 1, 16)) ** 3
    things = np.stack([rng.permutation(WORDS - 1)[:4] for _ in range(train + dev)])
    ids = np.concatenate([rng.permutation(row) for row in np.repeat(things, 2, axis=0)]).astype(np.int32)
    tokens = Tokens(ids, np.arange(0, len(ids) + 1, 4))
    owners = np.repeat(np.arange(train + dev), 2)
    matrix = sparse.csr_array((np.full(len(ids), 0.5, np.float32), ids, tokens.offsets), shape=(len(owners), WORDS))
    sentences = {"tokens": lambda: tokens, "vectors": lambda: None}.get(view, lambda: grow(view, tokens))()
    whole = looks[things].sum(axis=1)
    regions = [np.vstack([whole[i], looks[row] + 0.05 * rng.random((4, 16))]) for i, row in enumerate(things)]
    pairs = {}
    for name, first, last in (("train", 0, train), ("dev", train, train + dev)):
        rows = np.flatnonzero((owners >= first) & (owners < last))
        own = {"tfidf": matrix[rows]} if view == "vectors" else sentences.take(rows)
        features = {encoder: block[first:last] for encoder, block in VIEW.split(whole.astype(np.float16)).items()}
        pairs[name] = TrainingPairs(features, own, owners[rows] - first, rows, SyntheticRegions(regions[first:last]))
    return TrainingTask(
        VIEW, **pairs, settings=TrainSettings(**{**SETTINGS, **settings}), seed=seed, precision=torch.float32,
        train_words=True, words=random_vectors(WORDS, 16, 0.5, seed), noun_phrase=NOUN_PHRASE,
        start=make_fitted_ncca() if view == "vectors" else None, region_view=RegionView(VIEW, geometry=False),
    )  # fmt: skip


def make_task_of(model: str, **settings: object) -> TrainingTask:
    """Make a training task in the form that the registered `model` takes. `settings` replace values of SETTINGS and of
    OWN, and may set the numbers of images. Multi-vector models get fewer images by default.
    """
    spec = model_spec(model)
    own = OWN.get(model, {}) | {name: settings.pop(name) for name in OWN.get(model, {}) if name in settings}
    few = {"train": 150, "dev": 40, "patience": 9} if spec.multi_vector else {}
    task = make_task(spec.sentences, **{**few, **settings})
    if model == "ncca-recurrent":
        task = replace(task, start=make_start())
    if spec.multi_vector:
        task = replace(task, region_view=REGION_VIEW)
    if spec.starts_from == "ncca-recurrent":
        recurrent = replace(task, start=make_start(), settings=RecurrentTrainSettings(**{**SETTINGS, "hidden": 12}))
        task = replace(task, start=RecurrentCCA.untrained(recurrent))
    return replace(task, settings=import_object(spec.section)(**task.settings.model_dump() | own))


def make_start() -> WordStart:
    """Make the start of a recurrent model from `make_fitted_ncca`. Each of the 20 words is one term, and the unknown
    word has no term.
    """
    return WordStart(
        make_fitted_ncca(), sparse.csr_array(np.vstack([np.eye(WORDS), np.zeros(WORDS)]).astype(np.float32))
    )


def through_a_file(checkpoint: Checkpoint, folder: Path) -> Checkpoint:
    """Write a checkpoint into `folder`, read it again, and return the checkpoint from which the next process would
    resume.
    """
    checkpoints = Checkpoints(folder, "fingerprint", 0)
    checkpoints.offer(lambda: vars(checkpoint).values())
    found = checkpoints.latest()
    return Checkpoint(found.tensors, found.settings)


# --- trees of any form


def draw_dependencies(rng: np.random.Generator, lengths: list[int], words: int, labels: int) -> Trees:
    """Draw a dependency tree for each number of words in `lengths`. A word may depend on any other word, but there are
    no cycles. Words are numbers from 0 to `words`, and labels are numbers from 0 to `labels`.
    """
    trees = []
    for length in lengths:
        order = rng.permutation(length)
        parents = np.full(length, -1)
        for place in range(1, length):
            parents[order[place]] = order[rng.integers(max(0, place - 4), place)]
        trees.append([(int(p), int(rng.integers(words + 1)), int(rng.integers(labels + 1))) for p in parents])
    return pack(trees)


def draw_phrases(rng: np.random.Generator, lengths: list[int], words: int, labels: int) -> Trees:
    """Draw a phrase tree for each number of words in `lengths`. A phrase has one to four parts. Words are numbers from
    0 to `words`, and labels are numbers from 0 to `labels`.
    """
    trees = []
    for length in lengths:
        above = [-1] * length
        inner = list(range(length))
        while len(inner) > 1 or (length and len(above) == length):
            first = int(rng.integers(len(inner)))
            parts = inner[first : first + int(rng.integers(1, 5))]
            for part in parts:
                above[part] = len(above)
            inner[first : first + len(parts)] = [len(above)]
            above.append(-1)
        word = [int(rng.integers(words + 1)) if i < length else -1 for i in range(len(above))]
        trees.append([(above[i], word[i], int(rng.integers(labels + 1))) for i in range(len(above))])
    return pack(trees)
