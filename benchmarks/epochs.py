"""Measures the training of registered models: CPU seconds per step and per epoch, and the slowest operations of torch.

    python benchmarks/epochs.py [--models lstm ncca-refined] [--steps 30]

The pairs are synthetic and have the shapes of Flickr8k: images of 4,096 dimensions with 20 regions, and five sentences
of about 11 words per image. The settings are the defaults. One measurement takes `--steps` steps. `epoch_of_30000` is
the estimated time of an epoch of 6,000 images, which have 30,000 sentences.
"""

import argparse
import json
from collections.abc import Callable
from contextlib import suppress
from time import process_time
from typing import Any, NamedTuple

from interleave import parse_options

from pipeline.compute import runtime

if __name__ == "__main__":  # A module that imports this file configures the runtime itself.
    runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen
import torch  # noqa: E402
from pairs import DIM_X  # noqa: E402
from scipy import sparse  # noqa: E402
from tree_shapes import draw_dependencies, draw_phrases  # noqa: E402

from pipeline.compute.precision import choose_precision, to_float32  # noqa: E402
from pipeline.config.loading import load  # noqa: E402
from pipeline.config.registry import model_spec  # noqa: E402
from pipeline.models.linear.cca import NormalizedCCA  # noqa: E402
from pipeline.models.linear.projection import Directions  # noqa: E402
from pipeline.models.linear.views import ImageView, TextView  # noqa: E402
from pipeline.models.neural.task import RegionView, TrainingPairs, TrainingTask  # noqa: E402
from pipeline.models.neural.training import CPU, Training  # noqa: E402
from pipeline.text.trees import pack  # noqa: E402
from pipeline.text.vocabulary import Tokens  # noqa: E402

MODELS = ("lstm", "ncca-refined", "dvsa", "hmlstm", "sdtrnn")
TERMS = 5000
SPACE = 512
IMAGES = 400
NOUN_PHRASE = 0
WORDS = 8000
WORD_DIM = 300
SENTENCES = 5
REGIONS = 20
VIEW = ImageView(("made-up",), (DIM_X,), ("l2",))


class RegionBlock(NamedTuple):
    features: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    offsets: np.ndarray


class SyntheticRegions:
    """Random features of REGIONS regions for each of n images, stored in half precision. All coordinates of boxes and
    all scores are 0.
    """

    def __init__(self, n: int) -> None:
        self.features = make_features(n * REGIONS).reshape(n, REGIONS, DIM_X)

    def __len__(self) -> int:
        return len(self.features)

    def packed(self, rows: np.ndarray) -> RegionBlock:
        count = len(rows) * REGIONS
        features = to_float32(self.features[rows].reshape(count, DIM_X))
        return RegionBlock(features, np.zeros((count, 4)), np.zeros(count), np.arange(0, count + 1, REGIONS))


class Enough(Exception):
    """An exception that ends a training after the steps that are timed."""


def make_features(n: int) -> np.ndarray:
    some = np.maximum(np.random.default_rng(0).standard_normal((min(n, 512), DIM_X), dtype=np.float32), 0)
    return np.resize(some.astype(np.float16), (n, DIM_X))


def make_start() -> NormalizedCCA:
    rng = np.random.default_rng(1)
    w, u = (rng.standard_normal((n, SPACE), dtype=np.float32) * np.float32(n**-0.5) for n in (DIM_X, TERMS))
    text = TextView(("tfidf",), (TERMS,), (True,), ((),), (1.0,))
    values = np.ones(SPACE, np.float32)
    return NormalizedCCA(VIEW, text, np.zeros(DIM_X, np.float32), np.zeros(TERMS, np.float32), Directions(w, u, values))


def make_sentences(form: str) -> Any:
    """Make SENTENCES random captions for each of IMAGES photos, in the `form` that a model reads: `vectors`,
    `dependency-trees`, `phrase-trees`, or tokens for any other form.
    """
    rng = np.random.default_rng(0)
    count = SENTENCES * IMAGES
    lengths = np.clip(rng.normal(11, 4, count).astype(int), 3, 35)
    if form == "vectors":
        ids = np.concatenate([rng.permutation(TERMS)[:length] for length in lengths])
        offsets = np.concatenate([[0], lengths.cumsum()])
        return {"tfidf": sparse.csr_array((np.full(len(ids), 0.3, np.float32), ids, offsets), shape=(count, TERMS))}
    if form == "dependency-trees":
        return pack([draw_dependencies(rng, int(length)) for length in lengths])
    if form == "phrase-trees":
        return pack([_with_noun_phrases(rng, draw_phrases(rng, int(length))) for length in lengths])
    return Tokens(rng.integers(0, WORDS, lengths.sum()).astype(np.int32), np.concatenate([[0], lengths.cumsum()]))


def _with_noun_phrases(rng: np.random.Generator, nodes: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the nodes of a tree with other labels: a random third of the phrases gets the label 0 (noun phrase), and
    all other phrases and words get the label 1.

    A node has the number of its parent, the number of its word (-1 for a phrase), and its label.
    """
    return [(up, word, int(word >= 0 or rng.random() > 1 / 3)) for up, word, _ in nodes]


def make_task(name: str, device: torch.device = CPU, **settings: object) -> TrainingTask:
    known = load().model(name)
    sentences = make_sentences(known.spec.sentences)
    owners = np.repeat(np.arange(IMAGES), SENTENCES)
    regions = None if known.spec.regions == "none" else SyntheticRegions(IMAGES)
    features = {"made-up": make_features(IMAGES)}
    m = len(owners)
    pairs = TrainingPairs(features, sentences, owners, np.arange(m), regions)
    words = np.random.default_rng(0).standard_normal((WORDS + 1, WORD_DIM), dtype=np.float32) * np.float32(0.1)
    section = known.settings.model_copy(update={"epochs": 10**6, "patience": 10**6, **settings})
    return TrainingTask(
        VIEW, pairs, pairs, section, seed=0, precision=choose_precision(section.precision, device),
        train_words=True, words=words, start=make_start(),
        region_view=RegionView(VIEW, geometry=False), noun_phrase=NOUN_PHRASE, device=device,
    )  # fmt: skip


def make_loop(name: str, device: torch.device = CPU, **settings: object) -> Training:
    """Return the training of the registered model `name`, which has not begun. The training does not evaluate the dev
    split, and takes 0 as the dev score of each epoch. `settings` replace settings of the model.
    """
    loop = model_spec(name).load().trainer(make_task(name, device, **settings))
    loop.judge = lambda: 0.0
    return loop


def runner(loop: Training, steps: int) -> Callable[[], None]:
    """Return a function without arguments. Each call of the function continues the training `loop` for `steps`
    batches.
    """

    def run() -> None:
        goal = loop.steps_done + steps

        def after_step(loop: Training) -> None:
            if loop.steps_done >= goal:
                raise Enough

        with suppress(Enough):
            loop.run(after_step)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--steps", type=int, default=30)
    options = parse_options(parser, globals(), steps=1, models=["lstm", "ncca-refined"], TERMS=200, SPACE=8, IMAGES=140)
    for name in options.models:
        loop = make_loop(name)
        run = runner(loop, options.steps)
        run()
        started = process_time()
        run()
        seconds = (process_time() - started) / options.steps
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            run()
        epoch = seconds * 30_000 / loop.schedule.batch_size
        line = {"name": f"training {name}", "seconds_per_step": seconds, "epoch_of_30000": epoch}
        print(json.dumps({**line, "precision": str(make_task(name).precision).removeprefix("torch.")}), flush=True)
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=16))


if __name__ == "__main__":
    main()
