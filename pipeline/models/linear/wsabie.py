"""Wsabie: a ranking loss over sampled negatives, by SGD or AdaGrad (Gong et al. 2014, section 3, eq. 3 and 4): the
registered models `wsabie-sgd` and `wsabie-adagrad`, with learning rate and alpha chosen on dev."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from scipy import sparse

from pipeline.compute.lazy_rows import DiskRows
from pipeline.errors import InputError
from pipeline.metrics.ranks import count_ranks
from pipeline.metrics.retrieval import recall_sum
from pipeline.models.linear.feature_maps import project
from pipeline.models.linear.projection import Directions, LinearModel, unit_rows
from pipeline.models.linear.training import FitTask
from pipeline.models.linear.tuning import GridTrial, Tuned, paired_correlations, training_correlations
from pipeline.models.linear.views import as_sparse, shape_of

TINY = np.finfo(np.float32).tiny
"""Keeps AdaGrad from dividing by zero before the first gradient."""
CHECKED_ROWS = 256
"""Number of images that are read at once to check that they are finite."""
INTERVAL = 2
"""Number of epochs between two scores on dev."""
PATIENCE = 5
"""Number of scores on dev without a better one, after which training stops."""
Images = np.ndarray | DiskRows
Sentences = sparse.csr_array | DiskRows


@dataclass(frozen=True)
class WsabieSchedule:
    """The schedule of `train`; `max_norm` is alpha, and `adaptive` chooses AdaGrad instead of SGD.

    An epoch is every pair once, `batch` of them a step. At most `max_samples` negatives are sampled for a pair in a
    step; a pair without a violator among them changes nothing.
    """

    epochs: int
    learning_rate: float
    max_norm: float
    adaptive: bool
    dimensions: int
    seed: int
    batch: int = 256
    max_samples: int = 1000


def train(x: Images, y: Sentences, owners: np.ndarray, schedule: WsabieSchedule) -> Iterator[Directions]:
    """Yield W (D, c) and U (d, c) from centred images x (n, D) and sentences y (m, d), sentence j of image
    `owners[j]`: the initial weights, then the weights after each epoch. x and y may be DiskRows.

    Minimises eq. 3, the sum over pairs of L(r_i) max(0, 1 - x_i W U' y_i' + x_i W U' y_j'), subject to eq. 4: no column
    of W or U is longer than the root of alpha. For each pair, sentences of other images are sampled until the s-th,
    y_j, violates the margin of 1; r_i = floor((m - 1) / s) estimates the rank. Sentences need not be centred, because
    only y_j - y_i enters.

    The paper takes a step for each pair. Here a step is the *mean* of a batch's gradients at the same weights, where
    pairs without a violator count as zeros; the columns are shortened once a step. A batch of 1 is the paper's step.
    With features of unit length, the mean of some 64 pairs puts the best rates of SGD inside the paper's grid; the sum,
    which moves as far as 64 single steps, would need rates below it. For AdaGrad, which divides each entry by the root
    of its summed squared gradients, both are the same.
    The initial weights are Gaussian of unit variance, shortened to entries of variance alpha / D and alpha / d.

    The same seed and number of threads give the same directions. Raises InputError if all sentences are of one image,
    if x is not finite, and if the weights diverge.
    """
    if not len(owners) or (owners == owners[0]).all():
        raise InputError(
            "Wsabie found the training sentences of fewer than 2 images, so there are no negatives; "
            "put more images into the train split or remove wsabie from models"
        )
    for rows in np.array_split(np.arange(x.shape[0]), -(-x.shape[0] // CHECKED_ROWS)):
        if not (is_finite := np.isfinite(x[rows]).all(axis=1)).all():
            row = rows[is_finite.argmin()]
            raise InputError(f"the features of training image {row} (from 0) are not finite; extract them again")
    rng = np.random.default_rng(schedule.seed)
    weights = _Weights(x.shape[1], y.shape[1] if isinstance(y, DiskRows) else shape_of(y)[1], schedule, rng)
    rank_weight = rank_weights(len(owners))
    yield weights.directions()
    for _ in range(schedule.epochs):
        order = rng.permutation(len(owners))
        for start in range(0, len(order), schedule.batch):
            _step(weights, x, y, owners, order[start : start + schedule.batch], rank_weight, rng)
        yield weights.directions()


def rank_weights(n: int) -> np.ndarray:
    """(n,) float32: L(r) = 1 + 1/2 + ... + 1/r for every r below n."""
    return np.concatenate([[0.0], np.cumsum(1 / np.arange(1, n))]).astype(np.float32)


def find_violators(
    scores: np.ndarray, targets: np.ndarray, own: np.ndarray, starts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return each pair's first violator of the margin, (b,), and the number sampled up to it, (b,), 0 if none violates.

    `scores` (b, p) are those of the candidates, `targets` (b,) those of the positive sentences; `own` (b, p) marks
    candidates of the pair's own image, which are skipped. Pair i takes the candidates, a random sample, in the order
    starts[i], starts[i] + 1, ..., in a circle.
    """
    size = scores.shape[1]
    turn = (np.arange(size) - starts[:, None]) % size
    when = np.where((scores > targets[:, None] - 1) & ~own, turn, size)
    columns = when.argmin(axis=1)
    first = when[np.arange(len(columns)), columns]
    passed = (own & (turn < first[:, None])).sum(axis=1)
    return columns, np.where(first < size, first + 1 - passed, 0)


