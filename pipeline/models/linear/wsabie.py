"""Wsabie, a ranking loss over sampled negatives (Gong et al. 2014, eq. 3 and 4): `wsabie-sgd` and `wsabie-adagrad`.

The learning rate and alpha are chosen on dev. alpha is the greatest squared length that a column of W or U may have.
"""

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
from pipeline.models.linear.projection import Directions, LinearModel, UnitProjections, unit_rows
from pipeline.models.linear.training import FitTask
from pipeline.models.linear.tuning import GridTrial, Tuned, paired_correlations, training_correlations
from pipeline.models.linear.views import as_sparse, shape_of

TINY = np.finfo(np.float32).tiny
"""Number that is added to AdaGrad's sums of squares before AdaGrad divides by their roots, so that the divisor is never
zero."""
CHECKED_ROWS = 256
"""Number of images that are read at once when `train` checks that all features are finite."""
SCORE_INTERVAL = 2
"""Number of epochs from one score on dev to the next, while settings are chosen."""
PATIENCE = 5
"""Number of consecutive scores on dev without an improvement after which training stops."""
Images = np.ndarray | DiskRows
"""Image rows (n, D), in memory or on disk."""
Sentences = sparse.csr_array | DiskRows
"""Sparse sentence rows (m, d), in memory or on disk."""


