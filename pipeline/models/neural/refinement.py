"""The registered models `ncca-refined` and `projector`, which map two frozen encoders and learn from contrastive pairs.

`ncca-refined` has two linear maps that start as normalized CCA. `projector` has one or two layers on each side, which
start with random weights.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compute.device import move_tensors
from pipeline.config.models import ProjectorTrainSettings
from pipeline.metrics.ranks import count_ranks
from pipeline.metrics.retrieval import recall_sum
from pipeline.models.joint_model import Features, RegionSource, Sentences, Settings, read_setting
from pipeline.models.linear.device import stack_on, unit_length
from pipeline.models.linear.projection import Directions, LinearModel, UnitProjections, unit_rows
from pipeline.models.linear.views import ImageView, Rows, TextView, is_sparse, matrices_of, one_matrix
from pipeline.models.neural.losses import Objective
from pipeline.models.neural.networks import arrays_of
from pipeline.models.neural.task import TrainingTask
from pipeline.models.neural.training import LossFunction, Training, TrainingPlan, seeded

SENTENCE_LENGTH = 3.0
"""Initial root mean square length of the projected sentences in `ncca-refined` and `ncca-recurrent`. The initial length
of projected images is 1.

Adam changes all weights by about the same amount, so that the directions of longer vectors change more slowly. This
suits sentences, because there are few training sentences with a rare term.
"""
SCALE_SAMPLE = 4096
"""Number of training pairs that suffices to measure the initial lengths. At least this number of pairs and less than
twice this number are used, or all pairs if there are fewer."""


class Bags(NamedTuple):
    """The rows of a sparse matrix.

    Row i has the values weights[starts[i] : starts[i + 1]] in the columns ids[starts[i] : starts[i + 1]], and zeros in
    all other columns. The last row extends to the end of `ids`.
    """

    ids: Tensor
    starts: Tensor
    weights: Tensor


Matrices = Sequence[Bags | Tensor]
"""The rows of n sentences in a text view: one matrix per text encoder, sparse or dense. Side by side, they are (n,
d)."""


def tensors_of(rows: Rows) -> Matrices:
    """Convert the sparse matrices of `rows` (n, d) to Bags, and the dense matrices to tensors."""
    return [bags(part) if is_sparse(part) else torch.from_numpy(np.asarray(part)) for part in matrices_of(rows)]


def bags(matrix: csr_array) -> Bags:
    """Convert the rows of a sparse matrix (n, d) to bags, with columns in int64 and weights in float32."""
    ids = torch.from_numpy(matrix.indices.astype(np.int64))
    starts = torch.from_numpy(matrix.indptr[:-1].astype(np.int64))
    return Bags(ids, starts, torch.from_numpy(matrix.data.astype(np.float32)))


def take_sentences(task: TrainingTask, text: TextView, rows: np.ndarray) -> Matrices:
    """Return the sentences of the training pairs `rows` (k,) as the matrices of the view `text`."""
    return tensors_of(text.stack({name: task.train.sentences[name][rows] for name in text.encoders}))


def take_sample(task: TrainingTask, text: TextView) -> tuple[Tensor, Matrices]:
    """Return the images (k, D) and the sentences of a sample of the training pairs, on the device of the task. The
    sample has every s-th pair. The step s is chosen so that k is at least SCALE_SAMPLE and less than twice
    SCALE_SAMPLE. If there are fewer pairs, the sample has all pairs."""
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
        """Embed n images, the rows x (n, D) of the image view, as (n, c) of unit length."""
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
        """Scale W and U so that the root mean square length of the projections is 1 for the images x (n, D), and
        SENTENCE_LENGTH for the sentences y (n, d). W and U are changed in place.

        One learning rate then suits both maps and every start.
        """
        self.eval()
        images = self.project_images(x)
        sentences = self.project_sentences(y)
        self.w /= images.square().sum(dim=1).mean().sqrt()
        self.u *= SENTENCE_LENGTH / sentences.square().sum(dim=1).mean().sqrt()

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the tensors, by name, from which `from_parts` restores a model that embeds like these towers."""
        return arrays_of(self)

    def forward(self, x: Tensor, y: Matrices) -> Any:
        """Score the n images of a batch (rows) with its n sentences (columns), and return (n, n), with the pairs on the
        diagonal. A subclass may return more."""
        return self.embed_images(x) @ self.embed_sentences(y).T


