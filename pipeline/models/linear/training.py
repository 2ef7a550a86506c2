"""Training methods of linear models (Gong et al. 2014, section 4).

A target pair is an image with a caption. An auxiliary pair is an image with weak text, such as a title or tags. A
training method uses one of the two sets of pairs, or both.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

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
    measure_bandwidth,
)
from pipeline.models.linear.moments import Expansion, Moments
from pipeline.models.linear.projection import EIGENVALUES, LinearModel
from pipeline.models.linear.tuning import Choices, GridTrial, PairArrays, PreparedViews, Tuned, tune
from pipeline.models.linear.views import ImageView, Rows, TextView, ViewBlock

if TYPE_CHECKING:
    import torch

SAMPLED_ROWS = 2000
"""Maximum number of target images, and maximum number of sentences, that are drawn at random to measure the sigma of a
random Fourier map."""
FACTORS_OF_SCALE = {"unit-variance": 1.0, "published": 0.5**0.5}
"""Value of `transfer.scale` -> factor by which the projections A and B are multiplied for the feature map of the
training `sae`. `unit-sum` is not here, because its factor, n^-1/2, depends on the number n of auxiliary pairs."""


@dataclass(frozen=True)
class Sets:
    """The training data of a model.

    `target` and `auxiliary` are the moments of the target pairs and of the auxiliary pairs. If there is no auxiliary
    set, `auxiliary` is None and `auxiliary_blocks()` yields nothing. `target_blocks()` and `auxiliary_blocks()` yield
    the pairs in blocks, for models that need more than moments. Each call yields all pairs again.
    """

    target: Moments
    auxiliary: Moments | None
    target_blocks: Callable[[], Iterable[ViewBlock]]
    auxiliary_blocks: Callable[[], Iterable[ViewBlock]]


@dataclass(frozen=True)
class FitTask:
    """The task of fitting one model: its training method, its views, its data and the grid of settings to try.

    `training` is a name in TRAININGS. `view` and `text` are the image view and the text view. `grid` has the values of
    ridges, dimensions and eigenvalues to try, and `transfer` has the values of the axes that only some training methods
    use. `dev` are the pairs on which settings are chosen. `progress` wraps each sequence of settings to try, for
    example in a progress bar. `seed` decides all random numbers. `settings` is the section of the configuration that
    only this model has, or None if it has no section. `memory` caches the CCA of the auxiliary pairs, and may be shared
    by tasks with the same views, auxiliary pairs, dev pairs and grid. A second pass over the data, which only feature
    maps need, runs on `device`, or on the CPU if `device` is None. If `chosen` is not None, only this combination of
    settings is fitted, and no settings are chosen.
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
        """The grid of the task. If `chosen` is not None, each axis of the grid has only the value in `chosen`."""
        if self.chosen is None:
            return self.grid
        return self.grid.model_copy(update={axis: (getattr(self.chosen, axis),) for axis in GRID} | {"search": "grid"})

    @property
    def combinations(self) -> list[Choices]:
        """All combinations, axis -> value, of the axes of `transfer` that the training method uses.

        If the method uses no axis, the list has one empty combination. If `chosen` is not None, the list has only the
        values of `chosen`.
        """
        if self.chosen:
            return [self.chosen.transfer]
        used = {name: getattr(self.transfer, name) for name in TRAININGS.get(self.training, ())}
        axes = {name: values for name, values in used.items() if not isinstance(values, int)}
        return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


class FittableModel(Protocol):
    """A registered class of models that has the class method `fit`, which the stage `fit` calls."""

    def fit(self, task: FitTask) -> Tuned:
        """Fit models with the settings of the task. Return the model that is best on dev, and all trials."""
        ...


def fit_best(model: FittableModel, tasks: Iterable[FitTask]) -> Tuned:
    """Fit the registered class `model` to each of `tasks`, of which there is at least one. The tasks differ only in the
    weights of the text encoders.

    Return the result of the task whose model is best on dev, with the trials of all tasks.
    """
    return _best_of([model.fit(task) for task in tasks])