@dataclass(frozen=True)
class WsabieSchedule:
    """The settings of one training by `train`.

    `max_norm` is alpha of eq. 4, and `dimensions` is the number c of columns of W and U. If `adaptive` is true, AdaGrad
    is used instead of SGD. An epoch visits each pair once in random order, and a step has `batch` pairs. In a step, at
    most `max_samples` sentences are sampled. The negatives of a pair are the sampled sentences of other images. If no
    negative violates the margin, the pair changes nothing.
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
    """Train W (D, c) and U (d, c) by Wsabie, and yield a copy of the initial weights and then of the weights after each
    of `schedule.epochs` epochs.

    x (n, D) are centred images and y (m, d) are sparse sentences. Each of the two is in memory or is DiskRows. Sentence
    j belongs to image `owners[j]`, for `owners` (m,), so there are m pairs. Sentences need not be centred, because only
    the differences y_j - y_i are in the loss.

    The loss is eq. 3 of Gong et al. 2014, the sum over pairs of L(r_i) max(0, 1 - x_i W U' y_i' + x_i W U' y_j'). By
    eq. 4, no column of W or U is longer than the root of alpha. For each pair, sentences of other images are sampled
    until a sentence y_j violates the margin of 1. If this is the s-th sample, r_i = floor((m - 1) / s) estimates the
    rank of the sentence of the pair, and L(r) = 1 + 1/2 + ... + 1/r.

    The paper takes a step for each pair. Here a step is the *mean* of the gradients of a batch at the same weights. A
    pair without a violator has a gradient of zero. The columns are shortened once per step. A step with a batch of 1 is
    the step of the paper. With features of unit length, the mean over about 64 pairs puts the best learning rates of
    SGD inside the paper's grid. The sum of 64 gradients moves as far as 64 single steps, and would need learning rates
    below the grid. For AdaGrad, the mean and the sum give the same step, because AdaGrad divides each entry by the root
    of its summed squared gradients. The initial weights are drawn from a Gaussian of unit variance, and columns that
    are too long are shortened. If alpha is less than D and d, the entries of W and U then have the variances alpha / D
    and alpha / d.

    The same seed and number of threads give the same directions. Raises InputError if there are no sentences, if all
    sentences belong to one image, if x is not finite, or if the weights diverge.
    """
    if not len(owners) or (owners == owners[0]).all():
        raise InputError(
            "Wsabie needs training captions of at least 2 photos, because it compares each caption with captions of"
            " other photos. Add captioned photos to the split train, or remove the model from the key models."
        )
    for rows in np.array_split(np.arange(x.shape[0]), -(-x.shape[0] // CHECKED_ROWS)):
        if not (is_finite := np.isfinite(x[rows]).all(axis=1)).all():
            row = rows[is_finite.argmin()]
            raise InputError(
                f"Wsabie cannot be trained: the features of training image {row} (counted from 0) are not finite."
                " Extract the features again with `jointspace stage extract --run RUN --force`."
            )
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
    """Compute the weight L(r) = 1 + 1/2 + ... + 1/r of each rank r from 0 to n - 1. Return (n,) float32. L(0) is 0."""
    return np.concatenate([[0.0], np.cumsum(1 / np.arange(1, n))]).astype(np.float32)


def find_violators(
    scores: np.ndarray, targets: np.ndarray, own: np.ndarray, starts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the first candidate that violates the margin of 1 for each of b pairs.

    `scores` (b, p) are the scores of each pair's image with p candidates, which are a random sample of sentences.
    `targets` (b,) are the scores of the images with the sentences of their own pairs. A candidate violates the margin
    if its score is greater than the target minus 1. `own` (b, p) marks the candidates that belong to the pair's own
    image. These candidates are skipped. Pair i visits the candidates in the order starts[i], starts[i] + 1, ..., and
    continues at 0 after the last candidate.

    Returns for each pair the column of the first violator (b,), and the number of candidates up to this violator (b,),
    which includes the violator but no skipped candidate. If no candidate violates the margin, the number is 0, and the
    column has no meaning.
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
    """The gradient of the loss (eq. 3) on a batch: `w` (D, c) for W, and `u` (k, c) for k rows of U.

    `words` (k,) are the numbers of these rows, which belong to the words of the batch. The gradient of all other rows
    of U is zero.
    """

    w: np.ndarray
    words: np.ndarray
    u: np.ndarray


def differentiate(
    projected: np.ndarray, x: np.ndarray, difference: sparse.csr_array, rank_weight: np.ndarray, u: np.ndarray
) -> Gradient:
    """Compute the gradient of the sum of rank_weight_i (1 + x_i W U' (y_j - y_i)') over b pairs i with a violator y_j
    (eq. 3).

    `x` (b, D) are the images of the pairs, `projected` (b, c) is xW, and `difference` (b, d) is y_j - y_i.
    `rank_weight` (b,) has the weight of each pair, such as L(r_i), and `u` is U (d, c). Nothing is changed in place.
    """
    words, columns = np.unique(difference.indices, return_inverse=True)
    compact = sparse.csr_array((difference.data, columns, difference.indptr), shape=(len(x), len(words)))
    toward = rank_weight[:, None] * (compact @ u[words])
    return Gradient(x.T @ toward, words, compact.T @ (rank_weight[:, None] * projected))


def _step(
    weights: "_Weights", x: Images, y: Sentences, owners: np.ndarray, pairs: np.ndarray,
    rank_weight: np.ndarray, rng: np.random.Generator,
) -> None:  # fmt: skip
    """Update `weights` in place by one step with a batch of b pairs, whose sentences are the rows `pairs` (b,) of y.

    The violators of all b pairs are found in the same random sample of sentences. Each pair visits the sample from a
    random start of its own. `rank_weight` (m,) is the result of `rank_weights`. Raises InputError if the weights
    diverge.
    """
    pool = rng.choice(len(owners), min(weights.schedule.max_samples, len(owners)), replace=False)
    images = x[owners[pairs]]
    positive = y[pairs]
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
    """The weights W and U during a training, with their update rule (SGD or AdaGrad) and the constraint of eq. 4. The
    weights are drawn at random and shortened when the object is created."""

    def __init__(self, dim_x: int, dim_y: int, schedule: WsabieSchedule, rng: np.random.Generator) -> None:
        self.schedule = schedule
        self.w, self.u = (rng.standard_normal((dim, schedule.dimensions), dtype=np.float32) for dim in (dim_x, dim_y))
        self._squares = [np.zeros_like(self.w), np.zeros_like(self.u)] if schedule.adaptive else None
        self._shorten()

    def step(self, gradient: Gradient) -> None:
        """Change W and U by one step of SGD or AdaGrad against `gradient`, and then shorten columns that are longer
        than eq. 4 allows. Raises InputError if the weights diverge."""
        rate = np.float32(self.schedule.learning_rate)
        step_w = gradient.w
        step_u = gradient.u
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
        """Shorten in place every column of W and U whose squared length is greater than alpha. The new squared length
        is alpha.

        Raises InputError if a column is not finite, which means that the training has diverged.
        """
        for matrix in (self.w, self.u):
            squared = np.einsum("ic,ic->c", matrix, matrix)
            if not np.isfinite(squared).all():
                raise InputError(
                    f"Wsabie diverged at the learning rate {self.schedule.learning_rate:g}: its weights are not finite."
                    " Lower learning_rate, or scale the features to unit length (normalise: [l2])."
                )
            if (squared > self.schedule.max_norm).any():
                matrix *= np.sqrt(self.schedule.max_norm / np.maximum(squared, self.schedule.max_norm))

    def directions(self) -> Directions:
        """Return a copy of W and U as Directions, whose values are all 1."""
        return Directions(self.w.copy(), self.u.copy(), np.ones(self.schedule.dimensions, np.float32))


class WsabieSGD(UnitProjections, LinearModel):
    """Wsabie by stochastic gradient descent, compared by cosine similarity (Gong et al. 2014, eq. 3 and 4).

    In the code, W is `directions.w` (D, c), U is `directions.u` (d, c), alpha is `max_norm`, and c is `dimensions`.
    Training centres only the images, because the mean of the sentences cancels in the loss. Embedding centres both
    views.
    """

    adaptive: ClassVar[bool] = False

    @classmethod
    def fit(cls, task: FitTask) -> Tuned:
        """Choose the learning rate on dev with the middle value of alpha, and then alpha with this learning rate.
        Return the model with the best recall sum on dev, and all trials.

        Each training stops early if its score on dev does not improve. If `task.chosen` is not None, only this
        combination is trained, for the number of epochs that was best when the combination was chosen. Raises
        InputError if the training sentences belong to fewer than two images, if a feature is not finite, or if the
        weights diverge.
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
                search.attempt(rate, middle, settings.epochs, SCORE_INTERVAL)
                for rate in task.progress(settings.learning_rate)
            ]
            rate = float(_best(attempts).trial.transfer["learning_rate"])
            others = [norm for norm in settings.max_norm if norm != middle]
            attempts += [search.attempt(rate, norm, settings.epochs, SCORE_INTERVAL) for norm in task.progress(others)]
        return search.finish(attempts)


