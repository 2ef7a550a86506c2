"""The registered model `projector`: one or two layers on each side of two frozen encoders, with a contrastive loss."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.config.models import ProjectorTrainSettings
from pipeline.models.joint_model import Features, RegionSource, Sentences, Settings
from pipeline.models.linear.projection import unit_rows
from pipeline.models.linear.views import Rows, TextView, is_sparse, matrices_of, one_matrix
from pipeline.models.neural.losses import Objective
from pipeline.models.neural.refinement import Matrices, RefinedCCA, RefinedTowers, take_sample, take_sentences
from pipeline.models.neural.task import TrainingTask
from pipeline.models.neural.training import Training, seeded

HEADS = tuple(f"heads.{side}.{name}" for side in (0, 1) for name in ("weight", "bias"))
"""The names of the tensors of the second layers."""


class ProjectedBatch(NamedTuple):
    """The embedded images and sentences of n pairs, (n, c) each.

    `image_cosines` and `sentence_cosines` (n, n) are the cosines between images and between sentences before the
    projection. They are None if the loss does not use them.
    """

    images: Tensor
    sentences: Tensor
    image_cosines: Tensor | None
    sentence_cosines: Tensor | None


class ProjectionTowers(RefinedTowers):
    """Towers that start with random weights, for images of `view` and sentences of `text`.

    With two layers, `heads` has the second layer of each side, which follows a GELU. The inputs of a side are
    multiplied by its number in `scales` (2,), so that their entries have a mean square of 1 and the same learning rates
    suit all encoders.
    """

    scales: Tensor

    def __init__(self, task: TrainingTask, text: TextView, settings: ProjectorTrainSettings) -> None:
        """Draw the weights, and measure the means and the scales on the training pairs of `task`."""
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
        """Apply the layers of the images to (n, D)."""
        return self._head(0, super().project_images(x) * self.scales[0])

    def project_sentences(self, y: Matrices) -> Tensor:
        """Apply the layers of the sentences to (n, d)."""
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
    """The contrastive `objective` plus `weight` times STRUCTURE, the mean of `structure` of both sides."""

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
    """One or two layers on each side of two frozen encoders, compared by cosine similarity.

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
        """Return the training of the model from random weights."""
        settings = task.own_settings(ProjectorTrainSettings)
        text = TextView.of({name: block[:1] for name, block in task.train.sentences.items()}, task.text_steps)

        def draw(rows: np.ndarray) -> tuple:
            images, sentences = task.draw_images(rows), take_sentences(task, text, rows)
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
