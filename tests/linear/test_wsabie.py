"""Tests of Wsabie: the rank weights, the sampling of violators, the gradient, the steps of SGD and AdaGrad, and the
error for features that are not finite."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from pipeline.errors import InputError
from pipeline.models.linear import wsabie
from pipeline.models.linear.wsabie import WsabieSchedule, differentiate, find_violators, rank_weights, train

SGD = WsabieSchedule(
    epochs=30, batch=32, learning_rate=0.5, max_norm=50, adaptive=False, dimensions=8, seed=0, max_samples=200
)


def make_pairs(n: int = 460):
    """Draw `n` images with one to three sentences each. An image and its sentences depend on the same five hidden
    factors. Return the centred images (n, 16), the sparse sentences (m, 20) and the row of the image of each sentence
    (m,)."""
    rng = np.random.default_rng(0)
    hidden = rng.random((n, 5))
    x = hidden @ rng.standard_normal((5, 16)) + 0.05 * rng.standard_normal((n, 16))
    owners = np.repeat(np.arange(n), rng.integers(1, 4, n))
    words = np.maximum(hidden[owners] @ rng.standard_normal((5, 20)) + 0.1 * rng.standard_normal((len(owners), 20)), 0)
    x = (x - x.mean(axis=0)).astype(np.float32)
    return x, sparse.csr_array((words / np.linalg.norm(words, axis=1, keepdims=True)).astype(np.float32)), owners


def test_rank_weight_is_the_harmonic_number() -> None:
    weights = rank_weights(50)
    for rank in range(50):
        assert weights[rank] == pytest.approx(sum(1 / place for place in range(1, rank + 1)), rel=1e-6)
    assert weights.shape == (50,)


def test_the_violator_is_the_first_in_the_order_of_sampling() -> None:
    rng = np.random.default_rng(1)
    scores = rng.standard_normal((300, 12))
    targets = rng.standard_normal(300) + 2
    own = rng.random((300, 12)) < 0.3
    starts = rng.integers(12, size=300)
    columns, samples = find_violators(scores, targets, own, starts)
    for i in range(300):
        count = 0
        for column in (*range(starts[i], 12), *range(starts[i])):
            if not own[i, column]:
                count += 1
                if scores[i, column] > targets[i] - 1:
                    assert (columns[i], samples[i]) == (column, count)
                    break
        else:
            assert samples[i] == 0
    assert 0 < (samples == 0).sum() < 150 and samples.max() > 3


def test_a_violator_is_a_sentence_of_another_image(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, owners = make_pairs(40)
    seen = []

    def checked(projected, images, difference, weight, u):
        for image, row in zip(images, difference.toarray(), strict=True):
            own = owners == np.flatnonzero((x == image).all(axis=1))[0]
            others = y[~own].toarray()[None] - y[own].toarray()[:, None]
            seen.append(np.abs(others - row).max(axis=2).min())
        return differentiate(projected, images, difference, weight, u)

    monkeypatch.setattr(wsabie, "differentiate", checked)
    list(train(x, y, owners, replace(SGD, epochs=2, batch=20)))
    assert len(seen) > len(owners) and max(seen) < 1e-6


def test_gradient_equals_finite_differences() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((6, 5))
    w = rng.standard_normal((5, 3))
    u = rng.standard_normal((9, 3))
    difference = sparse.random_array((6, 9), density=0.3, rng=rng, format="csr")
    weight = rng.random(6) + 0.5
    gradient = differentiate(x @ w, x, difference, weight, u)
    dense = np.zeros_like(u)
    dense[gradient.words] = gradient.u

    def objective(w: np.ndarray, u: np.ndarray) -> float:
        return sum(weight[i] * (1 + x[i] @ w @ u.T @ difference.toarray()[i]) for i in range(6))

    for matrix, analytic in ((w, gradient.w), (u, dense)):
        for place in np.ndindex(matrix.shape):
            kept = matrix[place]
            matrix[place] = kept + 1e-5
            above = objective(w, u)
            matrix[place] = kept - 1e-5
            below = objective(w, u)
            matrix[place] = kept
            assert analytic[place] == pytest.approx((above - below) / 2e-5, abs=1e-6)


@pytest.mark.parametrize("adaptive", [False, True], ids=["sgd", "adagrad"])
def test_a_batch_of_one_pair_makes_the_step_of_the_paper(adaptive: bool) -> None:
    """One epoch with batches of one pair is compared with the steps of the paper, computed in float64. There are two
    pairs, so the negative of each pair is the sentence of the other pair. The epoch may visit the pairs in either
    order, so both orders are computed, and the result must agree with one of them. AdaGrad divides each entry of a step
    by the root of the sum of the squares of this entry in all steps so far (Duchi et al. 2011)."""
    x = np.array([[1, 0.5], [-1, -0.5]], np.float32)
    words = np.array([[0.6, 0, 0.8], [0, 1, 0]])
    schedule = replace(
        SGD, epochs=1, batch=1, learning_rate=0.2, max_norm=2, dimensions=4, max_samples=10, adaptive=adaptive
    )
    begun, done = train(x, sparse.csr_array(words.astype(np.float32)), np.arange(2), schedule)
    outcomes = []
    for order in ((0, 1), (1, 0)):
        parts = [begun.w.astype(np.float64), begun.u.astype(np.float64)]
        squares = [np.zeros_like(part) for part in parts]
        for i in order:
            difference, (w, u) = words[1 - i] - words[i], parts
            # m - 1 = 1 and s = 1, so the estimated rank and its weight are 1.
            if x[i] @ w @ u.T @ difference > -1:
                steps = [np.outer(x[i], difference @ u), np.outer(difference, x[i] @ w)]
                if adaptive:
                    squares = [one + step**2 for one, step in zip(squares, steps, strict=True)]
                    steps = [step / np.sqrt(one + 1e-300) for one, step in zip(squares, steps, strict=True)]
                parts = [part - 0.2 * step for part, step in zip(parts, steps, strict=True)]
                parts = [a / np.maximum(np.linalg.norm(a, axis=0) / np.sqrt(2), 1) for a in parts]
        outcomes.append(max(np.abs(done.w - parts[0]).max(), np.abs(done.u - parts[1]).max()))
    assert min(outcomes) < 1e-5 and not np.allclose(done.w, begun.w, atol=1e-3)


def test_features_that_are_not_finite_are_named() -> None:
    x, y, owners = make_pairs(60)
    x[7, 3] = np.nan
    with pytest.raises(InputError, match="training image 7 "):
        next(train(x, y, owners, SGD))
