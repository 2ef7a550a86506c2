"""The choice of ridges, dimensions and eigenvalue power on dev, for models that are fitted to one set of moments."""

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
"""The values of settings that are chosen on dev but are not axes of the grid, such as `beta`, name -> value."""


@dataclass(frozen=True)
class PairArrays:
    """n images and their m sentences.

    `features` maps an encoder to (n, dim). `sentences` maps a text encoder to (m, dim), sparse or dense. Sentence j
    belongs to the image in row `owners[j]`.
    """

    features: Mapping[str, np.ndarray]
    sentences: "Mapping[str, TextVectors]"
    owners: np.ndarray


@dataclass(frozen=True)
class GridTrial:
    """One combination of settings and its scores on dev.

    `recall_sum` is the sum of recall@1, @5 and @10 of both directions of search in percent, at most 600. `mean_rank` is
    the mean rank over both directions of search. `eigenvalues`, one of EIGENVALUES, names the eigenvalues whose power
    scales the directions. `text_weights` has the weight of each text encoder in the text view. `transfer` has the
    values of the axes that are not in the grid.
    """

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
        """Return the key by which trials are compared. The trial with the greatest key is the best.

        The key has the recall sum, then the mean rank, then the number of dimensions. `by_mean_rank` exchanges the
        first two. The mean rank decides if the recalls are equal, as they often are on a small dev split. If all ranks
        are 1, more dimensions are better, because they can separate more images of a larger collection.
        """
        if by_mean_rank:
            return -self.mean_rank, self.recall_sum, self.dimensions
        return self.recall_sum, -self.mean_rank, self.dimensions


@dataclass(frozen=True)
class PreparedViews:
    """The training data of `tune`.

    `moments` are the moments of the views after the nonlinear feature `maps`. `expansions` are linear maps of the image
    view and of the text view, or None. If there are any, the directions are computed on the expanded views, and then
    converted to the directions of the views that give the same projections.
    """

    moments: Moments
    maps: FeatureMaps = FeatureMaps()
    expansions: tuple[Expansion, Expansion] | None = None

    def solver(self, kind: type[Solver]) -> Callable[[float, float, int], Directions]:
        """Return a function from (image ridge, text ridge, dimensions) to the directions of the views before expansion.

        `kind` is the class of the solver.
        """
        if self.expansions is None:
            return kind(self.moments).solve
        (x, y), expanded = self.expansions, kind(self.moments.expanded(*self.expansions))

        def solve(image_ridge: float, text_ridge: float, dimensions: int) -> Directions:
            directions = expanded.solve(image_ridge, text_ridge, dimensions)
            return Directions(x.pull_back(directions.w), y.pull_back(directions.u), directions.values)

        return solve


@dataclass(frozen=True)
class Tuned:
    """The result of tuning: the chosen model, its combination of settings, and all trials.

    `train_correlations` (c,) and `dev_correlations` (c,) are the correlations of the pairs along each direction. A
    large difference between them shows overfitting. `dev_correlations` is None if the model was trained on dev too.
    """

    model: LinearModel
    chosen: GridTrial
    trials: Sequence[GridTrial]
    train_correlations: np.ndarray
    dev_correlations: np.ndarray | None

    @property
    def merit(self) -> tuple[float, float, int]:
        """The merit of the chosen combination, by the model's own criterion."""
        return self.chosen.merit(self.model.by_mean_rank)

    def refitted(self, chosen: GridTrial) -> "Tuned":
        """Return this result without its own scores on dev, for a model that was trained on dev too.

        Such scores would say nothing about new photos. `chosen` is the combination that was chosen before, with its
        scores.
        """
        return replace(self, chosen=chosen, trials=(), dev_correlations=None)

    def log(self) -> dict[str, Any]:
        """Return the choice, its criterion, all trials and the correlations as JSON values."""
        held_out = self.dev_correlations
        recalls = "sum of recall@1, @5 and @10 of both directions"
        order = ("mean rank", recalls) if self.model.by_mean_rank else (recalls, "mean rank")
        return {
            "criterion": f"{order[0]} on dev, then {order[1]}, then dimensions",
            "chosen": asdict(self.chosen),
            "train_correlations": np.round(self.train_correlations, 6).tolist(),
            "dev_correlations": None if held_out is None else np.round(held_out, 6).tolist(),
            "trials": [asdict(trial) for trial in self.trials],
        }


