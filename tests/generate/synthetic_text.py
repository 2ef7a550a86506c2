"""A small synthetic collection for tests of generators. Each image shows one of four things, and its two sentences name
this thing."""

from functools import cache

import numpy as np
import torch

from pipeline.config.results import LogBilinearSettings, NearestSettings, RecurrentSettings
from pipeline.generate.generator import Material
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.task import TrainingPairs
from pipeline.text.tokens import TermSettings
from pipeline.text.vocabulary import Vocabulary, build_vocabulary, encode_tokens

THINGS = ("dog", "cat", "boat", "tree")
VIEW = ImageView(("eyes",), (6,), ())
OPTIMISATION = {
    "optimiser": "rmsprop", "learning_rate": 0.02, "decay": 0.9, "weight_decay": 0.0, "averaging": 0.0, "clip": 5.0,
    "batch_size": 16, "epochs": 4, "patience": 4, "precision": "float32", "checkpoint_seconds": 0,
}  # fmt: skip
RECURRENT = {**OPTIMISATION, "cell": "lstm", "dimensions": 12, "word_dim": 8, "dropout": 0.0}
LOG_BILINEAR = {
    **OPTIMISATION,
    "context": 3,
    "dimensions": 8,
    "factors": 10,
    "ahead": 1,
    "dropout": 0.0,
    "gate_bias": True,
}


def make_sentences(count: int) -> tuple[list[str], np.ndarray]:
    """Make two sentences for each of `count` images. Return the sentences and the numbers of their images, (2 count,).
    Image i shows the thing THINGS[i % 4], which both of its sentences name."""
    texts = [
        text for i in range(count) for text in (f"a {THINGS[i % 4]} is here", f"one big {THINGS[i % 4]} by the road")
    ]
    return texts, np.repeat(np.arange(count), 2)


@cache
def make_vocabulary() -> Vocabulary:
    settings = TermSettings(False, (), 1)
    return build_vocabulary(make_sentences(4)[0], settings, size=50, min_count=1, idf=False, normalise=False)


def make_pairs(count: int, seed: int) -> TrainingPairs:
    texts, owners = make_sentences(count)
    features = np.eye(6, dtype=np.float32)[np.arange(count) % 4]
    features += 0.05 * np.random.default_rng(seed).standard_normal(features.shape, dtype=np.float32)
    return TrainingPairs({"eyes": features}, encode_tokens(texts, make_vocabulary()), owners, np.arange(len(owners)))


class ThingSpace:
    """A simple replacement of JointSpace. All images that show the same thing have the same unit vector (4,), and
    sentences that name this thing have nearly the same vector."""

    fingerprint = "space"
    vocabulary = make_vocabulary()

    def images(self, features):
        return np.eye(4, dtype=np.float32)[features["eyes"][:, :4].argmax(axis=1)]

    def sentences(self, texts):
        counts = np.array([[text.split().count(thing) for thing in THINGS] for text in texts], np.float32) + 1e-3
        return counts / np.linalg.norm(counts, axis=1, keepdims=True)

    @property
    def words(self):
        return self.sentences(self.vocabulary.terms)


def make_material(settings: dict, **more: object) -> Material:
    kind = NearestSettings if "by" in settings else RecurrentSettings if "cell" in settings else LogBilinearSettings
    pairs = {"train": make_pairs(48, 0), "dev": make_pairs(8, 1)}
    values = {
        "view": VIEW, **pairs, "texts": {"train": make_sentences(48)[0], "dev": make_sentences(8)[0]},
        "vocabulary": make_vocabulary(), "space": ThingSpace(), "extra": [], "tagger": None,
        "settings": kind(**settings),
        "seed": 0, "precision": torch.float32, "checkpoint": None, "after_step": lambda training: None,
    }  # fmt: skip
    return Material(**{**values, **more})
