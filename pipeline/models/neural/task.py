"""The data and settings that every trainable model receives in the same form, and the training of a model on them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import nn

from pipeline.compute.device import upload
from pipeline.compute.lazy_rows import LazyRows
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

WHOLE_IMAGE_GEOMETRY = np.sqrt(np.array([0, 0, 1, 1, 1, 1, 1], np.float32) / 5)
"""The seven values (7,) float32 that `locate` computes for a region that is the whole image."""


def required(value: Value | None) -> Value:
    """Return `value`. An assertion fails if it is None, which cannot happen if the specification of the model or
    generator requires the value."""
    assert value is not None
    return value


def locate(boxes: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Compute seven values for the geometry of each of the `boxes` (total, 4), x1, y1, x2, y2 in pixels. Return (total,
    7) float32, with rows of unit length.

    The regions of image i are offsets[i] to offsets[i + 1] - 1. The first region of an image is the whole image, w by h
    pixels. The values are the square roots of seven numbers: x1 / w, y1 / h, x2 / w, y2 / h, the relative width (x2 -
    x1) / w, the relative height (y2 - y1) / h, and the square root of the relative area. The seven values are then
    scaled to unit length.
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
    """The view of regions: their features, stacked by the image view `features`, and then the seven values of `locate`
    if `geometry` is true."""

    features: ImageView
    geometry: bool

    @classmethod
    def from_dict(cls, value: Settings) -> "RegionView":
        """Restore a view from `value`, the result of `settings`, ignoring other keys. A missing `geometry` counts as
        false."""
        return cls(ImageView.from_dict(value), bool(value.get("geometry", False)))

    def settings(self) -> dict[str, Any]:
        return {**vars(self.features), "geometry": self.geometry}

    @property
    def encoders(self) -> tuple[str, ...]:
        return self.features.encoders

    def stack(
        self, block: RegionBlock, rows: np.ndarray | slice = slice(None), through: ImageView | None = None
    ) -> np.ndarray:
        """Stack the regions `rows` of a block, by default all regions, as (n, dim) float32.

        If `through` is given, the features are stacked by this image view instead, which may have fewer encoders and
        other steps. Raises IntegrityError if an encoder is missing or its features have another shape.
        """
        x = (through or self.features).stack(self.features.split(block.features[rows]))
        return np.hstack([x, locate(block.boxes, block.offsets)[rows]]) if self.geometry else x


BLOCK_IMAGES = 4096
"""Maximum number of images whose features `TrainingPairs.stacked` reads at once."""


def mean_and_spread(blocks: Iterable[np.ndarray]) -> tuple[np.ndarray, float]:
    """Compute the mean (D,) float32 of all rows of `blocks` (n_i, D), and the root mean square length of the rows minus
    the mean. The returned length is at least 1e-6. There must be at least one row."""
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


@dataclass(frozen=True)
class TrainingPairs:
    """n images with their m sentences.

    `features` maps an encoder to (n, dim). `sentences` have the form that the model reads. Sentence j belongs to the
    image in row `owners[j]`, and is called `names[j]` in error messages. `regions` are the regions of the images, for
    models that use them.
    """

    features: Mapping[str, LazyRows]
    sentences: Any
    owners: np.ndarray
    names: np.ndarray
    regions: RegionSource | None = None

    def images(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Read the features of the images `rows`, encoder -> (k, dim)."""
        return {name: block[rows] for name, block in self.features.items()}

    def stacked(self, view: ImageView) -> Iterator[np.ndarray]:
        """Yield the features of all images in blocks (n_i, D) float32, stacked by `view`."""
        for start in range(0, self.n_images, BLOCK_IMAGES):
            yield view.stack(self.images(np.arange(start, min(start + BLOCK_IMAGES, self.n_images))))

    @property
    def n_images(self) -> int:
        return next(iter(self.features.values())).shape[0]


@dataclass(frozen=True)
class TrainingTask:
    """The data and settings of one training.

    `train` and `dev` are the pairs, and `view` describes their image features. `settings` is the section of the
    configuration for the model. `words` (V + 1, d) are the initial word vectors, which are not trained if `train_words`
    is false. `start` is the fitted model, or the WordStart, from which a refinement starts. `precision` is the dtype of
    the most expensive matrix products. `region_view` describes the features of regions, and `noun_phrase` is the id of
    the label of noun phrases in trees. `text_steps` has the steps of normalisation of each text encoder, for a model
    that reads vectors. Networks are trained on `device`. `words`, `start`, `region_view` and `noun_phrase` are None for
    models that do not read them.
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
    text_steps: Mapping[str, Sequence[str]] = field(default_factory=dict)
    device: torch.device = torch.device("cpu")

    @property
    def objective(self) -> Objective:
        return Objective(**self.settings.model_dump(include={entry.name for entry in fields(Objective)}))

    def own_settings(self, kind: type[Own]) -> Own:
        """Return the `settings` of the task. An assertion fails if they are not of the class `kind`, which describes
        the configuration of the model."""
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
        """Return the plan for training `network` on the training pairs. `network` becomes the `module` of the plan.

        `draw` returns the arguments of `network` for the pairs with given row numbers (k,), `judge` returns the score
        on dev, and `finish` returns the trained model. If `objective` is None, the loss is the task's objective.
        """
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
        """The mean (D,) float32 of the training images, stacked by `view`."""
        return mean_and_spread(self.train.stacked(self.view))[0]

    def images(self, rows: np.ndarray) -> torch.Tensor:
        """Stack the image features of the training pairs `rows` (k,), as a tensor (k, D) on the device."""
        return stack_on(self.view, self.train.images(self.train.owners[rows]), self.device)

    def draw_images(self, rows: np.ndarray) -> torch.Tensor:
        """Stack the image features of the training pairs `rows` (k,) for a training step.

        With the probability `encoder_dropout` of the settings, the features of an encoder are replaced by the columns
        of this encoder in `mean_image`. The draws for different images and encoders are independent, but at least one
        encoder of each image is kept.
        """
        images = self.images(rows)
        share = self.settings.encoder_dropout
        count = len(self.view.dims)
        if not share or count == 1:
            return images
        left_out = torch.rand(len(rows), count) < share
        left_out[torch.arange(len(rows)), torch.randint(count, (len(rows),))] = False
        columns = left_out.repeat_interleave(torch.tensor(self.view.dims), dim=1)
        return torch.where(upload(columns, self.device), upload(self.mean_image, self.device), images)


@dataclass(frozen=True)
class Trained:
    """A trained model, the log of its training as JSON values, and its score on dev, where higher is better, or 0 if it
    was not scored."""

    model: TrainedModel
    log: Mapping[str, Any]
    score: float


class TrainableModel(Protocol):
    """A registered class of models that the stage `train` can train."""

    def trainer(self, task: TrainingTask) -> Training:
        """Create a model with its initial parameters, and return its training, which has not begun."""
        ...


def train(
    model: TrainableModel, task: TrainingTask, checkpoint: Checkpoint | None, after_step: Callable[[Training], None]
) -> Trained:
    """Train a model of the registered class `model` on `task` to the end, and return it with its log and its score on
    dev.

    The training continues from `checkpoint` if it is not None. `after_step` is called after each batch. Raises
    JointspaceError if a loss or gradient is not finite, and IntegrityError if the checkpoint belongs to another model.
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
    return Trained(trained, log, score or 0.0)