def choices_at_edges(trials: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any]) -> list[str]:
    """List the chosen values that are the least or the greatest of the values that were tried, as `key value`.

    Values beyond them may be better. Only the keys in UNBOUNDED are listed, and never a value of 0. `trials` and
    `chosen` are GridTrials in the form in which they are stored in JSON.
    """
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
"""Keys of choices whose values have no upper bound."""


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
    """Fit `model` on `prepared` with the combinations of `grid`, and return the best on `dev` with all trials.

    `progress` wraps each sequence of ridge pairs, for example in a progress bar. `transfer` is recorded in the trials.
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
    assert best is not None  # The first list of ridges is never empty.
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
    """The settings that can be tried without computing directions again: the number of `dimensions`, and the `power` to
    which the `eigenvalues` are raised, where `eigenvalues` is a key of EIGENVALUES."""

    dimensions: int
    power: float
    eigenvalues: str


class _DevJudge:
    """The mapped views of the dev pairs, which are ranked by given directions."""

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
        """Project the dev images and sentences on all directions. Return (n, c) and (m, c)."""
        return project(self.x, self.mean_x, directions.w), project(self.y, self.mean_y, directions.u)

    def rank(self, directions: Directions, shapes: Sequence[Shape]) -> list[Ranks]:
        """Rank the dev pairs by `directions`, once for each of `shapes`."""
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
    """Return the pairs (text ridge, image ridge) to try next, given the `best` trial so far, and add them to `tried`.

    The list is empty if no pair is left to try. The text ridge is always 0 if the solver does not use it.
    """
    for line in _lines_of_ridges(grid, grid.text_ridge if uses_text_ridge else (0.0,), best):
        if new := [pair for pair in line if pair not in tried]:
            tried.update(new)
            return new
    return []


def _lines_of_ridges(
    grid: FitSettings, text_ridges: Sequence[float], best: GridTrial | None
) -> list[list[tuple[float, float]]]:
    """Return lists of pairs (text ridge, image ridge). The first list with an untried pair is tried next.

    `grid.search` decides: `grid` tries all pairs. `walk` begins in the middle of both axes, and then tries the
    neighbours of the best pair. `lines` begins with all image ridges at the middle text ridge, and then tries all image
    ridges at the best text ridge, and all text ridges at the best image ridge.
    """
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
    """Return the combinations of dimensions (at most `rank`), power and eigenvalues to try."""
    dimensions = sorted({min(count, rank) for count in grid.dimensions})
    if not model.uses_eigenvalue_power:
        return [Shape(count, 0.0, "correlation") for count in dimensions]
    return [Shape(*shape) for shape in itertools.product(dimensions, grid.eigenvalue_power, grid.eigenvalues)]


def training_correlations(moments: Moments, w: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Compute the correlations (c,) of the training pairs along the directions `w` (D, c) and `u` (d, c), without
    ridges."""
    xy = np.einsum("ic,ic->c", w, moments.xy @ u)
    xx = np.einsum("ic,ic->c", w, moments.xx @ w)
    yy = np.einsum("ic,ic->c", u, moments.yy @ u)
    return xy / np.sqrt(np.maximum(xx * yy, np.finfo(np.float32).tiny))


def paired_correlations(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute the correlation of each column of `a` (n, c) with the same column of `b` (n, c). Return (c,)."""
    a = a - a.mean(axis=0)
    b = b - b.mean(axis=0)
    scale = np.sqrt((a * a).sum(axis=0) * (b * b).sum(axis=0))
    return (a * b).sum(axis=0) / np.maximum(scale, np.finfo(np.float32).tiny)
