"""The data and settings of one training, the same for every registered model."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import nn

from pipeline.compute.device import upload
from pipeline.config.models import TrainSettings
from pipeline.models.joint_model import JointModel, RegionBlock, RegionSource, Settings
from pipeline.models.linear.device import stack_on
from pipeline.models.linear.projection import WordStart
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.losses import Objective
from pipeline.models.neural.training import (
    Checkpoint,
    LossFunction,
    TrainedModel,
    Training,
    TrainingPlan,
    TrainingSchedule,
)

Own = TypeVar("Own", bound=TrainSettings)
Value = TypeVar("Value")

WHOLE = np.sqrt(np.array([0, 0, 1, 1, 1, 1, 1], np.float32) / 5)
"""The geometry of a whole image."""


def required(value: Value | None) -> Value:
    """Return a value that is there for this model or generator, because its spec says that it needs it."""
    assert value is not None
    return value


def locate(boxes: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Describe `boxes` (total, 4) in pixels by (total, 7) float32 of unit length: the roots of x1 / w, y1 / h, x2 / w,
    y2 / h, of the shares of w and h that width and height are, and of the root of the area's share.

    The regions of image i are offsets[i] to offsets[i + 1], of which the first is the whole image, w by h pixels.
    """
    wholes = np.repeat(offsets[:-1], np.diff(offsets))
    corners = boxes.reshape(-1, 2, 2)
    low, high = corners[wholes].swapaxes(0, 1)
    shares = (corners - low[:, None]) / (high - low)[:, None]
    sides = shares[:, 1] - shares[:, 0]
    numbers = np.sqrt(np.hstack([shares.reshape(-1, 4), sides, np.sqrt(sides.prod(axis=1, keepdims=True))]))
    return (numbers / np.linalg.norm(numbers, axis=1, keepdims=True)).astype(np.float32)


@dataclass(frozen=True)
class RegionView:
    """The `features` of regions as an image view makes them and, with `geometry`, the seven values of `locate`."""

    features: ImageView
    geometry: bool

    @classmethod
    def from_dict(cls, value: Settings) -> "RegionView":
        """Restore a view from its `settings`; other keys are ignored."""
        return cls(ImageView.from_dict(value), bool(value.get("geometry", False)))

    def settings(self) -> dict[str, Any]:
        return {**vars(self.features), "geometry": self.geometry}

    @property
    def encoders(self) -> tuple[str, ...]:
        return self.features.encoders

    @property
    def dim(self) -> int:
        return self.features.dim + self.geometry * len(WHOLE)

    def stack(
        self, block: RegionBlock, rows: np.ndarray | slice = slice(None), through: ImageView | None = None
    ) -> np.ndarray:
        """Stack the regions `rows` of a block, (n, dim) float32. `through` replaces `features` by a view of some of the
        encoders, with its own order and steps. Raises IntegrityError as `ImageView.stack` does."""
        x = (through or self.features).stack(self.features.split(block.features[rows]))
        return np.hstack([x, locate(block.boxes, block.offsets)[rows]]) if self.geometry else x


IMAGE_BLOCK = 4096
"""Images whose features are summed at once."""


def mean_and_spread(blocks: Iterable[np.ndarray]) -> tuple[np.ndarray, float]:
    """Compute the mean (D,) float32 of all rows of `blocks` (n_i, D), and their root mean square length without it."""
    total = np.zeros(1)
    squares = 0.0
    count = 0
    for x in blocks:
        total = total + x.sum(axis=0, dtype=float)
        squares += float(np.einsum("ij,ij->", x, x, dtype=float))
        count += len(x)
    mean = total / count
    variance = max(squares / count - float(mean @ mean), 1e-12)
    return mean.astype(np.float32), float(variance**0.5)


class RowSource(Protocol):
    """Features (n, dim) of one encoder: an array, or an object that reads its rows from shards on request."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: np.ndarray, /) -> np.ndarray: ...


@dataclass(frozen=True)
class TrainingPairs:
    """n images with their m sentences: `features`, encoder -> (n, dim), `sentences` in the form that the model reads,
    `owners` (m,), the image row of each sentence, and `names` (m,), its name in errors. `regions` are the images'
    regions, for the models that use them."""

    features: Mapping[str, RowSource]
    sentences: Any
    owners: np.ndarray
    names: np.ndarray
    regions: RegionSource | None = None

    def images(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Read the features of the images `rows`."""
        return {name: block[rows] for name, block in self.features.items()}

    def stacked(self, view: ImageView) -> Iterator[np.ndarray]:
        """Yield all images in `view`, (n_i, D) float32, in blocks."""
        for start in range(0, self.n_images, IMAGE_BLOCK):
            yield view.stack(self.images(np.arange(start, min(start + IMAGE_BLOCK, self.n_images))))

    @property
    def n_images(self) -> int:
        return next(iter(self.features.values())).shape[0]


