"""Kernel CCA, the registered model `kcca`. The result is exact if all training rows are landmarks. If there are more
rows, Nystroem's method approximates the kernels."""

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
"""Gamma of the kernels rbf and laplacian, in units of 1 / (total variance of the view). Other kernels have no gamma."""
MAX_LANDMARKS = 2000
"""Maximum number of landmarks of a view. The landmarks are the training rows with which every row is compared. If there
are at most this number of training rows, all of them are landmarks, and the kernels are exact."""


class KernelFeatures:
    """The map of a row to the feature space of a kernel: k(row, landmarks) K^-1/2, with m columns.

    The inner product of two mapped landmarks is the value of their kernel. The inner products of other mapped rows
    approximate the values of the kernel. `landmarks` are (m, D), dense or sparse. `normalization` (m, m) is K^-1/2,
    where K has the kernels of all pairs of landmarks. `kernel` is the name of a kernel k in scikit-learn, and `gamma`
    is its parameter, or None for a kernel without this parameter. The m new columns replace the columns of the view.
    """

    kind: ClassVar[str] = "kernel"
    keep = False

    def __init__(self, kernel: str, gamma: float | None, landmarks: "TextVectors", normalization: np.ndarray) -> None:
        self.kernel = kernel
        self.gamma = gamma
        self.landmarks = landmarks
        self.normalization = normalization
        self.dim = normalization.shape[1]

    @classmethod
    def fit(
        cls, blocks: "Callable[[], Iterable[TextVectors]]", kernel: str, factor: float, count: int, seed: int
    ) -> "KernelFeatures":
        """Draw `count` of the training rows at random as landmarks, as `seed` decides, or take all rows if there are
        fewer. Compute the normalisation of the landmarks, and return the map.

        `blocks()` is called twice and yields the training rows of one view in blocks. Gamma is `factor` divided by the
        total variance of the rows, and is used by the kernels `rbf` and `laplacian` only. Raises InputError if rows are
        not finite, or if `kernel` is one of these two kernels and all rows are equal.
        """
        n, variance = _count_and_variance(blocks())
        uses_gamma = kernel in ("rbf", "laplacian")
        if not np.isfinite(variance) or (uses_gamma and variance <= 0):
            fault = "all have the same features" if np.isfinite(variance) else "have features that are not finite"
            raise InputError(
                f"The training images, or the training captions, {fault}, so the {kernel} kernel of the model kcca"
                " cannot be computed. Extract the features again, or remove kcca from the key models."
            )
        gamma = factor / variance if uses_gamma else None
        count = min(count, n)
        landmarks = _pick_rows(blocks(), np.sort(np.random.RandomState(seed).permutation(n)[:count]))
        fitted = Nystroem(kernel=kernel, gamma=gamma, n_components=count, random_state=seed).fit(landmarks)
        components: Any = fitted.components_  # In the type stub of scikit-learn, components cannot be sparse.
        return cls(kernel, gamma, components, fitted.normalization_.T)

    def __call__(self, rows: Rows) -> np.ndarray:
        if not shape_of(rows)[0]:
            return np.zeros((0, self.dim), np.float32)  # scikit-learn would raise an error for an array without rows.
        options: dict[str, Any] = {} if self.gamma is None else {"gamma": self.gamma}
        # The kernel is computed in double precision, because K^-1/2 magnifies rounding errors of similar landmarks.
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
    """Regularised kernel CCA (Hardoon et al. 2004), which is linear CCA with ridges in the feature spaces of two
    kernels.

    The views are mapped by KernelFeatures. If all training rows are landmarks, the mapped rows represent the training
    data in these spaces exactly. With fewer landmarks, the representation is approximate. The solver and the grid are
    therefore the same as for `ncca`. `score` names the comparison of an image and a sentence: `cosine` as in eq. 2 of
    Gong et al. 2014, or inner products (`product`) or Euclidean distances (`distance`) as in Socher et al. 2014,
    section 5. Each comparison has a class of its own, and this class is for `cosine`.
    """

    score: ClassVar[str] = "cosine"

    @classmethod
    def fit(cls, task: FitTask) -> Tuned:
        """Fit models to the target pairs with the settings of the grid. Return the model that is best on dev, and all
        trials. The setting `score` decides the class of the model.

        The pairs are read block by block in five passes. Raises InputError if a view is constant or not finite, or if
        the views are uncorrelated.
        """
        blocks = task.sets.target_blocks
        settings = task.settings
        maps = FeatureMaps(
            KernelFeatures.fit(
                lambda: (block.x for block in blocks()), settings.image_kernel, GAMMA, MAX_LANDMARKS, task.seed
            ),
            KernelFeatures.fit(
                lambda: (one_matrix(block.y) for block in blocks()),
                settings.text_kernel, GAMMA, MAX_LANDMARKS, task.seed,
            ),
        )  # fmt: skip
        prepared = PreparedViews(mapped_moments(task.sets.target, blocks(), maps), maps)
        return tune(SCORES[settings.score], task.view, task.text, prepared, task.dev, task.own_grid, task.progress)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "score": self.score}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> LinearModel:
        """Restore a model from the results of `settings` and `tensors`, as an object of the class in SCORES that
        belongs to the stored `score`."""
        return super(KernelCCA, SCORES[read_setting(settings, "score", str)]).from_parts(settings, tensors)


class ProductKernelCCA(KernelCCA):
    """Kernel CCA compared by inner products of vectors that are not scaled to unit length.

    Settings are chosen by the mean rank on dev, which Socher et al. 2014 report, instead of the recall sum.
    """

    score = "product"
    by_mean_rank = True

    @staticmethod
    def finish(projected: np.ndarray, values: np.ndarray, power: float) -> np.ndarray:
        return projected * values**power


class DistanceKernelCCA(ProductKernelCCA):
    """Kernel CCA compared by Euclidean distances of vectors that are not scaled to unit length. Settings are chosen by
    the mean rank on dev."""

    score = "distance"
    metric = "euclidean"


SCORES = {model.score: model for model in (KernelCCA, ProductKernelCCA, DistanceKernelCCA)}
"""Value of the setting `score` -> class of kernel CCA that compares in this way."""


def _count_and_variance(blocks: "Iterable[TextVectors]") -> tuple[int, float]:
    """Count the rows of all blocks, and compute their total variance, which is the sum of the variances of all columns.

    The variance is 0 if all rows are equal up to rounding, or if there are no rows. The variance is not finite if a row
    has a value that is not finite.
    """
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
        # The squares of the blocks are about different means. The difference of the means adds the term of Chan, Golub
        # and LeVeque 1983, as in Moments.
        squares += n * count / (n + count) * float(np.square(own - mean).sum())
        mean = mean + (own - mean) * (count / (n + count))
        n += count
    is_constant = squares <= n * float(np.finfo(np.float32).eps) ** 2 * float(np.square(mean).sum())
    return n, 0.0 if is_constant else squares / n


def _double(block: "TextVectors") -> "TextVectors":
    return block.astype(np.float64)  # pyright: ignore[reportReturnType]  # SciPy's astype has no type


def _pick_rows(blocks: "Iterable[TextVectors]", numbers: np.ndarray) -> Rows:
    """Return the rows with the `numbers` (k,) as float64. The numbers are in ascending order. They count from 0 through
    the rows of all blocks."""
    start = 0
    picked = []
    for block in blocks:
        stop = start + shape_of(block)[0]
        first, last = np.searchsorted(numbers, [start, stop])
        picked.append(_double(block[numbers[first:last] - start]))
        start = stop
    return stack_blocks(picked)
