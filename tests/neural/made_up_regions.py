"""A small collection whose images have regions: what each sentence names is in one region or another."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from made_up_pairs import SETTINGS, VIEW, WORDS, make_start
from made_up_trees import Block, grow

from pipeline.config.models import RecurrentTrainSettings
from pipeline.config.registry import import_place, model_spec
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.task import RegionView, TrainingPairs, TrainingTask
from pipeline.models.neural.word_towers import RecurrentCCA
from pipeline.text.sequences import Tokens
from pipeline.text.wordvectors import random_vectors

REGION_VIEW = RegionView(ImageView(("one", "two"), (10, 6), ("l2",)), geometry=True)
COMMON = {"sum": "words", "global_weight": 0.0, "element_clip": None}
OWN = {
    "dvsa": {"hidden": 12},
    "deptree": {"least_share": 0.01},
    "defrag": {"least_share": 0.01, "instance_weight": 1.0, "sum": "positive"},
    "fragments": {},
}
"""Settings that only these models have."""


def draw_boxes(count: int) -> np.ndarray:
    """(count, 4) of the whole of an image of 30 by 20 pixels, and of parts of it."""
    boxes = np.sort(np.random.default_rng(count).random((count, 2, 2)) * [30, 20], axis=1).reshape(-1, 4)
    boxes[:1] = 0, 0, 30, 20
    return boxes


class MadeUpRegions:
    """Regions of n images, each a list of rows (k, 16), and where in its image each of k regions lies."""

    def __init__(self, images: list[np.ndarray], draw: Callable[[int], np.ndarray] = draw_boxes) -> None:
        self.images, self.draw = images, draw

    def __len__(self) -> int:
        return len(self.images)

    def packed(self, rows: np.ndarray) -> Block:
        chosen = [self.images[row] for row in rows]
        lengths = [len(image) for image in chosen]
        features = np.concatenate([*chosen, np.zeros((0, 16))]).astype(np.float32)
        boxes = np.concatenate([*map(self.draw, lengths), np.zeros((0, 4))])
        return Block(features, boxes, np.zeros(len(features)), np.cumsum([0, *lengths]))


def make_task(model: str = "dvsa", train: int = 150, dev: int = 40, seed: int = 0, **settings: object) -> TrainingTask:
    """For the registered `model`: images of four kinds of thing each, as the whole image, then one region a thing; two
    sentences name them all."""
    rng = np.random.default_rng(0)
    looks = rng.random((WORDS - 1, 16)) ** 3
    things = np.stack([rng.permutation(WORDS - 1)[:4] for _ in range(train + dev)])
    ids = np.concatenate([rng.permutation(row) for row in np.repeat(things, 2, axis=0)]).astype(np.int32)
    tokens, owners = Tokens(ids, np.arange(0, len(ids) + 1, 4)), np.repeat(np.arange(train + dev), 2)
    spec = model_spec(model)
    sentences = grow(spec.sentences, tokens) if spec.trees else tokens
    whole = looks[things].mean(axis=1)
    regions = [np.vstack([whole[i], looks[row] + 0.05 * rng.random((4, 16))]) for i, row in enumerate(things)]
    pairs = {}
    for name, first, last in (("train", 0, train), ("dev", train, train + dev)):
        rows = np.flatnonzero((owners >= first) & (owners < last))
        features = {encoder: block[first:last] for encoder, block in VIEW.split(whole.astype(np.float16)).items()}
        own = MadeUpRegions(regions[first:last])
        pairs[name] = TrainingPairs(features, sentences.take(rows), owners[rows] - first, rows, own)
    chosen = import_place(spec.section)(**{**SETTINGS, "patience": 9, **COMMON, **OWN[model], **settings})
    task = TrainingTask(
        VIEW, **pairs, settings=chosen, seed=seed, precision=torch.float32, train_words=True,
        words=random_vectors(WORDS, 16, 0.5, seed), start=make_start(), region_view=REGION_VIEW,
    )  # fmt: skip
    if not spec.starts_from:
        return task
    recurrent = RecurrentTrainSettings(**{**SETTINGS, "hidden": 12})
    return replace(task, start=RecurrentCCA.untrained(replace(task, settings=recurrent)))
