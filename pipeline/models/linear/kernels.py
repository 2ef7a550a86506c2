"""The registered model `kcca`: kernel CCA, exact if all training rows are landmarks, else by Nystroem's method."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from sklearn.kernel_approximation import Nystroem
from sklearn.metrics.pairwise import pairwise_kernels

from pipeline.errors import InputError
from pipeline.models.joint_model import Settings, TextVectors, read_list, read_number, read_setting
from pipeline.models.linear.accumulation import mapped_moments
from pipeline.models.linear.cca import NormalizedCCA
from pipeline.models.linear.feature_maps import FeatureMaps, from_sparse_parts, sparse_parts
from pipeline.models.linear.projection import LinearModel
from pipeline.models.linear.training import FitTask
from pipeline.models.linear.tuning import PreparedViews, Tuned, tune
from pipeline.models.linear.views import Rows, is_sparse, one_matrix, shape_of, stack_blocks

GAMMA = 0.5
"""Of the kernels rbf and laplacian, in units of one over the view's total variance."""
LANDMARKS = 2000
"""With fewer training rows the kernels are exact."""


class KernelFeatures:
    """Rows in the feature space of a kernel: k(row, landmarks) K^-1/2, whose inner products are the kernel on them.

    `landmarks` (m, D) dense or sparse, `normalization` (m, m) = K^-1/2 of the landmarks among themselves.
    """

    kind: ClassVar[str] = "kernel"
    keep = False

    def __init__(self, kernel: str, gamma: float | None, landmarks: "TextVectors", normalization: np.ndarray) -> None:
        self.kernel, self.gamma, self.landmarks, self.normalization = kernel, gamma, landmarks, normalization
        self.dim = normalization.shape[1]

    @classmethod
    def fit(
        cls, blocks: "Callable[[], Iterable[TextVectors]]", kernel: str, factor: float, count: int, seed: int
    ) -> "KernelFeatures":
        """Draw `count` landmarks, or all rows, from the rows of `blocks()`, which is called twice. Raises InputError if
        rows are not finite, or if the kernel is one of distances and all rows are equal."""
        (n, spread), by_distance = _count_and_spread(blocks()), kernel in ("rbf", "laplacian")
        if not np.isfinite(spread) or (by_distance and spread <= 0):
            fault = "are all equal" if np.isfinite(spread) else "are not finite"
            raise InputError(f"the training rows of a view {fault}; repair the features or choose another kernel")
        gamma = factor / spread if by_distance else None
        count = min(count, n)
        landmarks = _pick(blocks(), np.sort(np.random.RandomState(seed).permutation(n)[:count]))
        fitted = Nystroem(kernel=kernel, gamma=gamma, n_components=count, random_state=seed).fit(landmarks)
        components: Any = fitted.components_  # scikit-learn's stub does not know that it is dense or sparse
        return cls(kernel, gamma, components, fitted.normalization_.T)

    def __call__(self, rows: Rows) -> np.ndarray:
        if not shape_of(rows)[0]:
            return np.zeros((0, self.dim), np.float32)  # scikit-learn refuses an empty array
        options: dict[str, Any] = {} if self.gamma is None else {"gamma": self.gamma}
        # In double precision: K^-1/2 magnifies rounding errors of similar landmarks.
        similarities = pairwise_kernels(
            one_matrix(rows).astype(np.float64), self.landmarks, metric=self.kernel, **options
        )
        return (similarities @ self.normalization).astype(np.float32)

    def settings(self) -> dict[str, Any]:
        shape = list(shape_of(self.landmarks)) if is_sparse(self.landmarks) else None
        return {"kernel": self.kernel, "gamma": self.gamma, "sparse": shape}

    def tensors(self) -> dict[str, np.ndarray]:
        landmarks = sparse_parts(self.landmarks) if is_sparse(self.landmarks) else {"landmarks": self.landmarks}
        return {"normalization": self.normalization, **landmarks}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "KernelFeatures":
        kernel = read_setting(settings, "kernel", str)
        gamma = None if settings["gamma"] is None else read_number(settings, "gamma")
        shape = None if settings["sparse"] is None else read_list(settings, "sparse")
        landmarks = from_sparse_parts(tensors, shape) if shape else tensors["landmarks"]
        return cls(kernel, gamma, landmarks, tensors["normalization"])


