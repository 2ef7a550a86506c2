"""The registered model `ncca-refined`: two linear maps that start as normalized CCA and learn from contrastive
pairs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compute.device import move_tensors
from pipeline.metrics.ranks import count_ranks
from pipeline.metrics.retrieval import recall_sum
from pipeline.models.joint_model import Settings, read_setting
from pipeline.models.linear.device import stack_on, unit_length
from pipeline.models.linear.projection import Directions, LinearModel, UnitProjections
from pipeline.models.linear.views import ImageView, Rows, TextView, is_sparse, matrices_of
from pipeline.models.neural.networks import arrays_of
from pipeline.models.neural.task import TrainingTask
from pipeline.models.neural.training import LossFunction, Training, TrainingPlan

SENTENCE_LENGTH = 3.0
"""Initial root mean square length of the projected sentences. The initial length of projected images is 1.

Adam changes all weights by about the same amount, so that the directions of longer vectors change more slowly. This
suits sentences, because there are few training sentences with a rare term.
"""
SCALE_SAMPLE = 4096
"""Approximate number of training pairs on which the initial lengths are measured."""


class Bags(NamedTuple):
    """Sparse rows.

    Row i has the columns ids[starts[i] : starts[i + 1]], with the values `weights` in the same order. The last row
    extends to the end of `ids`.
    """

    ids: Tensor
    starts: Tensor
    weights: Tensor


Matrices = Sequence[Bags | Tensor]
"""The matrices of a text view, sparse or dense (n, d), side by side."""


def tensors_of(rows: Rows) -> Matrices:
    """Convert the matrices of `rows` (n, d) to tensors."""
    return [bags(part) if is_sparse(part) else torch.from_numpy(np.asarray(part)) for part in matrices_of(rows)]


def bags(matrix: csr_array) -> Bags:
    """Convert the rows of a sparse matrix (n, d) to bags."""
    ids = torch.from_numpy(matrix.indices.astype(np.int64))
    starts = torch.from_numpy(matrix.indptr[:-1].astype(np.int64))
    return Bags(ids, starts, torch.from_numpy(matrix.data.astype(np.float32)))


def take_sentences(task: TrainingTask, text: TextView, rows: np.ndarray) -> Matrices:
    """Return the sentences of the training pairs `rows` (k,) as the matrices of the view `text`."""
    return tensors_of(text.stack({name: task.train.sentences[name][rows] for name in text.encoders}))


def take_sample(task: TrainingTask, text: TextView) -> tuple[Tensor, Matrices]:
    """Return the images (k, D) and the sentences of about SCALE_SAMPLE training pairs, on the device of the task."""
    owners = task.train.owners
    rows = np.arange(len(owners))[:: max(1, len(owners) // SCALE_SAMPLE)]
    return task.images(rows), move_tensors(take_sentences(task, text, rows), task.device)


class RefinedTowers(nn.Module):
    """The network with the score s(x, y) = cos((x - mean_x) W, (y - mean_y) U).

    Dropout is applied to the dimensions of images x and to the terms of sentences y. `dims` are the numbers of columns
    of the matrices in the text view. W is `w` (D, c), and U is `u` (d, c).
    """

    mean_x: Tensor
    mean_y: Tensor

    def __init__(
        self, w: Tensor, u: Tensor, mean_x: Tensor, mean_y: Tensor, dims: Sequence[int], dropout: float
    ) -> None:
        super().__init__()
        self.dims = list(dims)
        self.w = nn.Parameter(w)
        self.u = nn.Parameter(u)
        self.register_buffer("mean_x", mean_x)
        self.register_buffer("mean_y", mean_y)
        self.dropout = dropout

    def embed_images(self, x: Tensor) -> Tensor:
        """Embed n images, rows of the image view (n, D), as (n, c) of unit length."""
        return unit_length(self.project_images(x))

    def embed_sentences(self, y: Matrices) -> Tensor:
        """Embed n sentences, rows of the text view (n, d), as (n, c) of unit length."""
        return unit_length(self.project_sentences(y))

    def project_images(self, x: Tensor) -> Tensor:
        """Compute (x - mean_x) W for n images, (n, c)."""
        return functional.dropout(x - self.mean_x, self.dropout, self.training) @ self.w

    def project_sentences(self, y: Matrices) -> Tensor:
        """Compute (y - mean_y) U for n sentences, (n, c)."""
        blocks = zip(y, self.u.split(self.dims), self.mean_y.split(self.dims), strict=True)
        return reduce(add, [self._project(matrix, u, mean) for matrix, u, mean in blocks])

    def _project(self, matrix: Bags | Tensor, u: Tensor, mean: Tensor) -> Tensor:
        if isinstance(matrix, Tensor):
            return functional.dropout(matrix - mean, self.dropout, self.training) @ u
        weights = functional.dropout(matrix.weights, self.dropout, self.training)
        return functional.embedding_bag(matrix.ids, u, matrix.starts, mode="sum", per_sample_weights=weights) - mean @ u

    @torch.no_grad()
    def scale(self, x: Tensor, y: Matrices) -> None:
        """Scale W and U so that the projections of images x and sentences y have their initial lengths.

        One learning rate then suits both maps and every start.
        """
        self.eval()
        images = self.project_images(x)
        sentences = self.project_sentences(y)
        self.w /= images.square().sum(dim=1).mean().sqrt()
        self.u *= SENTENCE_LENGTH / sentences.square().sum(dim=1).mean().sqrt()

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the tensors of the model that embeds like these towers, by name."""
        return arrays_of(self)

    def forward(self, x: Tensor, y: Matrices) -> Any:
        """Score n images by n sentences, and return (n, n)."""
        return self.embed_images(x) @ self.embed_sentences(y).T


