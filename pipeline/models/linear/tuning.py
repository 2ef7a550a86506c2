"""Choosing ridges, dimension and eigenvalue power on dev, from one set of moments."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from pipeline.config.models import FitSettings
from pipeline.metrics.ranks import count_ranks
from pipeline.metrics.retrieval import mean_rank, recall_sum
from pipeline.models.linear.feature_maps import FeatureMaps, mapped_columns, project
from pipeline.models.linear.moments import Expansion, Moments
from pipeline.models.linear.projection import EIGENVALUES, Directions, LinearModel
from pipeline.models.linear.views import ImageView, TextView


@dataclass(frozen=True)
class PairArrays:
    """Images and their sentences: features encoder -> (n, dim), sentences text encoder -> (m, dim), sparse or dense,
    owners (m,) the image row of each."""

    features: Mapping[str, np.ndarray]
    sentences: Mapping[str, Any]
    owners: np.ndarray


@dataclass(frozen=True)
class GridTrial:
    """One combination and its scores on dev: the sum of recall@1, 5 and 10 in both directions, at most 600, and their
    mean rank. `eigenvalues`, one of EIGENVALUES, are those whose power scales the directions."""

    image_ridge: float
    text_ridge: float
    dimensions: int
    eigenvalue_power: float
    recall_sum: float
    text_weights: Mapping[str, float] = field(default_factory=dict)
    transfer: Mapping[str, Any] = field(default_factory=dict)
    eigenvalues: str = "correlation"
    mean_rank: float = 1.0

    def merit(self, by_mean_rank: bool = False) -> tuple[float, float, int]:
        """The greater the better. Where a small dev split leaves recalls equal, ranks decide; where all are 1, more
        dimensions, for there will be more images to tell apart."""
        if by_mean_rank:
            return -self.mean_rank, self.recall_sum, self.dimensions
        return self.recall_sum, -self.mean_rank, self.dimensions


@dataclass(frozen=True)
class PreparedViews:
    """The moments of the views to project, and the maps of these views. With `expansions` (image, text), the directions
    are solved on the expanded views and pulled back."""

    moments: Moments
    maps: FeatureMaps = FeatureMaps()
    expansions: tuple[Expansion, Expansion] | None = None

    def solver(self, kind: Callable[[Moments], Any]) -> Callable[[float, float, int], Directions]:
        """`kind(moments).solve`, for directions on the views themselves."""
        if self.expansions is None:
            return kind(self.moments).solve
        (x, y), expanded = self.expansions, kind(self.moments.expanded(*self.expansions))

        def solve(image_ridge: float, text_ridge: float, dimensions: int) -> Directions:
            directions = expanded.solve(image_ridge, text_ridge, dimensions)
            return Directions(x.pull_back(directions.w), y.pull_back(directions.u), directions.values)

        return solve


@dataclass(frozen=True)
class Tuned:
    """The chosen model and combination, every trial, and the correlations that show overfitting; those of dev are None
    if dev is training data."""

    model: LinearModel
    chosen: GridTrial
    trials: Sequence[GridTrial]
    train_correlations: np.ndarray
    dev_correlations: np.ndarray | None

    @property
    def merit(self) -> tuple[float, float, int]:
        """That of the chosen combination, as the model counts it."""
        return self.chosen.merit(self.model.by_mean_rank)

    def refitted(self, chosen: GridTrial) -> "Tuned":
        """The same for a model trained on dev too, whose dev scores mean nothing; `chosen` was chosen before."""
        return replace(self, chosen=chosen, trials=(), dev_correlations=None)

    def log(self) -> dict[str, Any]:
        """The choice and its evidence, as JSON values."""
        held_out, recalls = self.dev_correlations, "sum of recall@1, @5 and @10 of both directions"
        order = ("mean rank", recalls) if self.model.by_mean_rank else (recalls, "mean rank")
        return {
            "criterion": f"{order[0]} on dev, then {order[1]}, then dimensions",
            "chosen": asdict(self.chosen),
            "train_correlations": np.round(self.train_correlations, 6).tolist(),
            "dev_correlations": None if held_out is None else np.round(held_out, 6).tolist(),
            "trials": [asdict(trial) for trial in self.trials],
        }


def choices_at_edges(trials: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any]) -> list[str]:
    """Those choices of `chosen`, as `key value`, which are the least or the greatest of several that `trials` have, so
    that values beyond may be better: ridges, and what is tried of `transfer`. Nothing lies beyond 0."""
    edges = []
    choices = {"image_ridge": chosen["image_ridge"], "text_ridge": chosen["text_ridge"], **chosen["transfer"]}
    for key, value in choices.items():
        tried = {trial[key] if key in trial else trial["transfer"].get(key) for trial in trials} - {None}
        if key not in UNBOUNDED or len(tried) < 2 or value == 0:
            continue
        if value in (min(tried), max(tried)):
            edges.append(f"{key} {value:g}")
    return edges


UNBOUNDED = (
    "image_ridge", "text_ridge", "beta", "auxiliary_dimensions", "bandwidth", "neighbour_share", "learning_rate",
    "max_norm",
)  # fmt: skip
"""Choices of which no value is the last that there is."""


def tune(
    model: type[LinearModel],
    view: ImageView,
    text: TextView,
    prepared: PreparedViews,
    dev: PairArrays,
    grid: FitSettings,
    progress: Callable[[Sequence], Iterable] = iter,
    transfer: Mapping[str, Any] | None = None,
) -> Tuned:
    """Fit `model` on `prepared` with the combinations of `grid` and keep the best on `dev`.

    `progress` wraps each sequence of ridge pairs, for a progress bar; `transfer` is recorded in the trials.
    """
    solve, moments, maps = prepared.solver(model.solver), prepared.moments, prepared.maps
    mean_x, mean_y = moments.mean_x.astype(np.float32), moments.mean_y.astype(np.float32)
    x = mapped_columns(view.stack(dev.features), maps.image)
    y = mapped_columns(text.stack(dev.sentences), maps.text)
    trials: list[GridTrial] = []
    best: tuple[GridTrial, Directions] | None = None
    tried: set[tuple[float, float]] = set()
    while pairs := _next_ridges(grid, model.uses_text_ridge, best and best[0], tried):
        for text_ridge, image_ridge in progress(pairs):
            directions = solve(image_ridge, text_ridge, max(grid.dimensions))
            images, sentences = project(x, mean_x, directions.w), project(y, mean_y, directions.u)
            for dimensions, power, kind in _shapes(model, grid, len(directions.values)):
                values = directions.values[:dimensions] + EIGENVALUES[kind]
                a = model.finish(images[:, :dimensions], values, power)
                b = model.finish(sentences[:, :dimensions], values, power)
                ranks = count_ranks(a, b, dev.owners, model.metric)
                trial = GridTrial(
                    image_ridge,
                    text_ridge,
                    dimensions,
                    power,
                    recall_sum(ranks),
                    text.weight_of,
                    transfer or {},
                    kind,
                    mean_rank(ranks),
                )
                trials.append(trial)
                if best is None or trial.merit(model.by_mean_rank) > best[0].merit(model.by_mean_rank):
                    best = (trial, directions)
    chosen, directions = best
    kept = directions.first(chosen.dimensions)
    kept = replace(kept, values=kept.values + EIGENVALUES[chosen.eigenvalues])
    fitted = model(view, text, mean_x, mean_y, kept, chosen.eigenvalue_power, maps)
    held_out = paired_correlations(project(x, mean_x, kept.w)[dev.owners], project(y, mean_y, kept.u))
    trained = training_correlations(moments, kept.w, kept.u)
    return Tuned(fitted, chosen, tuple(trials), trained, held_out)


def _next_ridges(
    grid: FitSettings, uses_text_ridge: bool, best: GridTrial | None, tried: set[tuple[float, float]]
) -> list[tuple[float, float]]:
    """The (text ridge, image ridge) to try next, given the best trial so far; empty at the end. Adds them to
    `tried`."""
    texts = grid.text_ridge if uses_text_ridge else [0.0]
    if grid.search == "grid":
        lines = [itertools.product(texts, grid.image_ridge)]
    elif grid.search == "walk":
        if best:
            around = _around(texts, best.text_ridge), _around(grid.image_ridge, best.image_ridge)
        else:
            around = [_middle(texts)], [_middle(grid.image_ridge)]
        lines = [itertools.product(*around)]
    else:
        text = best.text_ridge if best else _middle(texts)
        lines = [((text, image) for image in grid.image_ridge)]
        lines += [((text, best.image_ridge) for text in texts)] if best else []
    for line in lines:
        if new := [pair for pair in line if pair not in tried]:
            tried.update(new)
            return new
    return []


def _middle(values: Sequence[float]) -> float:
    return values[len(values) // 2]


def _around(values: Sequence[float], value: float) -> list[float]:
    """`value` and its neighbours in the sorted values."""
    ordered = sorted(values)
    place = ordered.index(value)
    return ordered[max(0, place - 1) : place + 2]


def _shapes(model: type[LinearModel], grid: FitSettings, rank: int) -> list[tuple[int, float, str]]:
    """The (dimensions, power, eigenvalues) to try, with dimensions of at most `rank`."""
    dimensions = sorted({min(c, rank) for c in grid.dimensions})
    if not model.uses_eigenvalue_power:
        return [(c, 0.0, "correlation") for c in dimensions]
    return list(itertools.product(dimensions, grid.eigenvalue_power, grid.eigenvalues))


def training_correlations(moments: Moments, w: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Compute the correlations (c,) of the training pairs along each direction, without the ridges."""
    xy = np.einsum("ic,ic->c", w, moments.xy @ u)
    xx = np.einsum("ic,ic->c", w, moments.xx @ w)
    yy = np.einsum("ic,ic->c", u, moments.yy @ u)
    return xy / np.sqrt(np.maximum(xx * yy, np.finfo(np.float32).tiny))


def paired_correlations(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(c,) the correlation of each column of a (n, c) with the same column of b (n, c)."""
    a, b = a - a.mean(axis=0), b - b.mean(axis=0)
    scale = np.sqrt((a * a).sum(axis=0) * (b * b).sum(axis=0))
    return (a * b).sum(axis=0) / np.maximum(scale, np.finfo(np.float32).tiny)