class RefinedCCA(UnitProjections, LinearModel):
    """Normalized CCA (Gong et al. 2014, eq. 2) whose projections are trained further by a contrastive loss.

    The maps start as W diag(lambda^t) and U diag(lambda^t) of a fitted model. At the start, each map is multiplied by a
    number, which does not change the scores. Weight decay pulls the maps towards this start. CCA uses only second
    moments, but the contrastive loss depends on the sentences with which an image is confused.
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
        """Return the plan for training `towers`, which read captions by the view `text`.

        `draw` returns the arguments of `towers` for the training pairs with given row numbers (k,). `objective` is the
        loss of the scores, or None for the loss of `task`. The plan judges by the recall on the dev pairs of `task`.
        """
        dev = task.dev
        dev_images = stack_on(task.view, dev.images(np.arange(dev.n_images)), task.device)
        dev_sentences = move_tensors(tensors_of(text.stack(dev.sentences)), task.device)

        def judge() -> float:
            x = towers.embed_images(dev_images)
            y = towers.embed_sentences(dev_sentences)
            return recall_sum(count_ranks(x.cpu().numpy(), y.cpu().numpy(), dev.owners, cls.metric))

        views = {**vars(task.view), "text": text.to_dict()}
        return task.plan(towers, draw, judge, lambda: cls.from_parts(views, towers.arrays()), objective)

    def settings(self) -> dict[str, Any]:
        return {**vars(self.view), "text": self.text.to_dict()}

    def tensors(self) -> dict[str, np.ndarray]:
        return {"w": self.directions.w, "u": self.directions.u, "mean_x": self.mean_x, "mean_y": self.mean_y}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "RefinedCCA":
        w = tensors["w"]
        u = tensors["u"]
        directions = Directions(w, u, np.ones(w.shape[1], np.float32))
        text = TextView.from_dict(read_setting(settings, "text", dict))
        return cls(ImageView.from_dict(settings), text, tensors["mean_x"], tensors["mean_y"], directions)


HEADS = tuple(f"heads.{side}.{name}" for side in (0, 1) for name in ("weight", "bias"))
"""The names of the tensors of the second layers: the weight and the bias of the image side (0) and of the sentence side
(1)."""


class ProjectedBatch(NamedTuple):
    """The embedded `images` and `sentences` of n pairs, (n, c) each, of unit length. Row i of each tensor belongs to
    pair i.

    `image_cosines` (n, n) are the cosines of the images with each other before the projection, and `sentence_cosines`
    (n, n) are the cosines of the sentences. Both are None if the loss does not use cosines.
    """

    images: Tensor
    sentences: Tensor
    image_cosines: Tensor | None
    sentence_cosines: Tensor | None


class ProjectionTowers(RefinedTowers):
    """Towers that start with random weights, for images of `view` and sentences of `text`.

    With two layers, `heads` has the second layer of each side, which follows a GELU. The inputs of the images are
    multiplied by scales[0], and the inputs of the sentences by scales[1], so that their entries have a mean square of 1
    and the same learning rates suit all encoders.
    """

    scales: Tensor

    def __init__(self, task: TrainingTask, text: TextView, settings: ProjectorTrainSettings) -> None:
        """Draw the weights with the seed of `task`, and measure the means and the scales on its training pairs. `text`
        is the view of the captions. The module is moved to the device of `task`."""
        captions = text.stack(task.train.sentences)
        mean_y = np.concatenate([block.mean(axis=0, dtype=np.float64) for block in matrices_of(captions)])
        width = settings.hidden if settings.layers == 2 else settings.dimensions
        with seeded(task.seed):
            w, u = (torch.randn(dim, width) / dim**0.5 for dim in (task.view.dim, text.dim))
            mean_x = torch.from_numpy(task.mean_image)
            super().__init__(w, u, mean_x, torch.from_numpy(mean_y.astype(np.float32)), text.dims, settings.dropout)
            sides = range(2 if settings.layers == 2 else 0)
            self.heads = nn.ModuleList(nn.Linear(width, settings.dimensions) for _ in sides)
        self.register_buffer("scales", torch.ones(2))
        self.to(task.device).eval()
        images, sentences = take_sample(task, text)
        with torch.no_grad():
            firsts = (RefinedTowers.project_images(self, images), RefinedTowers.project_sentences(self, sentences))
            # The weights have a mean square of 1 / dim, so projected entries have the mean square of the inputs.
            for side, projected in enumerate(firsts):
                self.scales[side] = projected.square().mean().rsqrt()

    def project_images(self, x: Tensor) -> Tensor:
        """Apply the one or two layers of the image side to the stacked features x (n, D). Return (n, c), not of unit
        length."""
        return self._head(0, super().project_images(x) * self.scales[0])

    def project_sentences(self, y: Matrices) -> Tensor:
        """Apply the one or two layers of the sentence side to the rows y (n, d) of the text view. Return (n, c), not of
        unit length."""
        return self._head(1, super().project_sentences(y) * self.scales[1])

    def _head(self, side: int, hidden: Tensor) -> Tensor:
        if not len(self.heads):
            return hidden
        return self.heads[side](functional.dropout(functional.gelu(hidden), self.dropout, self.training))

    def arrays(self) -> dict[str, np.ndarray]:
        arrays = super().arrays()
        scales = arrays.pop("scales")
        return {**arrays, "w": arrays["w"] * scales[0], "u": arrays["u"] * scales[1]}

    def forward(self, x: Tensor, y: Matrices, *cosines: Tensor) -> ProjectedBatch:
        image_cosines, sentence_cosines = cosines or (None, None)
        return ProjectedBatch(self.embed_images(x), self.embed_sentences(y), image_cosines, sentence_cosines)


@dataclass(frozen=True)
class StructuredObjective:
    """The contrastive `objective`, plus `weight` times the regulariser STRUCTURE if a batch has cosines. The function
    `structure` computes a value for the images and a value for the sentences. The regulariser is the mean of the two
    values."""

    objective: Objective
    weight: float

    @property
    def drawn(self) -> int:
        return self.objective.drawn

    def __call__(self, output: ProjectedBatch, owners: Tensor, /) -> Tensor:
        loss = self.objective(output.images @ output.sentences.T, owners)
        if output.image_cosines is None or output.sentence_cosines is None:
            return loss
        temperature = self.objective.temperature
        images = structure(output.image_cosines, output.images @ output.images.T, temperature)
        sentences = structure(output.sentence_cosines, output.sentences @ output.sentences.T, temperature)
        return loss + self.weight * (images + sentences) / 2


def cosines_of(rows: Rows) -> Tensor:
    """Compute the cosines of n rows with each other, (n, n). Rows of zeros have the cosine 0 with all rows."""
    matrix = one_matrix(rows)
    products = matrix @ matrix.T
    dense = torch.from_numpy(products.toarray() if is_sparse(products) else products)
    lengths = dense.diagonal().clamp_min(float(np.finfo(np.float32).tiny)).sqrt()
    return dense / lengths / lengths[:, None]


def structure(before: Tensor, after: Tensor, temperature: float) -> Tensor:
    """Compute the regulariser STRUCTURE with one level (Gröger et al. 2025, section 4.1).

    `before` and `after` (n, n) are the cosines of n items of one side with each other, before and after the projection.
    Row i of softmax(cosines of the centred items / temperature) is the neighbourhood of item i. The result is the mean
    Jensen-Shannon divergence of both neighbourhoods of an item.
    """
    logs = []
    for cosines in (before, after):
        means = cosines.mean(dim=1, keepdim=True)
        logs.append(((cosines - means - means.T + cosines.mean()) / temperature).log_softmax(dim=1))
    middle = torch.logaddexp(*logs) - float(np.log(2))
    divergences = [functional.kl_div(middle, log, reduction="batchmean", log_target=True) for log in logs]
    return (divergences[0] + divergences[1]) / 2


class Projector(RefinedCCA):
    """The model `projector`, which has one or two layers for the images and for the sentences of two frozen encoders,
    and compares their outputs by cosine.

    The loss is InfoNCE in both directions (van den Oord et al. 2018, eq. 4; Radford et al. 2021). With `structure`, a
    regulariser keeps the neighbours of each item (Gröger et al. 2025). The first layers W (D, h) and U (d, h) are
    `directions.w` and `directions.u`. The second layers are `heads`, with the names of ProjectionTowers.
    """

    heads: Mapping[str, np.ndarray]

    def _finish(self, projected: np.ndarray) -> np.ndarray:
        return projected if self.heads else super()._finish(projected)

    def embed_images(self, features: Features, regions: "RegionSource | None" = None) -> np.ndarray:
        return self._head(0, super().embed_images(features))

    def embed_sentences(self, sentences: Sentences) -> np.ndarray:
        return self._head(1, super().embed_sentences(sentences))

    def _head(self, side: int, hidden: np.ndarray) -> np.ndarray:
        if not self.heads:
            return hidden
        weight, bias = (torch.from_numpy(self.heads[f"heads.{side}.{name}"]) for name in ("weight", "bias"))
        return unit_rows(functional.linear(functional.gelu(torch.from_numpy(hidden)), weight, bias).numpy())

    @classmethod
    def trainer(cls, task: TrainingTask) -> Training:
        """Return the training of the model, which starts from random weights and has not begun."""
        settings = task.own_settings(ProjectorTrainSettings)
        text = TextView.from_vectors({name: block[:1] for name, block in task.train.sentences.items()}, task.text_steps)

        def draw(rows: np.ndarray) -> tuple:
            images = task.draw_images(rows)
            sentences = take_sentences(task, text, rows)
            if not settings.structure:
                return images, sentences
            captions = text.stack({name: task.train.sentences[name][rows] for name in text.encoders})
            return images, sentences, cosines_of(images.cpu().numpy()), cosines_of(captions)

        objective = StructuredObjective(task.objective, settings.structure)
        return Training(cls.plan(task, text, ProjectionTowers(task, text, settings), draw, objective))

    def tensors(self) -> dict[str, np.ndarray]:
        return {**super().tensors(), **self.heads}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "Projector":
        model = super().from_parts(settings, tensors)
        assert isinstance(model, cls)
        model.heads = {name: tensors[name] for name in HEADS} if HEADS[0] in tensors else {}
        return model
