"""Wsabie: a ranking loss over sampled negatives, by SGD or AdaGrad (Gong et al. 2014, section 3, equations 3 and 4)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from pipeline.errors import InputError
from pipeline.models.linear.projection import Directions

TINY = np.finfo(np.float32).tiny
"""Keeps AdaGrad from dividing by zero where no gradient has been yet."""


@dataclass(frozen=True)
class WsabieSchedule:
    """How `train` goes about it; `max_norm` is alpha, and `adaptive` says AdaGrad rather than SGD.

    An epoch is every pair once, `batch` of them a step. At most `max_samples` negatives are sampled for a pair in
    a step; a pair without a violator among them moves nothing.
    """

    epochs: int
    batch: int
    learning_rate: float
    max_norm: float
    adaptive: bool
    dimensions: int
    seed: int
    max_samples: int


def train(
    x: np.ndarray,
    y: sparse.csr_array,
    owners: np.ndarray,
    schedule: WsabieSchedule,
    progress: Callable[[Iterable], Iterable] = iter,
    watch: Callable[[int, Directions], bool] | None = None,
) -> Directions:
    """W (D, c) and U (d, c) from centred images x (n, D) and sentences y (m, d), sentence j of image `owners[j]`.

    Minimises equation 3, the sum over pairs of L(r_i) max(0, 1 - x_i W U' y_i' + x_i W U' y_j'), subject to equation 4,
    no column of W or U longer than the root of alpha. For each pair, sentences of other images are sampled until the
    s-th, y_j, violates the margin of 1; r_i = floor((m - 1) / s) estimates the rank. The mean of the sentences has no
    part in it (y_j - y_i is all that enters), so they need not be centred.

    The paper takes a step for each pair. Here a step is the *mean* of a batch's gradients, all taken at the same
    weights, where pairs without a violator count as zeros; the columns are shortened once a step. With a batch of 1 it
    is the paper's step. With features of unit length the mean of some 64 pairs puts the best rates of SGD inside the
    paper's grid; the sum, which moves as far as 64 single steps, would want rates below it. AdaGrad divides each entry
    by the root of its summed squared gradients, and so would do the same with either.
    The first weights are Gaussian of unit variance, shortened at once to entries of variance alpha / D and alpha / d.

    `watch` is called with the number of epochs done and a copy of the directions after each, and ends the training by
    returning True; keeping the best is its affair (`EarlyStopping`). The same seed and number of threads give the same
    directions. Raises InputError when all sentences are of one image, when x is not finite, and when the weights grow
    beyond all bounds.
    """
    if not len(owners) or (owners == owners[0]).all():
        raise InputError(
            "Wsabie found the training sentences of fewer than 2 images, so that no sentence is wrong for any image; "
            "put more images into the train split or take wsabie out of models"
        )
    if not np.isfinite(x).all():
        row = int(np.flatnonzero(~np.isfinite(x).all(axis=1))[0])
        raise InputError(f"the features of training image {row} (counted from 0) are not finite; extract them again")
    rng = np.random.default_rng(schedule.seed)
    weights = _Weights(x.shape[1], y.shape[1], schedule, rng)
    rank_weight = rank_weights(len(owners))
    for epoch in progress(range(1, schedule.epochs + 1)):
        order = rng.permutation(len(owners))
        for start in range(0, len(order), schedule.batch):
            _step(weights, x, y, owners, order[start : start + schedule.batch], rank_weight, rng)
        if watch and watch(epoch, weights.directions()):
            break
    return weights.directions()


class EarlyStopping:
    """A `watch` that keeps the directions of the best score and stops `patience` looks after it.

    It looks at every `interval`-th epoch and at the last of `epochs`; `score` is higher for better ones. `scores` has
    epoch -> score.
    """

    def __init__(self, score: Callable[[Directions], float], interval: int, patience: int, epochs: int) -> None:
        self.score, self.interval, self.patience, self.epochs = score, interval, patience, epochs
        self.scores: dict[int, float] = {}
        self.best: Directions | None = None
        self.best_epoch = 0

    def __call__(self, epoch: int, directions: Directions) -> bool:
        if epoch % self.interval and epoch != self.epochs:
            return False
        self.scores[epoch] = self.score(directions)
        if self.best is None or self.scores[epoch] > self.scores[self.best_epoch]:
            self.best, self.best_epoch = directions, epoch
        return epoch - self.best_epoch >= self.patience * self.interval


def rank_weights(n: int) -> np.ndarray:
    """(n,) float32: L(r) = 1 + 1/2 + ... + 1/r at every r below n."""
    return np.concatenate([[0.0], np.cumsum(1 / np.arange(1, n))]).astype(np.float32)


def find_violators(
    scores: np.ndarray, targets: np.ndarray, own: np.ndarray, starts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of each pair the first candidate that violates the margin, and how many were sampled up to it.

    `scores` (b, p) of the candidates, `targets` (b,) of the positive sentences, `own` (b, p) where a candidate is of
    the pair's own image: these are passed over. Pair i takes the others in the order starts[i], starts[i] + 1, ..., in
    a circle; the candidates are a random sample, and so is each such order. Returns columns (b,) and samples (b,), 0
    where none violates.
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
    """Of equation 3 on a batch: `w` (D, c), and `u` (k, c) of the rows `words` (k,) of U, the others' being zero."""

    w: np.ndarray
    words: np.ndarray
    u: np.ndarray