def fit_on_moments(model: type[LinearModel], task: FitTask) -> Tuned:
    """Fit `model` by the training method `task.training`. Return the model that is best on dev, and all trials.

    For each combination of the axes of `task.transfer` that the method uses, `tune` chooses ridges, dimensions and the
    eigenvalue power from `task.grid`. Raises UsageError if the method is unknown, or if the method needs auxiliary
    pairs and there are none. Raises InputError if the solver cannot fit a model to the pairs.
    """
    if task.training != "target" and (task.sets.auxiliary is None or not task.sets.auxiliary.n):
        raise UsageError(
            f"The training {task.training} needs auxiliary pairs of a photo and its weak text, but there are none."
            " Check that auxiliary.splits names the right splits, and that their photos have a title, tags or a"
            " description. Otherwise remove the model from the key models."
        )
    trainer = _Trainer(model, task)
    return _best_of([trainer.tune(choices) for choices in task.combinations])


def _best_of(tuned: Sequence[Tuned]) -> Tuned:
    """Return the result with the greatest merit on dev, with the trials of all results. Among equal results, the first
    is returned."""
    best = max(tuned, key=lambda result: result.merit)
    return replace(best, trials=tuple(trial for result in tuned for trial in result.trials))


@dataclass(frozen=True)
class TransferChoice:
    """One value for each axis of the section `transfer`. pipeline.config.models.TransferSettings describes the axes. An
    axis that the training method does not use has its default."""

    beta: float = 0
    neighbour_share: float = 0
    auxiliary_dimensions: int = 0
    auxiliary_power: float = 0
    auxiliary_eigenvalues: str = "correlation"
    weight: float = 0
    second_beta: float = 0
    rule: str = ""
    bandwidth: float = 0
    scale: str = ""


