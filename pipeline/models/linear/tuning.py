"""The choice of ridges, dimensions and eigenvalue power on dev, from one set of moments."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from pipeline.config.models import FitSettings
from pipeline.metrics.ranks import Ranks, count_ranks
from pipeline.metrics.retrieval import mean_rank, recall_sum
from pipeline.models.joint_model import TextVectors
from pipeline.models.linear.feature_maps import FeatureMaps, mapped_columns, project
from pipeline.models.linear.moments import Expansion, Moments
from pipeline.models.linear.projection import EIGENVALUES, Directions, LinearModel, Solver
from pipeline.models.linear.views import ImageView, TextView

Choices = Mapping[str, float | str]
"""The values that are chosen on dev beside the grid, axis -> value."""


@dataclass(frozen=True)
class PairArrays:
    """n images and their m sentences: `features`, encoder -> (n, dim), `sentences`, text encoder -> (m, dim), sparse or
    dense, and `owners` (m,), the image row of each sentence."""

    features: Mapping[str, np.ndarray]
    sentences: "Mapping[str, TextVectors]"
    owners: np.ndarray


@dataclass(frozen=True)
class GridTrial:
    """One combination and its scores on dev: the sum of recall@1, 5 and 10 in both directions, at most 600, and the
    mean rank. `eigenvalues`, one of EIGENVALUES, names the eigenvalues whose power scales the directions."""

    image_ridge: float
    text_ridge: float
    dimensions: int
    eigenvalue_power: float
    recall_sum: float
    text_weights: Mapping[str, float] = field(default_factory=dict)
    transfer: Choices = field(default_factory=dict)
    eigenvalues: str = "correlation"
    mean_rank: float = 1.0

    def merit(self, by_mean_rank: bool = False) -> tuple[float, float, int]:
        """Return the key by which trials are compared; the greatest is the best. If a small dev split leaves recalls
        equal, ranks decide. If all ranks are 1, more dimensions are better, because later images must be told apart."""
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

    def solver(self, kind: type[Solver]) -> Callable[[float, float, int], Directions]:
        """Return `kind(moments).solve`, whose directions are on the views themselves."""
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
        """The merit of the chosen combination, as the model counts it."""
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
    """List the choices, as `key value`, that are the least or the greatest of several values in `trials`, so that
    values beyond them may be better. `trials` and `chosen` are GridTrials as stored in JSON. Nothing lies beyond 0."""
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
"""Choices whose values have no upper bound."""


def tune(
    model: type[LinearModel],
    view: ImageView,
    text: TextView,
    prepared: PreparedViews,
    dev: PairArrays,
    grid: FitSettings,
    progress: Callable[[Sequence], Iterable] = iter,
    transfer: Choices | None = None,
) -> Tuned:
    """Fit `model` on `prepared` with the combinations of `grid` and keep the best on `dev`.

    `progress` wraps each sequence of ridge pairs, for a progress bar; `transfer` is recorded in the trials.
    """
    solve = prepared.solver(model.solver)
    judge = _DevJudge(model, view, text, prepared, dev)
    trials: list[GridTrial] = []
    best: tuple[GridTrial, Directions] | None = None
    tried: set[tuple[float, float]] = set()
    while pairs := _next_ridges(grid, model.uses_text_ridge, best and best[0], tried):
        for text_ridge, image_ridge in progress(pairs):
            directions = solve(image_ridge, text_ridge, max(grid.dimensions))
            shapes = _shapes(model, grid, len(directions.values))
            new_trials = [
                GridTrial(
                    image_ridge, text_ridge, shape.dimensions, shape.power, recall_sum(ranks), text.weight_of,
                    transfer or {}, shape.eigenvalues, mean_rank(ranks),
                )
                for shape, ranks in zip(shapes, judge.rank(directions, shapes), strict=True)
            ]  # fmt: skip
            trials += new_trials
            leader = max(new_trials, key=lambda trial: trial.merit(model.by_mean_rank))
            if best is None or leader.merit(model.by_mean_rank) > best[0].merit(model.by_mean_rank):
                best = leader, directions
    assert best is not None  # the first round of ridges is never empty
    chosen, directions = best
    kept = directions.first(chosen.dimensions)
    kept = replace(kept, values=kept.values + EIGENVALUES[chosen.eigenvalues])
    fitted = model(view, text, judge.mean_x, judge.mean_y, kept, chosen.eigenvalue_power, prepared.maps)
    images, sentences = judge.project(kept)
    dev_correlations = paired_correlations(images[dev.owners], sentences)
    return Tuned(
        fitted, chosen, tuple(trials), training_correlations(prepared.moments, kept.w, kept.u), dev_correlations
    )


class Shape(NamedTuple):
    """The choices that need no new solution: the first `dimensions`, and the power of their eigenvalues."""

    dimensions: int
    power: float
    eigenvalues: str


class _DevJudge:
    """The mapped dev views, and the ranks of their pairs by directions."""

    def __init__(
        self, model: type[LinearModel], view: ImageView, text: TextView, prepared: PreparedViews, dev: PairArrays
    ) -> None:
        self.model = model
        self.owners = dev.owners
        self.x = mapped_columns(view.stack(dev.features), prepared.maps.image)
        self.y = mapped_columns(text.stack(dev.sentences), prepared.maps.text)
        self.mean_x = prepared.moments.mean_x.astype(np.float32)
        self.mean_y = prepared.moments.mean_y.astype(np.float32)

    def project(self, directions: Directions) -> tuple[np.ndarray, np.ndarray]:
        """Project the dev images and sentences on all directions."""
        return project(self.x, self.mean_x, directions.w), project(self.y, self.mean_y, directions.u)

    def rank(self, directions: Directions, shapes: Sequence[Shape]) -> list[Ranks]:
        """Rank the dev pairs by the directions in each of `shapes`."""
        images, sentences = self.project(directions)
        ranks = []
        for dimensions, power, eigenvalues in shapes:
            values = directions.values[:dimensions] + EIGENVALUES[eigenvalues]
            finished = [self.model.finish(side[:, :dimensions], values, power) for side in (images, sentences)]
            ranks.append(count_ranks(finished[0], finished[1], self.owners, self.model.metric))
        return ranks


def _next_ridges(
    grid: FitSettings, uses_text_ridge: bool, best: GridTrial | None, tried: set[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Return the (text ridge, image ridge) to try next, given the best trial so far, and add them to `tried`. At the
    end the list is empty."""
    for line in _lines_of_ridges(grid, grid.text_ridge if uses_text_ridge else (0.0,), best):
        if new := [pair for pair in line if pair not in tried]:
            tried.update(new)
            return new
    return []