class KernelCCA(NormalizedCCA):
    """Regularised kernel CCA (Hardoon et al., reference 12 of Gong et al. 2014). `score` is the similarity of eq. 2
    (`cosine`), or what Socher et al. 2014 compare (section 5): inner products (`product`) or distances.

    It is linear CCA with a ridge in the feature spaces of two kernels. There, Nystroem's map of all training rows spans
    the training data, and fewer landmarks approximate it. So the solver and the grid are those of `ncca`.
    """

    score: ClassVar[str] = "cosine"

    @classmethod
    def fit(cls, task: FitTask) -> Tuned:
        """Fit the best model on dev to the target pairs, which are read block by block in five passes."""
        blocks, settings = task.sets.target_blocks, task.settings
        images, sentences = (lambda: (one.x for one in blocks())), (lambda: (one_matrix(one.y) for one in blocks()))
        maps = FeatureMaps(
            KernelFeatures.fit(images, settings.image_kernel, GAMMA, LANDMARKS, task.seed),
            KernelFeatures.fit(sentences, settings.text_kernel, GAMMA, LANDMARKS, task.seed),
        )
        prepared = PreparedViews(mapped_moments(task.sets.target, blocks(), maps), maps)
        return tune(SCORES[settings.score], task.view, task.text, prepared, task.dev, task.own_grid, task.progress)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "score": self.score}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> LinearModel:
        """Restore the model of the class that compares by the stored `score`."""
        return super(KernelCCA, SCORES[read_setting(settings, "score", str)]).from_parts(settings, tensors)


class ProductKernelCCA(KernelCCA):
    """Kernel CCA whose vectors keep their length. Dev chooses by what Socher et al. 2014 report."""

    score, by_mean_rank = "product", True

    @staticmethod
    def finish(projected: np.ndarray, values: np.ndarray, power: float) -> np.ndarray:
        return projected * values**power


class DistanceKernelCCA(ProductKernelCCA):
    """The same, compared by distance."""

    score, metric = "distance", "euclidean"


SCORES = {one.score: one for one in (KernelCCA, ProductKernelCCA, DistanceKernelCCA)}


def _count_and_spread(blocks: "Iterable[TextVectors]") -> tuple[int, float]:
    """Count the rows of all blocks and compute their total variance, half the mean squared distance between two rows.
    The variance is 0 if they are equal up to rounding."""
    n = 0
    mean = np.zeros(1)
    squares = 0.0
    for block in blocks:
        rows = _double(block)
        count = shape_of(block)[0]
        if not count:
            continue
        own = np.asarray(rows.mean(axis=0)).ravel()
        if is_sparse(rows):
            squares += float(rows.multiply(rows).sum() - count * (own @ own))
        else:
            squares += float(np.square(rows - own).sum())
        # Chan, Golub and LeVeque 1983, as in Moments.
        squares += n * count / (n + count) * float(np.square(own - mean).sum())
        n, mean = n + count, mean + (own - mean) * (count / (n + count))
    is_constant = squares <= n * float(np.finfo(np.float32).eps) ** 2 * float(np.square(mean).sum())
    return n, 0.0 if is_constant else squares / n


def _double(block: "TextVectors") -> "TextVectors":
    return block.astype(np.float64)  # pyright: ignore[reportReturnType]  # SciPy's astype has no type


def _pick(blocks: "Iterable[TextVectors]", numbers: np.ndarray) -> Rows:
    """Take the rows with the ascending `numbers` (k,) among the rows of all blocks, as float64."""
    start = 0
    picked = []
    for block in blocks:
        stop = start + shape_of(block)[0]
        first, last = np.searchsorted(numbers, [start, stop])
        picked.append(_double(block[numbers[first:last] - start]))
        start = stop
    return stack_blocks(picked)
