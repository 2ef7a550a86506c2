"""The part of gpu.py that trains: steps of registered models on made-up pairs."""

import argparse
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from gpu_pixels import finished
from pairs import DIM_X

from pipeline.config.registry import import_place, model_spec
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.task import RegionView, TrainingPairs, TrainingTask
from pipeline.models.neural.training import Training
from pipeline.precision import choose_precision, to_float32
from pipeline.text.sequences import Tokens

WORDS, WORD_DIM, SENTENCES, REGIONS, WARM = 8000, 300, 5, 20, 10
SETTINGS = {
    "dimensions": 512, "loss": "info-nce", "score": "cosine", "negatives": "all", "reduction": "mean",
    "contrastive": 1, "resampled": "batch", "margin": 0.2, "temperature": 0.1, "optimiser": "adam",
    "learning_rate": 0.001, "decay": 1.0, "weight_decay": 0.0, "penalty": 0.0, "averaging": 0.98, "dropout": 0.3,
    "encoder_dropout": 0.0, "clip": 2.0, "batch_size": 100, "epochs": 10**6, "patience": 10**6, "precision": "auto",
    "checkpoint_seconds": 60,
}  # fmt: skip
OWN = {
    "lstm": {"peepholes": False},
    "dvsa": {"hidden": 300, "sum": "mean-words", "global_weight": 0, "element_clip": 5.0},
}


class TimedBlock(NamedTuple):
    features: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    offsets: np.ndarray


class MadeUpRegions:
    """REGIONS regions of each of n images, stored in halves."""

    def __init__(self, n: int) -> None:
        self.features = make_features(n * REGIONS).reshape(n, REGIONS, DIM_X)

    def __len__(self) -> int:
        return len(self.features)

    def packed(self, rows: np.ndarray) -> TimedBlock:
        count = len(rows) * REGIONS
        features = to_float32(self.features[rows].reshape(count, DIM_X))
        return TimedBlock(features, np.zeros((count, 4)), np.zeros(count), np.arange(0, count + 1, REGIONS))


def make_features(n: int) -> np.ndarray:
    some = np.maximum(np.random.default_rng(0).standard_normal((min(n, 512), DIM_X), dtype=np.float32), 0)
    return np.resize(some.astype(np.float16), (n, DIM_X))


def make_task(name: str, device: torch.device, images: int) -> TrainingTask:
    """Images with five sentences of about 11 words each."""
    rng, m, spec = np.random.default_rng(0), SENTENCES * images, model_spec(name)
    lengths = np.clip(rng.normal(11, 4, m).astype(int), 3, 35)
    sentences = Tokens(rng.integers(0, WORDS, lengths.sum()).astype(np.int32), np.concatenate([[0], lengths.cumsum()]))
    regions = MadeUpRegions(images) if name == "dvsa" else None
    view, owners = ImageView(("made-up",), (DIM_X,), ("l2",)), np.repeat(np.arange(images), SENTENCES)
    pairs = TrainingPairs({"made-up": make_features(images)}, sentences, owners, np.arange(m), regions)
    return TrainingTask(
        view, pairs, pairs, import_place(spec.section)(**SETTINGS, **OWN[name]), seed=0,
        precision=choose_precision("auto", device), train_words=True, region_view=RegionView(view, geometry=False),
        words=rng.standard_normal((WORDS + 1, WORD_DIM), dtype=np.float32) * np.float32(0.1), device=device,
    )  # fmt: skip


class Enough(Exception):
    """As many steps as are timed."""


def seconds_of(training: Training, steps: int, device: torch.device) -> float:
    """Of `steps` more steps, without those that warm up."""
    first, marks = training.steps_done + WARM, []

    def after_step(training: Training) -> None:
        if training.steps_done in (first, first + steps):
            finished(lambda: None, device)()
            marks.append(time.perf_counter())
        if len(marks) == 2:
            raise Enough

    with suppress(Enough):
        training.run(after_step)
    return marks[1] - marks[0]


def training(name: str, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    """Steps of the registered model `name`; dev is judged at no cost."""
    task = make_task(name, device, options.trained)
    loop = model_spec(name).load().trainer(task).training
    loop.judge, draw, drawing = lambda: 0.0, loop.draw, [0.0]

    def timed(rows: np.ndarray) -> Any:
        start = time.perf_counter()
        drawn = draw(rows)
        drawing[0] += time.perf_counter() - start
        return drawn

    loop.draw = timed
    before = loop.steps_done
    seconds = seconds_of(loop, options.steps, device)
    share = drawing[0] / (loop.steps_done - before) * options.steps / seconds
    busy = None
    if device.type == "cuda":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            seconds_of(loop, options.steps, device)
        computed = sum(times(profile)) / 1e6 / (options.steps + WARM)
        busy = computed * options.steps / seconds if computed else None
    return {
        "name": f"training {name}", "batch": SETTINGS["batch_size"], "seconds_per_step": seconds / options.steps,
        "busy": busy, "drawing": share, "precision": str(task.precision).removeprefix("torch."),
    }  # fmt: skip


def times(profile: torch.profiler.profile) -> Iterator[float]:
    """Microseconds of each kernel; torch before 2.4 called them otherwise."""
    for event in profile.key_averages():
        yield getattr(event, "self_device_time_total", None) or getattr(event, "self_cuda_time_total", 0)