def _lines_of_ridges(
    grid: FitSettings, text_ridges: Sequence[float], best: GridTrial | None
) -> list[list[tuple[float, float]]]:
    """Return lists of ridges in the order of their use; the first list with an untried pair is tried next."""
    if grid.search == "grid":
        return [list(itertools.product(text_ridges, grid.image_ridge))]
    if best is None:
        middle = _middle(text_ridges)
        images = [_middle(grid.image_ridge)] if grid.search == "walk" else grid.image_ridge
        return [[(middle, image) for image in images]]
    if grid.search == "walk":
        around = _around(text_ridges, best.text_ridge), _around(grid.image_ridge, best.image_ridge)
        return [list(itertools.product(*around))]
    return [
        [(best.text_ridge, image) for image in grid.image_ridge],
        [(text, best.image_ridge) for text in text_ridges],
    ]


def _middle(values: Sequence[float]) -> float:
    return values[len(values) // 2]


def _around(values: Sequence[float], value: float) -> list[float]:
    """Return `value` and its neighbours in the sorted values."""
    ordered = sorted(values)
    position = ordered.index(value)
    return ordered[max(0, position - 1) : position + 2]


def _shapes(model: type[LinearModel], grid: FitSettings, rank: int) -> list[Shape]:
    """Return the shapes to try, with dimensions of at most `rank`."""
    dimensions = sorted({min(count, rank) for count in grid.dimensions})
    if not model.uses_eigenvalue_power:
        return [Shape(count, 0.0, "correlation") for count in dimensions]
    return [Shape(*shape) for shape in itertools.product(dimensions, grid.eigenvalue_power, grid.eigenvalues)]


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