class _Attempt(NamedTuple):
    """The result of one training. `trial` has the learning rate, alpha, the best epoch, and the score on dev after this
    epoch. `directions` are the directions after the best epoch."""

    trial: GridTrial
    directions: Directions


def _best(attempts: Sequence[_Attempt]) -> _Attempt:
    return max(attempts, key=lambda attempt: attempt.trial.recall_sum)


class _Search:
    """The search for the learning rate and alpha of one task. The training pairs are written to temporary files when
    the object is created, and every training reads these files. The views of the dev pairs are in memory."""

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
        """Project the n dev images and m dev sentences on `directions`. Return (n, c) and (m, c), not scaled to unit
        length."""
        return project([self.dev_x], self.mean_x, directions.w), project([self.dev_y], self.mean_y, directions.u)

    def score(self, directions: Directions) -> float:
        """Embed dev by `directions`, and compute the sum of recall@1, @5 and @10 of both directions of search, in
        percent, at most 600."""
        images, sentences = self.embed_dev(directions)
        return recall_sum(count_ranks(unit_rows(images), unit_rows(sentences), self.task.dev.owners, self.model.metric))

    def attempt(self, rate: float, norm: float, epochs: int, interval: int) -> _Attempt:
        """Train from new random weights with the learning rate `rate` and alpha `norm` for at most `epochs` epochs.
        Return the directions with the best score on dev.

        The directions are scored on dev every `interval` epochs, and after the last epoch. Training stops after
        PATIENCE scores in a row without an improvement. Raises InputError if the training sentences belong to fewer
        than two images, if a feature is not finite, or if the weights diverge.
        """
        task = self.task
        settings = self.task.settings
        schedule = WsabieSchedule(
            epochs, rate, norm, self.model.adaptive, settings.dimensions, task.seed, settings.batch_size
        )
        best_score = -1.0
        best_epoch = 0
        best_directions = None
        for epoch, directions in enumerate(train(self.images, self.sentences, self.owners, schedule)):
            if not epoch or (epoch % interval and epoch != epochs):
                continue
            score = self.score(directions)
            if score > best_score:
                best_score = score
                best_epoch = epoch
                best_directions = directions
            if epoch - best_epoch >= PATIENCE * interval:
                break
        assert best_directions is not None  # The last epoch is always scored.
        chosen = {"learning_rate": rate, "max_norm": norm, "epochs": best_epoch}
        trial = GridTrial(0.0, 0.0, settings.dimensions, 0.0, best_score, task.text.weight_of, chosen)
        return _Attempt(trial, best_directions)

    def finish(self, attempts: Sequence[_Attempt]) -> Tuned:
        """Return the model of the attempt with the greatest recall sum on dev, with the trials of all attempts. Among
        equal attempts, the first is chosen."""
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
    """The registered model `wsabie-adagrad`: Wsabie with the steps of AdaGrad instead of the steps of SGD (Gong et al.
    2014, section 3). Everything else, such as the choice of the learning rate and of alpha, is inherited from
    WsabieSGD."""

    adaptive = True


def _gather(task: FitTask, mean_x: np.ndarray) -> tuple[DiskRows, DiskRows, np.ndarray]:
    """Write all target pairs of `task` to temporary files, because each step of a training reads random pairs. `mean_x`
    (D,) is the mean image, which is subtracted from the images.

    Returns the centred images (n, D), the sparse sentences (m, d) and the owners (m,). Sentence j belongs to image
    owners[j]. Only the owners and the positions of the rows in the files are in memory. The vectors of dense text
    encoders become sparse too.
    """
    images = DiskRows(task.view.dim)
    sentences = DiskRows(task.text.dim, is_sparse=True)
    owners = []
    for block in task.sets.target_blocks():
        owners.append(block.owners + images.shape[0])
        # A mean that is not finite is not subtracted, so that `train` names the image whose features are not finite.
        images.append(block.x - np.where(np.isfinite(mean_x), mean_x, 0))
        sentences.append(as_sparse(block.y))
    return images, sentences, np.concatenate(owners)