@dataclass(frozen=True)
class Gradient:
    """The gradient of eq. 3 on a batch: `w` (D, c), and `u` (k, c) of the rows `words` (k,) of U; others are 0."""

    w: np.ndarray
    words: np.ndarray
    u: np.ndarray


def differentiate(
    projected: np.ndarray, x: np.ndarray, difference: sparse.csr_array, rank_weight: np.ndarray, u: np.ndarray
) -> Gradient:
    """The gradient of the sum of rank_weight * (1 + x_i W U'(y_j - y_i)') over violating pairs.

    `projected` (b, c) is xW of the images x (b, D), `difference` (b, d) is y_j - y_i.
    """
    words, places = np.unique(difference.indices, return_inverse=True)
    compact = sparse.csr_array((difference.data, places, difference.indptr), shape=(len(x), len(words)))
    toward = rank_weight[:, None] * (compact @ u[words])
    return Gradient(x.T @ toward, words, compact.T @ (rank_weight[:, None] * projected))


def _step(
    weights: "_Weights", x: Images, y: Sentences, owners: np.ndarray, pairs: np.ndarray,
    rank_weight: np.ndarray, rng: np.random.Generator,
) -> None:  # fmt: skip
    """Find the violators of `pairs` (b,), rows of y, in one sample of sentences, and update the weights."""
    pool = rng.choice(len(owners), min(weights.schedule.max_samples, len(owners)), replace=False)
    images, positive = x[owners[pairs]], y[pairs]
    projected = images @ weights.w
    scores = projected @ (y[pool] @ weights.u).T
    targets = np.einsum("ic,ic->i", projected, positive @ weights.u)
    same_image = owners[pairs][:, None] == owners[pool]
    columns, samples = find_violators(scores, targets, same_image, rng.integers(len(pool), size=len(pairs)))
    moved = np.flatnonzero(samples)
    if len(moved):
        difference = y[pool[columns[moved]]] - positive[moved]
        weight = rank_weight[(len(owners) - 1) // samples[moved]] / np.float32(len(pairs))
        weights.step(differentiate(projected[moved], images[moved], difference, weight, weights.u))


class _Weights:
    """W and U, their update rule, and the constraint of eq. 4."""

    def __init__(self, dim_x: int, dim_y: int, schedule: WsabieSchedule, rng: np.random.Generator) -> None:
        self.schedule = schedule
        self.w, self.u = (rng.standard_normal((dim, schedule.dimensions), dtype=np.float32) for dim in (dim_x, dim_y))
        self._squares = [np.zeros_like(self.w), np.zeros_like(self.u)] if schedule.adaptive else None
        self._shorten()

    def step(self, gradient: Gradient) -> None:
        """One step against `gradient`, then back to the constraint. InputError if weights diverge."""
        rate = np.float32(self.schedule.learning_rate)
        step_w, step_u = gradient.w, gradient.u
        if self._squares:
            squares_w, squares_u = self._squares
            squares_w += step_w**2
            squares_u[gradient.words] += step_u**2
            step_w = step_w / np.sqrt(squares_w + TINY)
            step_u = step_u / np.sqrt(squares_u[gradient.words] + TINY)
        self.w -= rate * step_w
        self.u[gradient.words] -= rate * step_u
        self._shorten()

    def _shorten(self) -> None:
        """Project every column of W and U onto the ball of squared radius alpha."""
        for matrix in (self.w, self.u):
            squared = np.einsum("ic,ic->c", matrix, matrix)
            if not np.isfinite(squared).all():
                raise InputError(
                    f"Wsabie diverged at learning rate {self.schedule.learning_rate:g}; lower the learning rate, or"
                    " scale the features to unit length (normalise: [l2])"
                )
            if (squared > self.schedule.max_norm).any():
                matrix *= np.sqrt(self.schedule.max_norm / np.maximum(squared, self.schedule.max_norm))

    def directions(self) -> Directions:
        """A copy; the values are 1."""
        return Directions(self.w.copy(), self.u.copy(), np.ones(self.schedule.dimensions, np.float32))


class WsabieSGD(LinearModel):
    """Wsabie by stochastic gradient descent, with cosine similarity at retrieval (Gong et al. 2014, eq. 3 and 4).

    Paper to code: W `w`, U `u`, alpha `max_norm`, c `dimensions`. Training centres only the images; retrieval centres
    both views.
    """

    metric = "inner_product"
    adaptive: ClassVar[bool] = False

    @staticmethod
    def finish(projected: np.ndarray, values: np.ndarray, power: float) -> np.ndarray:
        """Scale to unit length."""
        return unit_rows(projected)

    @classmethod
    def fit(cls, task: FitTask) -> Tuned:
        """Choose the learning rate on dev (at the middle alpha), then alpha, with early stopping on dev.

        With `task.chosen`, fit only this combination, for as many epochs as were best when it was chosen.
        """
        search = _Search(cls, task)
        settings = task.settings
        if task.chosen:
            chosen = {name: float(value) for name, value in task.chosen.transfer.items()}
            epochs = int(chosen["epochs"])
            attempts = [search.attempt(chosen["learning_rate"], chosen["max_norm"], epochs, interval=epochs)]
        else:
            middle = settings.max_norm[len(settings.max_norm) // 2]
            attempts = [
                search.attempt(rate, middle, settings.epochs, INTERVAL)
                for rate in task.progress(settings.learning_rate)
            ]
            rate = float(_best(attempts).trial.transfer["learning_rate"])
            others = [norm for norm in settings.max_norm if norm != middle]
            attempts += [search.attempt(rate, norm, settings.epochs, INTERVAL) for norm in task.progress(others)]
        return search.finish(attempts)


class _Attempt(NamedTuple):
    """A training with one learning rate and alpha: its score on dev, and the directions of its best epoch."""

    trial: GridTrial
    directions: Directions


def _best(attempts: Sequence[_Attempt]) -> _Attempt:
    return max(attempts, key=lambda attempt: attempt.trial.recall_sum)


class _Search:
    """The training pairs and the dev views of a task, with the trainings on them."""

    def __init__(self, model: type[WsabieSGD], task: FitTask) -> None:
        self.model = model
        self.task = task
        moments = task.sets.target
        self.mean_x = moments.mean_x.astype(np.float32)
        self.mean_y = moments.mean_y.astype(np.float32)
        self.images, self.sentences, self.owners = _gather(task, self.mean_x)
        self.dev_x = task.view.stack(task.dev.features)
        self.dev_y = as_sparse(task.text.stack(task.dev.sentences))

    def embed_dev(self, directions: Directions) -> tuple[np.ndarray, np.ndarray]:
        """Project the dev images and sentences."""
        return project([self.dev_x], self.mean_x, directions.w), project([self.dev_y], self.mean_y, directions.u)

    def score(self, directions: Directions) -> float:
        """Compute the recall sum on dev."""
        images, sentences = self.embed_dev(directions)
        return recall_sum(count_ranks(unit_rows(images), unit_rows(sentences), self.task.dev.owners, self.model.metric))

    def attempt(self, rate: float, norm: float, epochs: int, interval: int) -> _Attempt:
        """Train for at most `epochs`, and score every `interval` epochs until dev gets no better."""
        task, settings = self.task, self.task.settings
        schedule = WsabieSchedule(
            epochs, rate, norm, self.model.adaptive, settings.dimensions, task.seed, settings.batch_size
        )
        greatest = -1.0
        best_epoch = 0
        kept = None
        for epoch, directions in enumerate(train(self.images, self.sentences, self.owners, schedule)):
            if not epoch or (epoch % interval and epoch != epochs):
                continue
            reached = self.score(directions)
            if reached > greatest:
                greatest, best_epoch, kept = reached, epoch, directions
            if epoch - best_epoch >= PATIENCE * interval:
                break
        assert kept is not None  # the last epoch is always scored
        chosen = {"learning_rate": rate, "max_norm": norm, "epochs": best_epoch}
        trial = GridTrial(0.0, 0.0, settings.dimensions, 0.0, greatest, task.text.weight_of, chosen)
        return _Attempt(trial, kept)

    def finish(self, attempts: Sequence[_Attempt]) -> Tuned:
        """Return the best model of all attempts."""
        task = self.task
        best, directions = _best(attempts)
        images, sentences = self.embed_dev(directions)
        return Tuned(
            self.model(task.view, task.text, self.mean_x, self.mean_y, directions),
            best,
            tuple(attempt.trial for attempt in attempts),
            training_correlations(task.sets.target, directions.w, directions.u),
            paired_correlations(images[task.dev.owners], sentences),
        )


class WsabieAdaGrad(WsabieSGD):
    """Wsabie with AdaGrad steps (Gong et al. 2014, section 3)."""

    adaptive = True


def _gather(task: FitTask, mean_x: np.ndarray) -> tuple[DiskRows, DiskRows, np.ndarray]:
    """Write all target pairs to temporary files, because each step reads some at random: centred images (n, D) and
    sparse sentences (m, d). Only the owners (m,) and the places of the rows are held in memory."""
    images, sentences, owners = DiskRows(task.view.dim), DiskRows(task.text.dim, is_sparse=True), []
    for block in task.sets.target_blocks():
        owners.append(block.owners + images.shape[0])
        images.append(block.x - np.where(np.isfinite(mean_x), mean_x, 0))  # so that `train` names the right image
        sentences.append(as_sparse(block.y))
    return images, sentences, np.concatenate(owners)