class _Trainer:
    """The training of one task with any combination of values of the section `transfer`. Several combinations need a
    random sample of the target pairs, the mean texts of the nearest auxiliary images, and the CCA of the auxiliary
    pairs. Each of the three is computed once."""

    def __init__(self, model: type[LinearModel], task: FitTask) -> None:
        self.model = model
        self.task = task
        self.sets = task.sets

    def tune(self, choices: Choices) -> Tuned:
        """Choose the ridges, the dimensions and the eigenvalue power on dev for one combination of `transfer`, axis ->
        value. Return the best model and all trials."""
        task = self.task
        values: dict[str, Any] = {**choices}
        prepared = self.prepare(TransferChoice(**values))
        return tune(self.model, task.view, task.text, prepared, task.dev, task.own_grid, task.progress, choices)

    def prepare(self, choice: TransferChoice) -> PreparedViews:
        """Compute the moments and feature maps for the training method of the task, with the values of `transfer` in
        `choice`.

        In the comments, X and Y are the image view and the text view of the target pairs, and F and T are the image
        view and the text view of the auxiliary pairs. Raises UsageError for an unknown method.
        """
        match self.task.training:
            case "target":
                return PreparedViews(self.sets.target)
            case "auxiliary":
                return PreparedViews(self.auxiliary)
            case "joint":  # CCA of X with the rows of beta F added to it, and of Y with the rows of beta T added to it
                return PreparedViews(self.sets.target + self.auxiliary.scaled(choice.beta**2))
            case "text-feature":
                return self.prepare_text_feature(choice)
            case "stacked":  # CCA of XA and YB, where A and B are the projections by the CCA of F and T
                a, b = self.auxiliary_projections(choice)
                return PreparedViews(self.sets.target, expansions=(Expansion(a, keep=False), Expansion(b, keep=False)))
            case "sae-linear":
                return self.prepare_linear_sae(choice)
            case "sae":
                return self.prepare_sae(choice)
            case other:
                raise UsageError(f"The training {other} is unknown. Set training to one of {', '.join(TRAININGS)}.")

    @property
    def auxiliary(self) -> Moments:
        assert self.sets.auxiliary is not None  # fit_on_moments has raised UsageError if there are no auxiliary pairs.
        return self.sets.auxiliary

    def prepare_text_feature(self, choice: TransferChoice) -> PreparedViews:
        """Prepare CCA of [X, s T^] and Y, where T^ has for each image the mean text vector of its k nearest auxiliary
        images.

        X and Y are the views of the target pairs, and k is `transfer.neighbours`. The factor s is chosen so that the
        total variance of s T^ is `choice.neighbour_share` times the total variance of X. If this share is 0, the image
        view is X alone.
        """
        if not choice.neighbour_share:
            return PreparedViews(self.sets.target)
        texts, moments = self._mean_texts
        variances = np.diagonal(moments.xx)
        d = len(self.sets.target.mean_x)
        text_variance = variances[d:].sum(dtype=np.float64)
        image_variance = variances[:d].sum(dtype=np.float64)
        scale = float(np.sqrt(choice.neighbour_share * image_variance / text_variance)) if text_variance > 0 else 1.0
        factors = np.concatenate([np.ones(d), np.full(len(variances) - d, scale)])
        return PreparedViews(moments.scaled_x(factors), FeatureMaps(image=texts.weighted(scale)))

    @cached_property
    def _mean_texts(self) -> tuple[NeighbourText, Moments]:
        """A pair: the map from an image x to [x, T^(x)], and the moments of the target pairs after this map is applied
        to their images. T^(x) is the mean text vector of the k auxiliary images that are nearest to x, where k is
        `transfer.neighbours`."""
        texts = NeighbourText.build(self.sets.auxiliary_blocks(), self.task.transfer.neighbours)
        maps = FeatureMaps(image=texts)
        return texts, mapped_moments(self.sets.target, self.sets.target_blocks(), maps, self.task.device)

    def prepare_linear_sae(self, choice: TransferChoice) -> PreparedViews:
        """Prepare CCA of [X, XA] and [Y, YB] (Gong et al. 2014, eq. 5 without phi).

        X and Y are the views of the target pairs, and A and B are the projections of the CCA of the auxiliary pairs. A
        and B are scaled so that the total variance of each new block over the target pairs is weight^2 times the total
        variance of its view. With the weight 0, the new blocks are left out. The auxiliary pairs are added to the
        moments with the weight second_beta^2, unless `second_beta` is 0. `weight` and `second_beta` are values in
        `choice`.
        """
        target = self.sets.target
        moments = target + self.auxiliary.scaled(choice.second_beta**2) if choice.second_beta else target
        if not choice.weight:
            return PreparedViews(moments)
        a, b = self.auxiliary_projections(choice)
        a = a * np.float32(choice.weight * np.sqrt(np.trace(target.xx) / np.einsum("dc,dc->", a, target.xx @ a)))
        b = b * np.float32(choice.weight * np.sqrt(np.trace(target.yy) / np.einsum("dc,dc->", b, target.yy @ b)))
        return PreparedViews(moments, expansions=(Expansion(a, keep=True), Expansion(b, keep=True)))

    def prepare_sae(self, choice: TransferChoice) -> PreparedViews:
        """Prepare CCA of [X, phi(XA)] and [Y, phi(YB)] (Gong et al. 2014, eq. 5), where phi is a FourierMap, or tanh
        if `choice.rule` is `tanh`.

        X and Y are the views of the target pairs, and A and B are the projections of the CCA of the auxiliary pairs.
        phi is scaled so that the total variance of its columns is weight^2 times the total variance of the view. With
        the weight 0, the columns of phi are left out. The auxiliary pairs are added to the moments with the weight
        second_beta^2. `weight` and `second_beta` are values in `choice`. The moments of phi need a second pass over the
        target pairs, and over the auxiliary pairs unless `second_beta` is 0.
        """
        if not choice.weight:
            return self.prepare_linear_sae(choice)
        maps = self.fourier_maps(choice)
        moments = mapped_moments(self.sets.target, self.sets.target_blocks(), maps, self.task.device)
        if choice.second_beta:
            weak = mapped_moments(self.auxiliary, self.sets.auxiliary_blocks(), maps, self.task.device)
            moments = moments + weak.scaled(choice.second_beta**2)
        return PreparedViews(moments, maps)

    @property
    def _embedding(self) -> Tuned:
        """The CCA of the auxiliary pairs. The ridges of the CCA are chosen on dev, and the number of dimensions is the
        greatest number in `transfer.auxiliary_dimensions`. The result is kept in the `memory` of the task."""
        task = self.task
        key = self.model, max(task.transfer.auxiliary_dimensions)
        if key not in task.memory:
            grid = task.grid.model_copy(update={"dimensions": (key[1],)})
            prepared = PreparedViews(self.auxiliary)
            task.memory[key] = tune(self.model, task.view, task.text, prepared, task.dev, grid, task.progress)
        return task.memory[key]

    def auxiliary_projections(self, choice: TransferChoice) -> tuple[np.ndarray, np.ndarray]:
        """Compute the projections of images, A (D, c1), and of sentences, B (d, c1), by the CCA of the auxiliary pairs.

        A and B are the matrices of Gong et al. 2014, eq. 5. c1 is `auxiliary_dimensions`, or less if the auxiliary
        pairs have a lower rank. Each column is multiplied by a power of its eigenvalue: `auxiliary_eigenvalues` is the
        form of the eigenvalue, and `auxiliary_power` is the power. These three settings are values in `choice`.
        """
        directions = self._embedding.model.directions.first(choice.auxiliary_dimensions)
        correlations = directions.values - EIGENVALUES[self._embedding.chosen.eigenvalues]
        scale = (correlations + EIGENVALUES[choice.auxiliary_eigenvalues]) ** choice.auxiliary_power
        return directions.w * scale, directions.u * scale

    def fourier_maps(self, choice: TransferChoice) -> FeatureMaps:
        """Make the maps phi(XA) of images and phi(YB) of sentences, with the values in `choice`. If phi is a
        FourierMap, both views draw R and b from the same random numbers, but each view has its own sigma."""
        target = self.sets.target
        model = self._embedding.model
        factor = self.auxiliary.n**-0.5 if choice.scale == "unit-sum" else FACTORS_OF_SCALE[choice.scale]
        a, b = (matrix * np.float32(factor) for matrix in self.auxiliary_projections(choice))
        images, sentences = self._sample
        return FeatureMaps(
            self._fourier_map(choice, images, a, model.mean_x, float(np.trace(target.xx, dtype=np.float64))),
            self._fourier_map(choice, sentences, b, model.mean_y, float(np.trace(target.yy, dtype=np.float64))),
        )

    def _fourier_map(
        self, choice: TransferChoice, rows: Rows, matrix: np.ndarray, mean: np.ndarray, squares: float
    ) -> FourierFeatures | TanhFeatures:
        """Make the map row -> phi((row - mean) `matrix`) for one view, by the rule, bandwidth and weight in `choice`.

        `rows` are a sample of the rows of the view, on which sigma is measured. `squares` is the sum of squares of the
        view about its mean over all target pairs. The new columns are scaled so that their total variance in the sample
        is weight^2 times the total variance of the view, which follows from `squares`.
        """
        offset = mean @ matrix
        if choice.rule == "tanh":
            phi = TanhFeatures(matrix * np.float32(choice.bandwidth), offset * np.float32(choice.bandwidth))
        else:
            rng = np.random.default_rng(self.task.seed)
            sigma = choice.bandwidth * measure_bandwidth(rows @ matrix - offset)
            features = self.task.transfer.features
            phi = FourierFeatures(matrix, offset, FourierMap.draw(choice.rule, matrix.shape[1], features, sigma, rng))
        variance = phi(rows).var(axis=0, dtype=np.float64).sum()
        balance = np.sqrt(squares / self.sets.target.n / max(variance, 1e-30))
        return phi.weighted(float(choice.weight * balance))

    @cached_property
    def _sample(self) -> tuple[Rows, Rows]:
        """A random sample of the target images that have sentences, and a separate random sample of the sentences of
        the target pairs. Sigma is measured on these samples, each of which has at most SAMPLED_ROWS rows."""
        seed = self.task.seed
        images = ReservoirSample(SAMPLED_ROWS, np.random.default_rng([seed, 0]))
        sentences = ReservoirSample(SAMPLED_ROWS, np.random.default_rng([seed, 1]))
        for block in self.sets.target_blocks():
            images.add(block.x[np.unique(block.owners)])
            sentences.add(block.y)
        return images.rows(), sentences.rows()
