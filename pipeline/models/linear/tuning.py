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
"""The values of settings that are chosen on dev but are not axes of FitSettings, such as `beta`, name -> value."""


@dataclass(frozen=True)
class PairArrays:
    """The stored vectors of n images and their m sentences, which are not yet normalised.

    `features` maps an image encoder to (n, dim). `sentences` maps a text encoder to (m, dim), sparse or dense. Sentence
    j belongs to the image in row `owners[j]`, for `owners` (m,).
    """

    features: Mapping[str, np.ndarray]
    sentences: "Mapping[str, TextVectors]"
    owners: np.ndarray


@dataclass(frozen=True)
class GridTrial:
    """One combination of settings and its scores on dev.

    `recall_sum` is the sum of recall@1, @5 and @10 of both directions of search in percent, at most 600. `mean_rank` is
    the mean of the mean ranks of both directions of search, where 1 is best. `mean_rank` is also 1 if it was not
    measured, as for Wsabie. `eigenvalues`, a key of EIGENVALUES, is the form of the eigenvalues. The directions are
    scaled by their eigenvalues to the power `eigenvalue_power`. `text_weights` has the weight of each text encoder in
    the text view. `transfer` has the values of settings that are not axes of FitSettings. A ridge or power that the
    model does not use is 0.
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

        The key has the recall sum, then the negative mean rank, then the number of dimensions. If `by_mean_rank` is
        true, the negative mean rank comes before the recall sum. The mean rank decides between equal recalls, which are
        common on a small dev split. If recalls and mean ranks are equal, for example because all ranks are 1, more
        dimensions are better, because they can separate more images of a larger collection.
        """
        if by_mean_rank:
            return -self.mean_rank, self.recall_sum, self.dimensions
        return self.recall_sum, -self.mean_rank, self.dimensions