@dataclass(frozen=True)
class TrainingTask:
    """One training.

    `words` (V + 1, d) are the initial word vectors, which stay fixed if `train_words` is false. `start` is the model
    that a refinement starts from, or a WordStart. `precision` is the dtype of the heaviest products. `noun_phrase` is
    the label of noun phrases in trees. Networks are trained on `device`.
    """

    view: ImageView
    train: TrainingPairs
    dev: TrainingPairs
    settings: TrainSettings
    seed: int
    precision: torch.dtype
    train_words: bool
    words: np.ndarray | None = None
    start: JointModel | WordStart | None = None
    region_view: RegionView | None = None
    noun_phrase: int | None = None
    device: torch.device = torch.device("cpu")

    @property
    def objective(self) -> Objective:
        return Objective(**self.settings.model_dump(include={entry.name for entry in fields(Objective)}))

    def own_settings(self, kind: type[Own]) -> Own:
        """Return the settings as the section that the model has."""
        assert isinstance(self.settings, kind)
        return self.settings

    def plan(
        self,
        network: nn.Module,
        draw: Callable[[np.ndarray], tuple],
        judge: Callable[[], float],
        finish: Callable[[], TrainedModel],
        objective: LossFunction | None = None,
    ) -> TrainingPlan:
        """Plan the training of `network` on the training pairs, by default with the task's objective."""
        kept = {entry.name for entry in fields(TrainingSchedule)}
        return TrainingPlan(
            network,
            draw,
            self.train.owners,
            self.train.names,
            objective or self.objective,
            TrainingSchedule(seed=self.seed, **self.settings.model_dump(include=kept)),
            judge,
            precision=self.precision,
            finish=finish,
        )

    @cached_property
    def mean_image(self) -> np.ndarray:
        """The mean of the training images in `view`, (D,) float32."""
        return mean_and_spread(self.train.stacked(self.view))[0]

    def images(self, rows: np.ndarray) -> torch.Tensor:
        """Stack the images of the training pairs `rows` (k,), (k, D)."""
        return stack_on(self.view, self.train.images(self.train.owners[rows]), self.device)

    def draw_images(self, rows: np.ndarray) -> torch.Tensor:
        """Stack images for a training step, where `encoder_dropout` replaces some encoders' features by the mean."""
        images, share, count = self.images(rows), self.settings.encoder_dropout, len(self.view.dims)
        if not share or count == 1:
            return images
        left_out = torch.rand(len(rows), count) < share
        left_out[torch.arange(len(rows)), torch.randint(count, (len(rows),))] = False
        columns = left_out.repeat_interleave(torch.tensor(self.view.dims), dim=1)
        return torch.where(upload(columns, self.device), upload(self.mean_image, self.device), images)


@dataclass(frozen=True)
class Trained:
    """A trained model and its log, as JSON values."""

    model: TrainedModel
    log: Mapping[str, Any]


class TrainableModel(Protocol):
    """A registered class of models that `train` makes."""

    def trainer(self, task: TrainingTask) -> Training:
        """Return the training of an untrained model."""
        ...


def train(
    model: TrainableModel, task: TrainingTask, checkpoint: Checkpoint | None, after_step: Callable[[Training], None]
) -> Trained:
    """Train the registered class `model` on `task`, from `checkpoint` if there is one.

    Raises as `Training.run` does.
    """
    training = model.trainer(task)
    if checkpoint:
        training.resume(checkpoint)
    history = training.run(after_step)
    best = training.progress.best_epoch
    trained = training.finish()
    score = history[best].get("dev")
    measure = "mean rank" if trained.by_mean_rank else "sum of recall@1, @5 and @10"
    log = {
        "criterion": f"{measure} of both directions on dev",
        "pairs": len(task.train.owners),
        "best_epoch": best,
        "chosen": {"mean_rank": -score} if trained.by_mean_rank and score is not None else {"recall_sum": score},
        "history": history,
    }
    return Trained(trained, log)
