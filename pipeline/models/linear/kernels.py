"""Kernel CCA: the registered model `kcca`, exact where the landmarks are all images, by Nystroem's method above."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from scipy import sparse
from sklearn.kernel_approximation import Nystroem
from sklearn.metrics.pairwise import pairwise_kernels

from pipeline.errors import InputError, UsageError
from pipeline.models.linear.cca import NormalizedCCA
from pipeline.models.linear.feature_maps import FeatureMaps, Rows
from pipeline.models.linear.passes import mapped_moments
from pipeline.models.linear.training import FitTask
from pipeline.models.linear.tuning import PreparedViews, Tuned, tune


class KernelFeatures:
    """Rows in the feature space of a kernel: k(row, landmarks) K^-1/2, whose inner products are the kernel on them.

    `landmarks` (m, D) dense or sparse, `normalization` (m, m) = K^-1/2 of the landmarks among themselves.
    """

    kind: ClassVar[str] = "kernel"
    keep = False

    def __init__(self, kernel: str, gamma: float | None, landmarks: Rows, normalization: np.ndarray) -> None:
        self.kernel = kernel
        self.gamma = gamma
        self.landmarks = landmarks
        self.normalization = normalization

    @classmethod
    def fit(cls, rows: Rows, kernel: str, factor: float, count: int, seed: int) -> "KernelFeatures":
        """With `count` of `rows` as landmarks; all of them, and then exact, where there are no more.

        Raises InputError where rows are not finite, or do not differ and the kernel is one of distances.
        """
        spread, by_distance = _spread(rows), kernel in ("rbf", "laplacian")
        if not np.isfinite(spread) or (by_distance and spread <= 0):
            fault = "do not differ from one another" if np.isfinite(spread) else "are not finite"
            raise InputError(f"the training rows of a view {fault}; repair the features, or take another kernel")
        gamma = factor / spread if by_distance else None
        count = min(count, rows.shape[0])
        fitted = Nystroem(kernel=kernel, gamma=gamma, n_components=count, random_state=seed).fit(
            rows.astype(np.float64)
        )
        return cls(kernel, gamma, fitted.components_, fitted.normalization_.T)

    @property
    def dim(self) -> int:
        return self.normalization.shape[1]

    def __call__(self, rows: Rows) -> np.ndarray:
        if not rows.shape[0]:
            return np.zeros((0, self.dim), np.float32)  # which scikit-learn refuses
        options = {} if self.gamma is None else {"gamma": self.gamma}
        # In double precision: K^-1/2 magnifies what rounding leaves of similar landmarks.
        similarities = pairwise_kernels(rows.astype(np.float64), self.landmarks, metric=self.kernel, **options)
        return (similarities @ self.normalization).astype(np.float32)

    def settings(self) -> dict[str, Any]:
        shape = list(self.landmarks.shape) if sparse.issparse(self.landmarks) else None
        return {"kernel": self.kernel, "gamma": self.gamma, "sparse": shape}

    def tensors(self) -> dict[str, np.ndarray]:
        rows = self.landmarks
        parts = {"landmarks": rows}
        if sparse.issparse(rows):
            parts = {"data": rows.data, "indices": rows.indices, "indptr": rows.indptr}
        return {"normalization": self.normalization, **parts}

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "KernelFeatures":
        rows = tensors.get("landmarks")
        if settings["sparse"]:
            parts = (tensors["data"], tensors["indices"], tensors["indptr"])
            rows = sparse.csr_array(parts, shape=tuple(settings["sparse"]))
        return cls(settings["kernel"], settings["gamma"], rows, tensors["normalization"])


class KernelCCA(NormalizedCCA):
    """Regularised kernel CCA (Hardoon et al., reference 12 of Gong et al. 2014) with the similarity of equation 2.

    In the feature spaces of two kernels it is linear CCA with a ridge, and Nystroem's map of all training rows spans
    what these have of those spaces; fewer landmarks approximate it. So the solver and the grid are those of `ncca`.
    """

    @classmethod
    def fit(cls, task: FitTask) -> Tuned:
        """By both kernels on the target pairs. UsageError for another training than `target`."""
        if task.training != "target":
            raise UsageError(f"kcca learns from target pairs only, not by training {task.training}; take ncca")
        blocks, settings = list(task.sets.target_blocks()), task.settings
        x = np.concatenate([block.x for block in blocks])
        y = sparse.vstack([block.y for block in blocks], format="csr")
        maps = FeatureMaps(
            KernelFeatures.fit(x, settings.image_kernel, settings.image_gamma, settings.landmarks, task.seed),
            KernelFeatures.fit(y, settings.text_kernel, settings.text_gamma, settings.landmarks, task.seed),
        )
        prepared = PreparedViews(mapped_moments(task.sets.target, blocks, maps), maps)
        return tune(cls, task.view, prepared, task.dev, task.own_grid, task.progress)


def _spread(rows: Rows) -> float:
    """The total variance of `rows`: half the mean squared distance of two of them."""
    rows = rows.astype(np.float64)
    mean = np.asarray(rows.mean(axis=0)).ravel()
    if sparse.issparse(rows):
        return float(rows.multiply(rows).sum(axis=1).mean() - mean @ mean)
    return float(np.einsum("ij,ij->i", rows - mean, rows - mean).mean())