@dataclass(frozen=True)
class PreparedViews:
    """The training data of `tune`.

    `moments` are the moments of the views after the nonlinear feature `maps`. `expansions` are a linear map of the
    image view and a linear map of the text view, or None. If there are expansions, the directions are computed on the
    expanded views, and are then converted to directions of the views before expansion that give the same projections. A
    fitted model therefore needs no expansions.
    """

    moments: Moments
    maps: FeatureMaps = FeatureMaps()
    expansions: tuple[Expansion, Expansion] | None = None

    def solver(self, kind: type[Solver]) -> Callable[[float, float, int], Directions]:
        """Create a solver of the class `kind` on the moments. Return a function from (image ridge, text ridge,
        dimensions) to Directions of the views before expansion.

        Raises InputError if the solver cannot use the moments.
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
    """The result of tuning: the chosen `model`, the trial with its settings and scores on dev (`chosen`), and all
    trials.

    `train_correlations` (c,) are the correlations between the images and the sentences of the training pairs along each
    direction, and `dev_correlations` (c,) are the same for the dev pairs. A large difference between the two shows
    overfitting. `dev_correlations` is None if the model was trained on dev too. For ASIF, `train_correlations` is a
    single 1.
    """

    model: LinearModel
    chosen: GridTrial
    trials: Sequence[GridTrial]
    train_correlations: np.ndarray
    dev_correlations: np.ndarray | None

    @property
    def merit(self) -> tuple[float, float, int]:
        """The merit of the chosen combination on dev, by the model's own criterion. Greater is better."""
        return self.chosen.merit(self.model.by_mean_rank)

    def refitted(self, chosen: GridTrial) -> "Tuned":
        """Return a copy of this result without trials and dev correlations, for a model that was trained on dev too.

        The scores of this model on dev would say nothing about new photos. Therefore `chosen` replaces the trial of
        this result. `chosen` is the trial that was chosen before dev was used for training, with its scores at that
        time.
        """
        return replace(self, chosen=chosen, trials=(), dev_correlations=None)

    def log(self) -> dict[str, Any]:
        """Return the criterion of the choice, the chosen trial, the correlations rounded to 6 decimal places, and all
        trials, as JSON values. The caller stores this log with the model."""
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

    A value outside the tried values may be better, so the caller advises to try more values. Only the keys in UNBOUNDED
    are listed, and only if at least two values were tried. A chosen value of 0 is never listed. `trials` and `chosen`
    are GridTrials in the form in which they are stored in JSON.
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
"""Keys of choices whose values have no upper bound. `choices_at_edges` checks only these keys."""


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
    """Fit `model` to `prepared` with combinations of the values in `grid`. Return the model that is best on `dev`, and
    all trials.

    `view` and `text` normalise the stored vectors of `dev`. `grid.search` decides which pairs of ridges are tried. Each
    pair is tried with all combinations of the other values. `progress` wraps each sequence of ridge pairs, for example
    in a progress bar. `transfer` is only recorded in the trials. Raises InputError if the solver fails for one of the
    pairs of ridges.
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
    """The settings that can be tried without new directions: the number of `dimensions`, and the `power` to which the
    eigenvalues are raised. `eigenvalues`, a key of EIGENVALUES, is the form of the eigenvalues."""

    dimensions: int
    power: float
    eigenvalues: str


class _DevJudge:
    """The dev pairs as rows of the views, after the feature maps of `prepared`. `tune` projects these rows on
    directions and ranks them, to judge the directions."""

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
        """Project the n dev images and m dev sentences on all c directions. Return (n, c) and (m, c). The method
        `finish` of the model is not applied."""
        return project(self.x, self.mean_x, directions.w), project(self.y, self.mean_y, directions.u)

    def rank(self, directions: Directions, shapes: Sequence[Shape]) -> list[Ranks]:
        """Embed the dev pairs by `directions`, and rank images and sentences against each other, once for each of
        `shapes`. Return the ranks in the order of the shapes."""
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
    """Return the pairs (text ridge, image ridge) to try next, and add these pairs to the set `tried` in place. `best`
    is the best trial so far, or None before the first trial.

    The list has no pair that is in `tried` already. The list is empty if no pair is left to try, which ends the search.
    The text ridge is always 0 if the solver does not use the text ridge.
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

    `grid.search` decides which lists there are. `grid` gives one list of all pairs. `walk` begins with the middle of
    both axes, and then gives the pairs whose ridges are equal or next to the ridges of the best pair. `lines` begins
    with all image ridges at the middle text ridge, and then gives all image ridges at the best text ridge, and all text
    ridges at the best image ridge. `best` is None at the beginning.
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
    """Return `value`, which is one of `values`, with the next smaller and the next greater of `values`, if there are
    such values, in ascending order."""
    ordered = sorted(values)
    position = ordered.index(value)
    return ordered[max(0, position - 1) : position + 2]


def _shapes(model: type[LinearModel], grid: FitSettings, rank: int) -> list[Shape]:
    """Return all combinations of dimensions, power and eigenvalues to try. The solver has found `rank` directions, so a
    greater number of dimensions is replaced by `rank`. If the model does not use the power of the eigenvalues, the
    power is always 0 and the form of the eigenvalues is `correlation`."""
    dimensions = sorted({min(count, rank) for count in grid.dimensions})
    if not model.uses_eigenvalue_power:
        return [Shape(count, 0.0, "correlation") for count in dimensions]
    return [Shape(*shape) for shape in itertools.product(dimensions, grid.eigenvalue_power, grid.eigenvalues)]


def training_correlations(moments: Moments, w: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Compute, from the moments of the training pairs, the correlations (c,) between images projected on `w` (D, c) and
    sentences projected on `u` (d, c), direction by direction. No ridge is added."""
    xy = np.einsum("ic,ic->c", w, moments.xy @ u)
    xx = np.einsum("ic,ic->c", w, moments.xx @ w)
    yy = np.einsum("ic,ic->c", u, moments.yy @ u)
    return xy / np.sqrt(np.maximum(xx * yy, np.finfo(np.float32).tiny))


def paired_correlations(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute the correlation over the n rows of each column of `a` (n, c) with the same column of `b` (n, c). Return
    (c,), with 0 for a constant column."""
    a = a - a.mean(axis=0)
    b = b - b.mean(axis=0)
    scale = np.sqrt((a * a).sum(axis=0) * (b * b).sum(axis=0))
    return (a * b).sum(axis=0) / np.maximum(scale, np.finfo(np.float32).tiny)
