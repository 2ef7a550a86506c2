"""What a neural model is trained on and how: the same for every registered one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch

from pipeline.device import upload
from pipeline.models.linear.device_views import stack_on
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.losses import Objective
from pipeline.models.neural.region_views import RegionBlock, RegionView
from pipeline.models.neural.training import Checkpoint, Training, TrainingSchedule
from pipeline.settings.models import TrainSettings

BLOCK = 4096
"""Images whose features are summed at once."""


class RowSource(Protocol):
    """Features (n, dim) of one encoder: an array, or what gathers its rows from shards when they are asked for."""

    shape: tuple[int, ...]

    def __getitem__(self, rows: np.ndarray) -> np.ndarray: ...


class RegionSource(Protocol):
    """The regions of n images, gathered when they are asked for; `packed` gives those of `rows` in that order."""

    def __len__(self) -> int: ...

    def packed(self, rows: np.ndarray) -> RegionBlock: ...


@dataclass(frozen=True)
class TrainingPairs:
    """Images with their sentences: `features` encoder -> (n, dim), `sentences` m of them in the form that the model
    takes, `owners` (m,) the image row of each, `names` (m,) what errors call it. `regions` of the n images are there
    for the models that look at them."""

    features: Mapping[str, RowSource]
    sentences: Any
    owners: np.ndarray
    names: np.ndarray
    regions: RegionSource | None = None

    def images(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Features of the images `rows`."""
        return {name: block[rows] for name, block in self.features.items()}

    @property
    def n_images(self) -> int:
        return next(iter(self.features.values())).shape[0]


@dataclass(frozen=True)
class TrainingTask:
    """One training. `words` (V + 1, d) are the first word vectors, kept as they are where `train_words` is false;
    `start` is the model that a refinement begins with; `precision` the dtype of the heaviest products; `region_view`
    how regions are seen, where there are any; `noun_phrase` the label of noun phrases in trees; `device` where networks
    are trained.
    """

    view: ImageView
    train: TrainingPairs
    dev: TrainingPairs
    settings: TrainSettings
    seed: int
    precision: torch.dtype
    train_words: bool
    words: np.ndarray | None = None
    start: Any = None
    region_view: RegionView | None = None
    noun_phrase: int | None = None
    device: torch.device = torch.device("cpu")

    @property
    def objective(self) -> Objective:
        return Objective(**self.settings.model_dump(include={one.name for one in fields(Objective)}))

    @property
    def schedule(self) -> TrainingSchedule:
        kept = {one.name for one in fields(TrainingSchedule)}
        return TrainingSchedule(seed=self.seed, **self.settings.model_dump(include=kept))

    @cached_property
    def mean_image(self) -> np.ndarray:
        """(D,) float32, the mean of the training images' view."""
        total, n = np.zeros(self.view.dim), self.train.n_images
        for begin in range(0, n, BLOCK):
            total += self.view.stack(self.train.images(np.arange(begin, min(begin + BLOCK, n)))).sum(
                axis=0, dtype=float
            )
        return (total / n).astype(np.float32)

    def images(self, rows: np.ndarray) -> torch.Tensor:
        """(k, D) the images of the training pairs `rows` (k,)."""
        return stack_on(self.view, self.train.images(self.train.owners[rows]), self.device)

    def draw_images(self, rows: np.ndarray) -> torch.Tensor:
        """The same for a step of training, in which the mean stands for what `encoder_dropout` leaves out."""
        images, share, count = self.images(rows), self.settings.encoder_dropout, len(self.view.dims)
        if not share or count == 1:
            return images
        left_out = torch.rand(len(rows), count) < share
        left_out[torch.arange(len(rows)), torch.randint(count, (len(rows),))] = False
        columns = left_out.repeat_interleave(torch.tensor(self.view.dims), dim=1)
        return torch.where(upload(columns, self.device), upload(self.mean_image, self.device), images)


class Trainer(Protocol):
    """A registered model at the beginning of its training."""

    training: Training

    def finish(self) -> Any:
        """The registered model with the parameters that the training has left."""


@dataclass(frozen=True)
class Trained:
    """A trained model and its log, as JSON values."""

    model: Any
    log: Mapping[str, Any]


def train(
    model: Any, task: TrainingTask, checkpoint: Checkpoint | None, after_step: Callable[[Training], None]
) -> Trained:
    """Train the registered class `model` on `task`, from `checkpoint` where there is one.

    Raises as `Training.run` does.
    """
    begun: Trainer = model.begin(task)
    if checkpoint:
        begun.training.resume(checkpoint)
    history = begun.training.run(after_step)
    best = begun.training.progress.best_epoch
    log = {
        "criterion": "sum of recall@1, @5 and @10 of both directions on dev",
        "pairs": len(task.train.owners),
        "best_epoch": best,
        "chosen": {"recall_sum": history[best].get("dev")},
        "history": history,
    }
    return Trained(begun.finish(), log)