def differentiate(
    projected: np.ndarray, x: np.ndarray, difference: sparse.csr_array, rank_weight: np.ndarray, u: np.ndarray
) -> Gradient:
    """The gradient of the sum of rank_weight * (1 + x_i W U'(y_j - y_i)') over pairs that all violate.

    `projected` (b, c) is xW of the images x (b, D), `difference` (b, d) is y_j - y_i.
    """
    words, places = np.unique(difference.indices, return_inverse=True)
    compact = sparse.csr_array((difference.data, places, difference.indptr), shape=(len(x), len(words)))
    toward = rank_weight[:, None] * (compact @ u[words])
    return Gradient(x.T @ toward, words, compact.T @ (rank_weight[:, None] * projected))


def _step(
    weights: "_Weights",
    x: np.ndarray,
    y: sparse.csr_array,
    owners: np.ndarray,
    pairs: np.ndarray,
    rank_weight: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Find the violators of `pairs` (b,), rows of y, in one sample of sentences, and move the weights."""
    pool = rng.choice(len(owners), min(weights.schedule.max_samples, len(owners)), replace=False)
    images, positive = x[owners[pairs]], y[pairs]
    projected = images @ weights.w
    scores = projected @ (y[pool] @ weights.u).T
    targets = np.einsum("ic,ic->i", projected, positive @ weights.u)
    own = owners[pairs][:, None] == owners[pool]
    columns, samples = find_violators(scores, targets, own, rng.integers(len(pool), size=len(pairs)))
    moved = np.flatnonzero(samples)
    if len(moved):
        difference = y[pool[columns[moved]]] - positive[moved]
        weight = rank_weight[(len(owners) - 1) // samples[moved]] / np.float32(len(pairs))
        weights.step(differentiate(projected[moved], images[moved], difference, weight, weights.u))


class _Weights:
    """W and U, the rule that moves them, and the constraint of equation 4."""

    def __init__(self, dim_x: int, dim_y: int, schedule: WsabieSchedule, rng: np.random.Generator) -> None:
        self.schedule = schedule
        self.w, self.u = (rng.standard_normal((dim, schedule.dimensions), dtype=np.float32) for dim in (dim_x, dim_y))
        self._squares = [np.zeros_like(self.w), np.zeros_like(self.u)] if schedule.adaptive else None
        self._shorten()

    def step(self, gradient: Gradient) -> None:
        """One step against `gradient`, and back into the constraint. InputError where that leaves the numbers."""
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
                    f"Wsabie diverged at learning rate {self.schedule.learning_rate:g}; lower the learning rate"
                )
            if (squared > self.schedule.max_norm).any():
                matrix *= np.sqrt(self.schedule.max_norm / np.maximum(squared, self.schedule.max_norm))

    def directions(self) -> Directions:
        """A copy; the values are 1."""
        return Directions(self.w.copy(), self.u.copy(), np.ones(self.schedule.dimensions, np.float32))