class RefinedCCA(UnitProjections, LinearModel):
    """Normalized CCA (Gong et al. 2014, eq. 2) whose projections are trained further by a contrastive loss.

    The maps start as W diag(lambda^t) and U diag(lambda^t) of a fitted model. Each is multiplied by a number, which
    does not change the scores. Weight decay pulls the maps towards this start. CCA uses only second moments, but the
    contrastive loss depends on the sentences with which an image is confused.
    """

    @classmethod
    def trainer(cls, task: TrainingTask) -> Training:
        """Return the training of the model that starts as `task.start`, a fitted `ncca` of the same views."""
        start = task.start
        assert isinstance(start, LinearModel)
        scale = start.directions.values**start.eigenvalue_power
        towers = RefinedTowers(
            torch.tensor(start.directions.w * scale),
            torch.tensor(start.directions.u * scale),
            torch.tensor(start.mean_x),
            torch.tensor(start.mean_y),
            start.text.dims,
            task.settings.dropout,
        ).to(task.device)
        towers.scale(*take_sample(task, start.text))
        anchors = {name: parameter.detach().clone() for name, parameter in towers.named_parameters()}
        plan = cls.plan(
            task, start.text, towers, lambda rows: (task.draw_images(rows), take_sentences(task, start.text, rows))
        )
        return Training(replace(plan, anchors=anchors))

    @classmethod
    def plan(
        cls,
        task: TrainingTask,
        text: TextView,
        towers: RefinedTowers,
        draw: Callable[[np.ndarray], tuple],
        objective: LossFunction | None = None,
    ) -> TrainingPlan:
        """Return the plan for training `towers`, which read captions by the view `text`. TrainingPlan describes the
        other arguments."""
        dev = task.dev
        dev_images = stack_on(task.view, dev.images(np.arange(dev.n_images)), task.device)
        dev_sentences = move_tensors(tensors_of(text.stack(dev.sentences)), task.device)

        def judge() -> float:
            x, y = towers.embed_images(dev_images), towers.embed_sentences(dev_sentences)
            return recall_sum(count_ranks(x.cpu().numpy(), y.cpu().numpy(), dev.owners, cls.metric))

        views = {**vars(task.view), "text": text.to_dict()}
        return task.plan(towers, draw, judge, lambda: cls.from_parts(views, towers.arrays()), objective)

    def settings(self) -> dict[str, Any]:
        return {**vars(self.view), "text": self.text.to_dict()}

    def tensors(self) -> dict[str, np.ndarray]:
        return {"w": self.directions.w, "u": self.directions.u, "mean_x": self.mean_x, "mean_y": self.mean_y}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "RefinedCCA":
        w, u = tensors["w"], tensors["u"]
        directions = Directions(w, u, np.ones(w.shape[1], np.float32))
        text = TextView.from_dict(read_setting(settings, "text", dict))
        return cls(ImageView.from_dict(settings), text, tensors["mean_x"], tensors["mean_y"], directions)
