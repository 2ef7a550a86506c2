"""Choosing ridges, dimension and eigenvalue power on the dev split, from one set of moments."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from scipy import sparse

from pipeline.metrics.ranks import count_ranks
from pipeline.metrics.retrieval import recall_sum
from pipeline.models.linear.feature_maps import FeatureMaps, mapped_columns, project
from pipeline.models.linear.moments import Expansion, Moments
from pipeline.models.linear.projection import Directions, LinearModel, Solver
from pipeline.models.linear.views import ImageView
from pipeline.settings.models import FitSettings


@dataclass(frozen=True)
class PairArrays:
    """Images and their sentences: features encoder -> (n, dim), sentences (m, d), owners (m,) the image row of each."""

    features: Mapping[str, np.ndarray]
    sentences: sparse.csr_array
    owners: np.ndarray


@dataclass(frozen=True)
class GridTrial:
    """One combination and its score on dev: the sum of recall@1, 5 and 10 in both directions, at most 600."""

    image_ridge: float
    text_ridge: float
    dimensions: int
    eigenvalue_power: float
    recall_sum: float
    transfer: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PreparedViews:
    """What a training made of its pairs: the moments of the views to project, and the maps of these views.

    With `expansions` (image, text) the directions are solved on views linear in these, and pulled back.
    """

    moments: Moments
    maps: FeatureMaps = FeatureMaps()
    expansions: tuple[Expansion, Expansion] | None = None

    def solver(self, kind: type[Solver]) -> Solver:
        return kind(self.moments) if self.expansions is None else _ExpandedSolver(kind, self.moments, *self.expansions)


class _ExpandedSolver:
    """Solves on expanded views and returns the same directions on the views themselves."""

    def __init__(self, kind: type[Solver], moments: Moments, x: Expansion, y: Expansion) -> None:
        self._inner, self._x, self._y = kind(moments.expanded(x, y)), x, y

    def solve(self, image_ridge: float, text_ridge: float, dimensions: int) -> Directions:
        found = self._inner.solve(image_ridge, text_ridge, dimensions)
        return Directions(self._x.pull_back(found.w), self._y.pull_back(found.u), found.values)


@dataclass(frozen=True)
class Tuned:
    """The chosen model, the combination that chose it, every trial, and the correlations that show overfitting; of
    held-out pairs there are none where dev was learned from."""

    model: LinearModel
    chosen: GridTrial
    trials: Sequence[GridTrial]
    train_correlations: np.ndarray
    dev_correlations: np.ndarray | None

    def refitted(self, chosen: GridTrial) -> "Tuned":
        """This model of pairs that held dev: what it does on dev says nothing, and `chosen` was chosen before."""
        return replace(self, chosen=chosen, trials=(), dev_correlations=None)

    def log(self) -> dict[str, Any]:
        """What a person needs to judge the choice, as JSON values."""
        held_out = self.dev_correlations
        return {
            "criterion": "sum of recall@1, @5 and @10 of both directions on dev",
            "chosen": asdict(self.chosen),
            "train_correlations": np.round(self.train_correlations, 6).tolist(),
            "dev_correlations": None if held_out is None else np.round(held_out, 6).tolist(),
            "trials": [asdict(trial) for trial in self.trials],
        }


def tune(
    model: type[LinearModel],
    view: ImageView,
    prepared: PreparedViews,
    dev: PairArrays,
    grid: FitSettings,
    progress: Callable[[Sequence], Iterable] = iter,
    transfer: Mapping[str, Any] | None = None,
) -> Tuned:
    """Fit `model` on `prepared` with the combinations of `grid` and keep the best on `dev`.

    `progress` may wrap each sequence of ridge pairs to show how far it has come; `transfer` is noted in the trials.
    """
    solver, moments, maps = prepared.solver(model.solver), prepared.moments, prepared.maps
    mean_x, mean_y = moments.mean_x.astype(np.float32), moments.mean_y.astype(np.float32)
    x, y = mapped_columns(view.stack(dev.features), maps.image), mapped_columns(dev.sentences, maps.text)
    trials: list[GridTrial] = []
    best: tuple[GridTrial, Directions] | None = None
    lines = _Lines(grid.image_ridge, grid.text_ridge if model.uses_text_ridge else [0.0], grid.search)
    while pairs := lines.next(best and best[0]):
        for text_ridge, image_ridge in progress(pairs):
            directions = solver.solve(image_ridge, text_ridge, max(grid.dimensions))
            images, sentences = project(x, mean_x, directions.w), project(y, mean_y, directions.u)
            for dimensions, power in _shapes(model, grid, len(directions.values)):
                values = directions.values[:dimensions]
                a = model.finish(images[:, :dimensions], values, power)
                b = model.finish(sentences[:, :dimensions], values, power)
                score = recall_sum(count_ranks(a, b, dev.owners, model.metric))
                trials.append(GridTrial(image_ridge, text_ridge, dimensions, power, score, transfer or {}))
                if best is None or trials[-1].recall_sum > best[0].recall_sum:
                    best = (trials[-1], directions)
    chosen, directions = best
    kept = directions.first(chosen.dimensions)
    fitted = model(view, mean_x, mean_y, kept, chosen.eigenvalue_power, maps)
    held_out = paired_correlations(project(x, mean_x, kept.w)[dev.owners], project(y, mean_y, kept.u))
    trained = _training_correlations(moments, kept.w, kept.u)
    return Tuned(fitted, chosen, tuple(trials), trained, held_out)


class _Lines:
    """Which pairs (text ridge, image ridge) to try next, none of them twice."""

    def __init__(self, image_ridges: Sequence[float], text_ridges: Sequence[float], search: str) -> None:
        self._image, self._text, self._search = image_ridges, text_ridges, search
        self._tried: set[tuple[float, float]] = set()

    def next(self, best: GridTrial | None) -> list[tuple[float, float]]:
        """The next sequence of pairs given the best trial so far; empty at the end."""
        if self._search == "grid":
            lines = [itertools.product(self._text, self._image)]
        else:
            text = best.text_ridge if best else self._text[len(self._text) // 2]
            lines = [((text, image) for image in self._image)]
            lines += [((text, best.image_ridge) for text in self._text)] if best else []
        for line in lines:
            if new := [pair for pair in line if pair not in self._tried]:
                self._tried.update(new)
                return new
        return []


def _shapes(model: type[LinearModel], grid: FitSettings, rank: int) -> list[tuple[int, float]]:
    """The (dimensions, power) to try; dimensions beyond the rank of the solution are one and the same."""
    dimensions = sorted({min(c, rank) for c in grid.dimensions})
    return list(itertools.product(dimensions, grid.eigenvalue_power if model.uses_eigenvalue_power else [0.0]))


def _training_correlations(moments: Moments, w: np.ndarray, u: np.ndarray) -> np.ndarray:
    """(c,) correlations of the training pairs along each direction, without the ridge that the solution has in it."""
    xy = np.einsum("ic,ic->c", w, moments.xy @ u)
    xx = np.einsum("ic,ic->c", w, moments.xx @ w)
    yy = np.einsum("ic,ic->c", u, moments.yy @ u)
    return xy / np.sqrt(np.maximum(xx * yy, np.finfo(np.float32).tiny))


def paired_correlations(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(c,) the correlation of each column of a (n, c) with that of b (n, c)."""
    a, b = a - a.mean(axis=0), b - b.mean(axis=0)
    scale = np.sqrt((a * a).sum(axis=0) * (b * b).sum(axis=0))
    return (a * b).sum(axis=0) / np.maximum(scale, np.finfo(np.float32).tiny)
