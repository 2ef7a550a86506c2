"""Two linear towers that begin as normalized CCA and are refined by a contrastive loss: the model `ncca-refined`."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.nn import functional

from pipeline.device import place
from pipeline.errors import UsageError
from pipeline.metrics.ranks import count_ranks
from pipeline.metrics.retrieval import recall_sum
from pipeline.models.linear.device_projection import DeviceProjection, Projections
from pipeline.models.linear.device_views import stack_on
from pipeline.models.linear.projection import unit_rows
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.networks import arrays_of
from pipeline.models.neural.task import TrainingTask
from pipeline.models.neural.training import Training

SENTENCE_LENGTH = 3.0
"""Root mean square length at which the sentence tower begins, the image tower's being 1. Adam moves every entry by
about the same, so that the longer tower turns more slowly: rare terms have few sentences to learn from."""


SCALED_BY = 4096
"""Training pairs, about, whose lengths the towers are scaled by."""


class Bags(NamedTuple):
    """Sparse rows: the terms of sentence i are ids[starts[i] : starts[i + 1]], weighted by `weights`."""

    ids: Tensor
    starts: Tensor
    weights: Tensor


def bags(matrix: sparse.csr_array) -> Bags:
    """The rows of `matrix` (n, d)."""
    starts, ids = (
        torch.from_numpy(matrix.indptr[:-1].astype(np.int64)),
        torch.from_numpy(matrix.indices.astype(np.int64)),
    )
    return Bags(ids, starts, torch.from_numpy(matrix.data.astype(np.float32)))


class RefinedTowers(nn.Module):
    """s(x, y) = cos((x - mean_x) W, (y - mean_y) U), with dropout on the dimensions of x and on the terms of y."""

    def __init__(self, w: Tensor, u: Tensor, mean_x: Tensor, mean_y: Tensor, dropout: float) -> None:
        super().__init__()
        self.w, self.u = nn.Parameter(w), nn.Parameter(u)
        self.register_buffer("mean_x", mean_x)
        self.register_buffer("mean_y", mean_y)
        self.dropout = dropout

    def embed_images(self, x: Tensor) -> Tensor:
        """(n, c) of unit length from the image view (n, D)."""
        x = functional.dropout(x - self.mean_x, self.dropout, self.training)
        return functional.normalize(x @ self.w, dim=1)

    def embed_sentences(self, y: Bags) -> Tensor:
        """(n, c) of unit length from tf-idf."""
        weights = functional.dropout(y.weights, self.dropout, self.training)
        projected = functional.embedding_bag(y.ids, self.u, y.starts, mode="sum", per_sample_weights=weights)
        return functional.normalize(projected - self.mean_y @ self.u, dim=1)

    def forward(self, x: Tensor, y: Bags) -> Tensor:
        """(n, n) scores of n images by n sentences."""
        return self.embed_images(x) @ self.embed_sentences(y).T


class RefinedCCA:
    """Normalized CCA (Gong et al. 2014, equation 2) whose projections went on learning from contrasts.

    The towers begin as W diag(lambda^t) and U diag(lambda^t) of a fitted model, each scaled by one number, which
    changes no score; weight decay pulls them back to there. CCA sees only second moments; the contrastive loss sees
    which other sentences an image is confused with.
    """

    sentence_view: ClassVar[str] = "tfidf"
    multi_vector: ClassVar[bool] = False
    metric: ClassVar[str] = "inner_product"

    def __init__(self, view: ImageView, w: np.ndarray, u: np.ndarray, mean_x: np.ndarray, mean_y: np.ndarray) -> None:
        self.view = view
        self.w, self.u, self.mean_x, self.mean_y = w, u, mean_x, mean_y
        self._projections: Projections | None = None

    def to(self, device: torch.device) -> "RefinedCCA":
        """This model, which from now on embeds on `device` by torch."""
        image, text = (
            DeviceProjection(mean, w, None, device) for mean, w in ((self.mean_x, self.w), (self.mean_y, self.u))
        )
        self._projections = Projections(self.view, image, text, device)
        return self

    @classmethod
    def begin(cls, task: TrainingTask) -> "RefinementTrainer":
        """At the start that `task.start`, a fitted ncca, gives. UsageError where that is of another view."""
        start, shapes = task.start, (task.view.dim, task.train.sentences.shape[1])
        if start is None or start.view != task.view or (len(start.directions.w), len(start.directions.u)) != shapes:
            raise UsageError("a refinement starts from an ncca with the same image view and vocabulary; fit that again")
        scale = start.directions.values**start.eigenvalue_power
        return RefinementTrainer(
            cls(task.view, start.directions.w * scale, start.directions.u * scale, start.mean_x, start.mean_y), task
        )

    @property
    def encoders(self) -> tuple[str, ...]:
        return self.view.encoders

    def embed_images(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """(n, c) float32 from `features`, encoder -> (n, its dim)."""
        if self._projections:
            return unit_rows(self._projections.images(features))
        return unit_rows((self.view.stack(features) - self.mean_x) @ self.w)

    def embed_sentences(self, sentences: sparse.csr_array) -> np.ndarray:
        """(n, c) float32 from sparse tf-idf (n, d)."""
        if self._projections:
            return unit_rows(self._projections.sentences(sentences))
        return unit_rows(sentences @ self.u - self.mean_y @ self.u)

    def settings(self) -> dict[str, Any]:
        return dict(vars(self.view))

    def tensors(self) -> dict[str, np.ndarray]:
        return {"w": self.w, "u": self.u, "mean_x": self.mean_x, "mean_y": self.mean_y}

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "RefinedCCA":
        """The model that `settings` and `tensors` came from."""
        return cls(ImageView.from_dict(settings), **tensors)


class RefinementTrainer:
    """The refinement of a model, its towers scaled."""

    def __init__(self, model: RefinedCCA, task: TrainingTask) -> None:
        train, dev = task.train, task.dev
        self.model = model
        parts = map(torch.tensor, (model.w, model.u, model.mean_x, model.mean_y))
        self.towers = RefinedTowers(*parts, task.settings.dropout).to(task.device)
        dev_images = stack_on(task.view, dev.images(np.arange(dev.n_images)), task.device)
        dev_sentences = place(bags(dev.sentences), task.device)

        def draw(rows: np.ndarray) -> tuple[Tensor, Bags]:
            return task.draw_images(rows), bags(train.sentences[rows])

        some = np.arange(len(train.owners))[:: max(1, len(train.owners) // SCALED_BY)]

        def judge() -> float:
            images, sentences = self.towers.embed_images(dev_images), self.towers.embed_sentences(dev_sentences)
            return recall_sum(count_ranks(images.cpu().numpy(), sentences.cpu().numpy(), dev.owners, model.metric))

        self._scale(task.images(some), place(bags(train.sentences[some]), task.device))
        self.training = Training(
            self.towers, draw, train.owners, train.names, task.objective, task.schedule,
            judge, anchors={"w": self.towers.w.detach().clone(), "u": self.towers.u.detach().clone()},
        )  # fmt: skip

    @torch.no_grad()
    def _scale(self, x: Tensor, y: Bags) -> None:
        """Bring both towers to their lengths, so that one learning rate suits both and every start."""
        towers = self.towers
        images = (x - towers.mean_x) @ towers.w
        sentences = functional.embedding_bag(y.ids, towers.u, y.starts, mode="sum", per_sample_weights=y.weights)
        towers.w /= images.square().sum(dim=1).mean().sqrt()
        towers.u *= SENTENCE_LENGTH / (sentences - towers.mean_y @ towers.u).square().sum(dim=1).mean().sqrt()

    def finish(self) -> RefinedCCA:
        return RefinedCCA(self.model.view, **arrays_of(self.towers))
