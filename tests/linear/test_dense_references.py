"""Models fitted to moments are compared with the equations of Gong et al. 2014, sections 3 and 4, which are computed in
float64 on dense matrices."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.linalg import eigh
from small_settings import TRANSFER, make_grid, text_view

from pipeline.config.registry import model_spec
from pipeline.errors import UsageError
from pipeline.models.linear.accumulation import MomentsAccumulator
from pipeline.models.linear.training import FitTask, Sets
from pipeline.models.linear.tuning import PairArrays, Tuned
from pipeline.models.linear.views import ImageView, ViewBlock

D = 9
TERMS = 12
C = 4
C1 = 3
IMAGE_RIDGE = 0.05
TEXT_RIDGE = 0.2
VIEW = ImageView(("net",), (D,), ())


@dataclass(frozen=True)
class Pairs:
    """Images and their m sentences, as a `block`, and as matrices with one row per pair: `x` (m, D) and `y` (m, TERMS),
    in float64."""

    block: ViewBlock
    x: np.ndarray
    y: np.ndarray


def make_pairs(images: int, noise: float, seed: int) -> Pairs:
    rng = np.random.default_rng(seed)
    hidden = rng.standard_normal((images, 5))
    mix = np.random.default_rng(0)
    owners = np.repeat(np.arange(images), rng.integers(1, 4, images))
    x = hidden @ mix.standard_normal((5, D)) + 0.3 * rng.standard_normal((images, D)) + 1
    words = hidden[owners] @ mix.standard_normal((5, TERMS)) + noise * rng.standard_normal((len(owners), TERMS))
    x = x.astype(np.float32)
    y = np.maximum(words, 0).astype(np.float32)
    return Pairs(ViewBlock(x, sparse.csr_array(y), owners), x[owners].astype(float), y.astype(float))


TARGET = make_pairs(120, 0.3, 1)
WEAK = make_pairs(200, 1.5, 2)
NEW = make_pairs(40, 0.3, 3)


def fit_ncca(training: str, power: float, eigenvalues: str, **transfer: Any) -> Tuned:
    def moments(pairs: Pairs):
        accumulator = MomentsAccumulator(D, TERMS, threads=1)
        accumulator.add(pairs.block.x, pairs.block.y, pairs.block.owners)
        return accumulator.result()

    grid = make_grid([C], [IMAGE_RIDGE], [TEXT_RIDGE], [power]).changed({"eigenvalues": [eigenvalues]})
    chosen = {name: value if name == "features" else [value] for name, value in transfer.items()}
    sets = Sets(moments(TARGET), moments(WEAK), lambda: [TARGET.block], lambda: [WEAK.block])
    dev = PairArrays({"net": NEW.block.x}, {"tfidf": NEW.block.y}, NEW.block.owners)
    settings = TRANSFER.changed({"auxiliary_dimensions": [C1], "second_beta": [0], **chosen})
    return model_spec("ncca").load().fit(FitTask(training, VIEW, text_view(TERMS), sets, dev, grid, settings, None, 0))


def test_unknown_training_names_the_known_trainings() -> None:
    with pytest.raises(UsageError, match=r"The training transfer is unknown\. Set training to one of target, "):
        fit_ncca("transfer", 1.0, "correlation")


def block_cca(x: np.ndarray, y: np.ndarray, weights: np.ndarray, count: int):
    """Solve CCA of the views x and y as the generalised eigenvalue problem [[0, Cxy], [Cyx, 0]] v = rho diag(Cxx, Cyy)
    v in float64, with the ridges IMAGE_RIDGE and TEXT_RIDGE added to Cxx and Cyy.

    Return the directions of x and the directions of y with the `count` largest eigenvalues rho, these eigenvalues, the
    mean of x and the mean of y. The covariances and the means are weighted by the `weights` (m,) of the pairs.
    """
    mean_x, mean_y = (np.average(rows, axis=0, weights=weights) for rows in (x, y))
    both = np.hstack([x - mean_x, y - mean_y])
    d = x.shape[1]
    every = both.T @ (both * weights[:, None]) / weights.sum()
    alone = np.zeros_like(every)
    for part, ridge in ((slice(0, d), IMAGE_RIDGE), (slice(d, None), TEXT_RIDGE)):
        alone[part, part] = every[part, part] + ridge * np.trace(every[part, part]) / len(every[part, part]) * np.eye(
            len(every[part, part])
        )
        every[part, part] = 0
    values, vectors = eigh(every, alone)
    values = values[::-1][:count]
    vectors = np.sqrt(2) * vectors[:, ::-1][:, :count]
    return vectors[:d], vectors[d:], values, mean_x, mean_y


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (a, b))
    return a @ b.T


def assert_scores(tuned: Tuned, expected: np.ndarray, tolerance: float = 2e-4) -> None:
    images = tuned.model.embed_images({"net": NEW.block.x})
    sentences = tuned.model.embed_sentences({"tfidf": NEW.block.y})
    # The model is fitted and embeds in single precision.
    np.testing.assert_allclose(images @ sentences.T, expected, atol=tolerance)


def similarity(x: np.ndarray, y: np.ndarray, new_x: np.ndarray, new_y: np.ndarray, scale, weights=None) -> np.ndarray:
    """Compute the similarity of equation 2 for all pairs of a row of `new_x` and a row of `new_y`, with the CCA of x
    and y. The pairs of x and y have the `weights`, or equal weights if `weights` is None.

    `scale` is a function from the correlations to the diagonal of the matrix D^t in equation 2.
    """
    w, u, rho, mean_x, mean_y = block_cca(x, y, np.ones(len(x)) if weights is None else weights, C)
    return cosines((new_x - mean_x) @ w * scale(rho), (new_y - mean_y) @ u * scale(rho))


POWERS = {"correlation": lambda rho: rho**2, "gong": lambda rho: (1 + rho) ** 4}
EXPONENTS = {"correlation": 2, "gong": 4}
NEW_X = NEW.block.x.astype(float)
NEW_Y = NEW.block.y.toarray().astype(float)


@pytest.mark.parametrize("eigenvalues", POWERS)
def test_equation_2_with_both_forms_of_the_eigenvalue_problem(eigenvalues: str) -> None:
    """The similarities of an ncca equal equation 2 with both forms of eigenvalues. The form "gong" has the eigenvalues
    of C_all v = lambda C_diag v, which are 1 + rho, and "correlation" has rho."""
    tuned = fit_ncca("target", EXPONENTS[eigenvalues], eigenvalues)
    assert_scores(tuned, similarity(TARGET.x, TARGET.y, NEW_X, NEW_Y, POWERS[eigenvalues]))
    assert tuned.chosen.eigenvalues == eigenvalues


@pytest.mark.parametrize("beta", [0.1, 1])
def test_joint_training_weights_auxiliary_pairs_by_beta_squared(beta: float) -> None:
    """The similarities of an ncca by joint training equal the similarities by CCA of stacked rows: the auxiliary rows F
    and T are below the target rows X and Y. The auxiliary rows have the weight beta^2 in the products and in the
    means."""
    x = np.vstack([TARGET.x, WEAK.x])
    y = np.vstack([TARGET.y, WEAK.y])
    weights = np.concatenate([np.ones(len(TARGET.x)), np.full(len(WEAK.x), beta**2)])
    expected = similarity(x, y, NEW_X, NEW_Y, POWERS["gong"], weights)
    assert_scores(fit_ncca("joint", 4, "gong", beta=beta), expected)


def auxiliary_projections(scale):
    """Return A and B, the directions of the CCA of the auxiliary pairs WEAK, and the means of both views. The columns
    of A and B are multiplied by scale(rho), which is lambda^t."""
    a, b, rho, mean_x, mean_y = block_cca(WEAK.x, WEAK.y, np.ones(len(WEAK.x)), C1)
    return a * scale(rho), b * scale(rho), mean_x, mean_y


@pytest.mark.parametrize("eigenvalues", POWERS)
def test_stacked_training(eigenvalues: str) -> None:
    """The similarities of an ncca by stacked training equal the similarities by two CCAs in float64. The second CCA has
    the views X^ = XA and Y^ = YB, where A and B are the projections of the auxiliary CCA."""
    a, b, *_ = auxiliary_projections(POWERS[eigenvalues])
    w, u, rho, mean_x, mean_y = block_cca(TARGET.x @ a, TARGET.y @ b, np.ones(len(TARGET.x)), C)
    scale = POWERS["gong"](rho)
    expected = cosines((NEW_X @ a - mean_x) @ w * scale, (NEW_Y @ b - mean_y) @ u * scale)
    power = EXPONENTS[eigenvalues]
    assert_scores(fit_ncca("stacked", 4, "gong", auxiliary_power=power, auxiliary_eigenvalues=eigenvalues), expected)


def balancing_factor(x: np.ndarray, new: np.ndarray, weight: float) -> float:
    """Return the factor by which `new` must be multiplied to make its total variance over the pairs weight^2 times the
    total variance of `x`."""
    return weight * np.sqrt(x.var(axis=0).sum() / new.var(axis=0).sum())


@pytest.mark.parametrize("weight", [1, 0.3])
def test_linear_sae(weight: float) -> None:
    """The similarities of an ncca by the training sae-linear equal the similarities by two CCAs in float64. The second
    CCA has the views X^ = [X, XA] and Y^ = [Y, YB] (equation 5 without phi), where A and B are the scaled projections
    of the auxiliary CCA."""
    a, b, *_ = auxiliary_projections(POWERS["gong"])
    s = balancing_factor(TARGET.x, TARGET.x @ a, weight)
    t = balancing_factor(TARGET.y, TARGET.y @ b, weight)
    views = [np.hstack([rows, scale * rows @ m]) for rows, scale, m in (
        (TARGET.x, s, a), (TARGET.y, t, b), (NEW_X, s, a), (NEW_Y, t, b))]  # fmt: skip
    tuned = fit_ncca("sae-linear", 4, "gong", auxiliary_power=4, auxiliary_eigenvalues="gong", weight=weight)
    assert_scores(tuned, similarity(*views, POWERS["gong"]))


def fiftieth_distance(z: np.ndarray) -> float:
    """Return the mean Euclidean distance of a row of z to its 50th nearest other row, by a loop over the rows."""
    return float(np.mean([np.sort(np.linalg.norm(z - row, axis=1))[50] for row in z]))


@pytest.mark.parametrize("rule", ["paper", "cosine-sine"])
def test_nonlinear_sae(rule: str) -> None:
    """The similarities of an ncca by the training sae equal the similarities by two CCAs in float64. The second CCA has
    the views X^ = [X, phi(XA)] and Y^ = [Y, phi(YB)] (equation 5). phi(z) = sqrt(2) cos(zR + b) has the random R and b
    of the fitted model. The spread of R is compared with sigma."""
    tuned = fit_ncca("sae", 4, "gong", auxiliary_power=4, auxiliary_eigenvalues="gong", rule=rule, features=100)
    views: dict[str, list[np.ndarray]] = {"train": [], "new": []}
    a, b, mean_x, mean_y = auxiliary_projections(POWERS["gong"])
    for drawn, matrix, mean, rows, train, new in (
        (tuned.model.maps.image, a, mean_x, TARGET.block.x.astype(float), TARGET.x, NEW_X),
        (tuned.model.maps.text, b, mean_y, TARGET.y, TARGET.y, NEW_Y),
    ):
        # The sign of a direction is arbitrary, so the directions get the signs of the fitted model.
        matrix = matrix * np.sign(np.einsum("dc,dc->c", matrix, drawn.matrix))
        fourier = drawn.fourier
        sigma = fiftieth_distance((rows - mean) @ matrix)
        spread = sigma if rule == "paper" else 1 / sigma
        assert fourier.frequencies.std() == pytest.approx(spread, rel=0.1)
        assert np.abs(fourier.frequencies.mean()) < 0.15 * spread

        def phi(x, matrix=matrix, mean=mean, fourier=fourier):
            angles = (x - mean) @ matrix @ fourier.frequencies.astype(float)
            if rule == "paper":
                assert fourier.phases.min() >= 0 and 0.9 < fourier.phases.max() < 1
                return np.sqrt(2) * np.cos(angles + fourier.phases)
            return np.sqrt(2) * np.hstack([np.cos(angles), np.sin(angles)])

        scale = np.sqrt(train.var(axis=0).sum() / phi(rows).var(axis=0).sum())
        views["train"].append(np.hstack([train, scale * phi(train)]))
        views["new"].append(np.hstack([new, scale * phi(new)]))
    expected = similarity(*views["train"], *views["new"], POWERS["gong"])
    # The 100 cosines depend on only C1 = 3 values, so they are nearly collinear, which magnifies rounding errors.
    assert_scores(tuned, expected, tolerance=2e-3)
