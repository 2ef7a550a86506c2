"""The trainings of linear models, on target pairs, auxiliary (weakly annotated) pairs, or both (Gong et al. 2014,
section 4)."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.config.models import FitSettings, TransferSettings
from pipeline.config.registry import GRID, TRAININGS
from pipeline.errors import UsageError
from pipeline.models.linear.accumulation import mapped_moments
from pipeline.models.linear.feature_maps import (
    FeatureMaps,
    FourierFeatures,
    FourierMap,
    NeighbourText,
    ReservoirSample,
    TanhFeatures,
    bandwidth,
)
from pipeline.models.linear.moments import Expansion, Moments
from pipeline.models.linear.projection import EIGENVALUES
from pipeline.models.linear.tuning import GridTrial, PairArrays, PreparedViews, Tuned, tune
from pipeline.models.linear.views import ImageView, Rows, TextView, ViewBlock

SAMPLE = 2000
"""Target images, and sentences, drawn at random, on which sigma of the random Fourier map is measured."""

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Sets:
    """The training data: moments of pairs, and the pairs in blocks where moments do not suffice."""

    target: Moments
    auxiliary: Moments | None
    target_blocks: Callable[[], Iterable[ViewBlock]]
    auxiliary_blocks: Callable[[], Iterable[ViewBlock]]


@dataclass(frozen=True)
class FitTask:
    """One model to fit. `settings` are those that only this model has.

    `memory` caches the CCA of the auxiliary pairs; tasks with the same auxiliary pairs and grid may share it. Second
    passes over the data run on `device`, or with numpy if it is None. With `chosen`, only that combination is fitted.
    """

    training: str
    view: ImageView
    text: TextView
    sets: Sets
    dev: PairArrays
    grid: FitSettings
    transfer: TransferSettings
    settings: Any
    seed: int
    progress: Callable[[Sequence], Iterable] = iter
    memory: dict[tuple[type, int], Tuned] = field(default_factory=dict)
    device: "torch.device | None" = None
    chosen: GridTrial | None = None

    @property
    def own_grid(self) -> FitSettings:
        """`grid`, or only the combination `chosen`."""
        if self.chosen is None:
            return self.grid
        return self.grid.model_copy(update={axis: (getattr(self.chosen, axis),) for axis in GRID} | {"search": "grid"})

    @property
    def combinations(self) -> list[dict[str, Any]]:
        """Every combination of the axes of `transfer` that `training` has, axis -> value, or the chosen one."""
        if self.chosen:
            return [dict(self.chosen.transfer)]
        used = {name: getattr(self.transfer, name) for name in TRAININGS[self.training]}
        axes = {name: values for name, values in used.items() if not isinstance(values, int)}
        return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def fit_best(model: type, tasks: Iterable[FitTask]) -> Tuned:
    """The best `model` on dev over `tasks`, which differ in the weights of the text view; at least one."""
    tuned = [model.fit(task) for task in tasks]
    best = max(tuned, key=lambda result: result.merit)
    return replace(best, trials=tuple(trial for result in tuned for trial in result.trials))


def fit_on_moments(model: type, task: FitTask) -> Tuned:
    """The best `model` on dev over both grids, by `task.training`. UsageError if it needs auxiliary pairs and there are
    none."""
    if task.training != "target" and (task.sets.auxiliary is None or not task.sets.auxiliary.n):
        raise UsageError(
            f"training {task.training} needs auxiliary pairs and there are none; check auxiliary.splits and that their"
            " images have a title, tags or a description, or remove the model from models"
        )
    trainer = _Trainer(model, task)
    tuned = [trainer.tune(chosen) for chosen in task.combinations]
    best = max(tuned, key=lambda result: result.merit)
    return replace(best, trials=tuple(trial for result in tuned for trial in result.trials))


class _Trainer:
    """A method for each training; what several combinations need is computed once."""

    def __init__(self, model: type, task: FitTask) -> None:
        self.model, self.task, self.sets = model, task, task.sets

    def tune(self, chosen: Mapping[str, Any]) -> Tuned:
        """The best over ridges, dimensions and eigenvalue powers for one combination of transfer's axes."""
        prepared = getattr(self, "_" + self.task.training.replace("-", "_"))(**chosen)
        task = self.task
        return tune(self.model, task.view, task.text, prepared, task.dev, task.own_grid, task.progress, chosen)

    def _target(self) -> PreparedViews:
        return PreparedViews(self.sets.target)

    def _auxiliary(self) -> PreparedViews:
        return PreparedViews(self.sets.auxiliary)

    def _joint(self, beta: float) -> PreparedViews:
        """CCA on [X; beta F], [Y; beta T]."""
        return PreparedViews(self.sets.target + self.sets.auxiliary.scaled(beta**2))

    def _text_feature(self, neighbour_share: float) -> PreparedViews:
        """CCA on [X, s T^], Y, where T^ is the mean text of the k nearest auxiliary images; the total variance of s T^
        is `neighbour_share` times that of X."""
        if not neighbour_share:
            return self._target()
        texts, moments = self._mean_texts
        variances, d = np.diagonal(moments.xx), len(self.sets.target.mean_x)
        new = variances[d:].sum(dtype=np.float64)
        scale = np.sqrt(neighbour_share * variances[:d].sum(dtype=np.float64) / new) if new > 0 else 1.0
        factors = np.concatenate([np.ones(d), np.full(len(variances) - d, scale)])
        return PreparedViews(moments.scaled_x(factors), FeatureMaps(image=texts.weighted(scale)))

    @cached_property
    def _mean_texts(self) -> tuple[NeighbourText, Moments]:
        """The map x -> T^(x), and the moments of [X, T^], Y."""
        texts = NeighbourText.build(self.sets.auxiliary_blocks(), self.task.transfer.neighbours)
        maps = FeatureMaps(image=texts)
        return texts, mapped_moments(self.sets.target, self.sets.target_blocks(), maps, self.task.device)

    def _stacked(self, **auxiliary: Any) -> PreparedViews:
        """CCA on XA, YB."""
        a, b = self._projections(**auxiliary)
        return PreparedViews(self.sets.target, expansions=(Expansion(a, keep=False), Expansion(b, keep=False)))

    def _sae_linear(self, weight: float, second_beta: float, **auxiliary: Any) -> PreparedViews:
        """CCA on [X, XA], [Y, YB] (eq. 5 without phi)."""
        target, weak = self.sets.target, self.sets.auxiliary
        moments = target + weak.scaled(second_beta**2) if second_beta else target
        if not weight:
            return PreparedViews(moments)
        a, b = self._projections(**auxiliary)
        a = a * np.float32(weight * np.sqrt(np.trace(target.xx) / np.einsum("dc,dc->", a, target.xx @ a)))
        b = b * np.float32(weight * np.sqrt(np.trace(target.yy) / np.einsum("dc,dc->", b, target.yy @ b)))
        return PreparedViews(moments, expansions=(Expansion(a, keep=True), Expansion(b, keep=True)))

    def _sae(
        self, weight: float, second_beta: float, rule: str, bandwidth: float, scale: str, **auxiliary: Any
    ) -> PreparedViews:
        """CCA on [X, phi(XA)], [Y, phi(YB)] (eq. 5)."""
        if not weight:
            return self._sae_linear(weight, second_beta)
        maps = self._fourier_maps(weight, rule, bandwidth, scale, **auxiliary)
        moments = mapped_moments(self.sets.target, self.sets.target_blocks(), maps, self.task.device)
        if second_beta:
            weak = mapped_moments(self.sets.auxiliary, self.sets.auxiliary_blocks(), maps, self.task.device)
            moments = moments + weak.scaled(second_beta**2)
        return PreparedViews(moments, maps)

    @property
    def _embedding(self) -> Tuned:
        """The CCA of the auxiliary pairs, with ridges chosen on dev."""
        task, most = self.task, max(self.task.transfer.auxiliary_dimensions)
        if (self.model, most) not in task.memory:
            grid = task.grid.model_copy(update={"dimensions": (most,)})
            embedding = tune(self.model, task.view, task.text, self._auxiliary(), task.dev, grid, task.progress)
            task.memory[self.model, most] = embedding
        return task.memory[self.model, most]

    def _projections(
        self, auxiliary_dimensions: int, auxiliary_power: float, auxiliary_eigenvalues: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """A (D, c1) and B (d, c1), each column scaled by its eigenvalue to the power."""
        directions = self._embedding.model.directions.first(auxiliary_dimensions)
        correlations = directions.values - EIGENVALUES[self._embedding.chosen.eigenvalues]
        scale = (correlations + EIGENVALUES[auxiliary_eigenvalues]) ** auxiliary_power
        return directions.w * scale, directions.u * scale

    def _fourier_maps(self, weight: float, rule: str, multiple: float, scale: str, **auxiliary: Any) -> FeatureMaps:
        """phi of both views with the same R and b, each view with its own sigma."""
        moments, features = self.sets.target, self.task.transfer.features
        factor = {"unit-variance": 1.0, "unit-sum": self.sets.auxiliary.n**-0.5, "published": 0.5**0.5}[scale]
        maps = []
        for rows, matrix, mean, block in zip(
            self._sample,
            (matrix * np.float32(factor) for matrix in self._projections(**auxiliary)),
            (self._embedding.model.mean_x, self._embedding.model.mean_y),
            (moments.xx, moments.yy),
            strict=True,
        ):
            offset = mean @ matrix
            rng = np.random.default_rng(self.task.seed)
            embedded = rows @ matrix - offset
            if rule == "tanh":
                phi = TanhFeatures(matrix * np.float32(multiple), offset * np.float32(multiple))
            else:
                fourier = FourierMap.draw(rule, matrix.shape[1], features, multiple * bandwidth(embedded), rng)
                phi = FourierFeatures(matrix, offset, fourier)
            variance = phi(rows).var(axis=0, dtype=np.float64).sum()
            balance = np.sqrt(np.trace(block, dtype=np.float64) / moments.n / max(variance, 1e-30))
            maps.append(phi.weighted(float(weight * balance)))
        return FeatureMaps(*maps)

    @cached_property
    def _sample(self) -> tuple[np.ndarray, Rows]:
        """A random sample of target images and one of sentences, on which sigma is measured."""
        count, seed = SAMPLE, self.task.seed
        images, sentences = (ReservoirSample(count, np.random.default_rng([seed, side])) for side in (0, 1))
        for block in self.sets.target_blocks():
            images.add(block.x[np.unique(block.owners)])
            sentences.add(block.y)
        return images.rows(), sentences.rows()
