"""CCA from moments is compared with computations in float64 and with scikit-learn. Invariants of CCA and its results on
degenerate data are tested too."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import scipy.linalg
from scipy import sparse
from scipy.linalg import hadamard
from sklearn.cross_decomposition import CCA as ScikitCCA
from small_settings import make_grid, text_view

from pipeline.config.models import FitSettings
from pipeline.errors import InputError
from pipeline.models.linear import cca
from pipeline.models.linear.accumulation import MomentsAccumulator
from pipeline.models.linear.cca import CCASolver, NormalizedCCA, top_eigenpairs
from pipeline.models.linear.moments import Moments
from pipeline.models.linear.ridge import RidgeSolver
from pipeline.models.linear.tuning import PairArrays, PreparedViews, Tuned, choices_at_edges, tune
from pipeline.models.linear.views import ImageView


def make_views(n: int = 2000, dim_x: int = 20, dim_y: int = 15, shared: int = 4, seed: int = 0):
    """Draw `n` pairs of rows of two views that have `shared` hidden factors in common. Return the views (n, dim_x) and
    (n, dim_y) float32."""
    rng = np.random.default_rng(seed)
    hidden = rng.standard_normal((n, shared))
    x = hidden @ rng.standard_normal((shared, dim_x)) + rng.standard_normal((n, dim_x))
    y = hidden @ rng.standard_normal((shared, dim_y)) + rng.standard_normal((n, dim_y))
    return x.astype(np.float32), y.astype(np.float32)


def moments_of(x: np.ndarray, y: np.ndarray, form: type = sparse.csr_array) -> Moments:
    accumulator = MomentsAccumulator(x.shape[1], y.shape[1], threads=1)
    accumulator.add(x, form(y), np.arange(len(x)))
    return accumulator.result()


def reference_correlations(x: np.ndarray, y: np.ndarray, image_ridge: float, text_ridge: float) -> np.ndarray:
    """Compute all canonical correlations of the views x and y, in descending order, as the singular values of
    Cxx^-1/2 Cxy Cyy^-1/2 in float64. The relative ridges are added to Cxx and Cyy."""
    x = x - x.mean(axis=0, dtype=np.float64)
    y = y - y.mean(axis=0, dtype=np.float64)
    cxx = x.T @ x / len(x)
    cyy = y.T @ y / len(y)
    cxx += image_ridge * np.trace(cxx) / len(cxx) * np.eye(len(cxx))
    cyy += text_ridge * np.trace(cyy) / len(cyy) * np.eye(len(cyy))
    (a, u), (b, v) = np.linalg.eigh(cxx), np.linalg.eigh(cyy)
    white = (u / np.sqrt(a)) @ (u.T @ (x.T @ y / len(x)) @ v) / np.sqrt(b)
    return np.linalg.svd(white, compute_uv=False)


@pytest.mark.parametrize("ridges", [(0, 0), (0.1, 1), (3, 0.3)])
def test_correlations_equal_the_float64_reference(ridges: tuple[float, float]) -> None:
    x, y = make_views()
    solution = CCASolver(moments_of(x, y)).solve(*ridges, 15)
    np.testing.assert_allclose(solution.values, reference_correlations(x, y, *ridges), atol=1e-6)


def test_fewer_images_than_dimensions_are_solved_in_their_span() -> None:
    x, y = make_views(n=120, dim_x=300, dim_y=40)
    solver = CCASolver(moments_of(x, y))
    assert len(solver.moments.xx) == 119
    solution = solver.solve(0.1, 0.1, 10)
    np.testing.assert_allclose(solution.values, reference_correlations(x, y, 0.1, 0.1)[:10], atol=1e-6)
    assert solution.w.shape == (300, 10)


def test_correlations_equal_scikit_learn() -> None:
    """The four greatest correlations of CCASolver without ridges are compared with the correlations of scikit-learn,
    which finds one pair of directions after the other, by deflation."""
    x, y = make_views()
    a, b = ScikitCCA(n_components=4, scale=False, max_iter=2000, tol=1e-12).fit_transform(x.astype(float), y)
    expected = [np.corrcoef(a[:, i], b[:, i])[0, 1] for i in range(4)]
    np.testing.assert_allclose(CCASolver(moments_of(x, y)).solve(0, 0, 4).values, expected, atol=1e-6)


@pytest.mark.parametrize("shape", [(20, 15), (8, 30)])
def test_directions_whiten_both_views(shape: tuple[int, int]) -> None:
    x, y = make_views(dim_x=shape[0], dim_y=shape[1])
    moments = moments_of(x, y)
    solution = CCASolver(moments).solve(0, 0, 6)
    np.testing.assert_allclose(solution.w.T @ moments.xx @ solution.w / moments.n, np.eye(6), atol=1e-4)
    np.testing.assert_allclose(solution.u.T @ moments.yy @ solution.u / moments.n, np.eye(6), atol=1e-4)
    np.testing.assert_allclose(solution.w.T @ moments.xy @ solution.u / moments.n, np.diag(solution.values), atol=1e-4)
    largest = np.abs(solution.w).argmax(axis=0)
    assert (solution.w[largest, np.arange(6)] > 0).all()


@pytest.mark.parametrize(
    ("kind", "least", "kept"),
    [
        ("constant column", 1e-12, 10),
        ("duplicate column", 0, 10),
        ("zero row", 0, 10),
        ("n < d", 0, 10),
        ("outlier", 0, 1),
    ],
)
def test_degenerate_data_are_solved_with_the_smallest_ridge_that_suffices(kind: str, least: float, kept: int) -> None:
    """CCASolver solves each `kind` of degenerate data with several ridges, the smallest of which is `least`. It always
    finds `kept` correlations, which are above 0 and at most 1. `least` is 0 except for a constant column, which makes
    the covariance singular at the ridge 0, so that InputError is raised. With an outlier, only one direction is
    found."""
    x, y = make_views(n=30 if kind == "n < d" else 500, dim_x=40, dim_y=25)
    if kind == "constant column":
        x[:, 3] = 7
    elif kind == "duplicate column":
        x[:, 4] = x[:, 5]
    elif kind == "zero row":
        x[10] = 0
    elif kind == "outlier":
        x[10] *= 1e8
    solver = CCASolver(moments_of(x, y))
    if least:
        with pytest.raises(
            InputError, match="covariance of the image view is singular at the ridge 0. Raise fit.image_ridge"
        ):
            solver.solve(0, 0, 10)
    for ridge in (least, 1e-12, 1e-6, 1e-2, 1):
        correlations = solver.solve(ridge, ridge, 10).values
        assert len(correlations) == kept and np.isfinite(correlations).all()
        assert (correlations > 0).all() and (correlations <= 1).all()


def test_noise_beyond_the_rank_of_the_data_gives_no_direction() -> None:
    """The text depends on three columns of the images, so CCASolver returns three directions, although ten are asked
    for."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 20))
    y = x[:, :3] @ rng.standard_normal((3, 15))
    assert CCASolver(moments_of(x.astype(np.float32), y.astype(np.float32))).solve(0.1, 0.1, 10).w.shape == (20, 3)


def test_correlations_beyond_one_are_rounding_up_to_a_limit() -> None:
    """The cross-covariance is too large for the variances. If the excess is as small as a rounding error, the
    correlation becomes 1. If the excess is much larger, InputError is raised."""

    def moments(excess: float) -> Moments:
        return Moments(10.0, np.zeros(2), np.zeros(2), np.eye(2), np.diag([1 + excess, 0.5]), np.eye(2))

    assert CCASolver(moments(1e-4)).solve(0, 0, 2).values.tolist() == [1, 0.5]
    with pytest.raises(InputError, match="must be at most 1, .* Raise fit.image_ridge and fit.text_ridge"):
        CCASolver(moments(0.1)).solve(0, 0, 2)


def test_a_solver_forgets_the_previous_text_ridge() -> None:
    x, y = make_views()
    solver = CCASolver(moments_of(x, y))
    for ridges in ((0.1, 0.1), (0.1, 10), (1, 10)):
        solved = solver.solve(*ridges, 4)
        alone = CCASolver(moments_of(x, y)).solve(*ridges, 4)
        np.testing.assert_array_equal(solved.values, alone.values)
        np.testing.assert_array_equal(solved.u, alone.u)
    assert not np.allclose(solver.solve(1, 0.1, 4).values, solved.values, atol=1e-2)


def test_a_solver_that_keeps_one_factor_has_the_same_solutions(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = make_views()
    solver = CCASolver(moments_of(x, y))
    ridges = [(0.1, 0.1), (1, 0.1), (0.1, 10), (1, 10)]
    expected = [solver.solve(*pair, 4) for pair in ridges]
    monkeypatch.setattr(cca, "MAX_FACTOR_BYTES", 0)
    frugal = CCASolver(moments_of(x, y))
    for pair, known in zip(ridges, expected, strict=True):
        np.testing.assert_array_equal(frugal.solve(*pair, 4).w, known.w)
        assert len(frugal._image_factors) == 1


@pytest.mark.parametrize("overwrite", [False, True])
def test_eigenvalues_that_the_first_driver_loses_are_found(overwrite: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """LAPACK's first driver is replaced by a function that loses one eigenvalue. `top_eigenpairs` then calls the second
    driver. If the first driver has overwritten the matrix, the matrix is restored before this call. The result has all
    eigenpairs."""
    root = np.random.default_rng(2).standard_normal((60, 60))
    symmetric = root @ root.T
    original = scipy.linalg.eigh
    expected = np.linalg.eigvalsh(symmetric)[::-1][:5]

    def lose(matrix: np.ndarray, **options: object) -> tuple[np.ndarray, np.ndarray]:
        values, vectors = original(matrix, **options)
        return (values[1:], vectors[:, 1:]) if "subset_by_index" in options else (values, vectors)

    monkeypatch.setattr(scipy.linalg, "eigh", lose)
    values, vectors = top_eigenpairs(symmetric.copy(), 5, overwrite=overwrite)
    np.testing.assert_allclose(values, expected, rtol=1e-10)
    np.testing.assert_allclose(symmetric @ vectors, vectors * values, atol=1e-8 * values[0])


@pytest.mark.parametrize(("size", "scale", "offset"), [(32, 1, 0), (64, 0.3, 7), (2048, 1, 0), (2048, 0.3, 7)])
@pytest.mark.parametrize("solver", [CCASolver, RidgeSolver])
def test_uncorrelated_views_are_refused(solver: type, size: int, scale: float, offset: float) -> None:
    """The views are distinct columns of a Hadamard matrix. These columns are uncorrelated, because they are orthogonal
    and have mean zero, so both solvers raise InputError. If one column of y gets a small correlation with x, both
    solvers find a direction."""
    columns = hadamard(size)[:, 1:].astype(np.float32)
    x = columns[:, : size // 4]
    y = columns[:, size // 3 :] * np.float32(scale) + np.float32(offset)
    with pytest.raises(InputError, match="image and text views are uncorrelated over all .* Check that each caption"):
        solver(moments_of(x, y, np.asarray))
    y[:, 0] += np.float32(0.01) * x[:, 0]
    assert len(solver(moments_of(x, y, np.asarray)).solve(0.1, 0.1, 3).values) >= 1


@pytest.mark.parametrize("dims", [(3, 4), (900, 600)])
@pytest.mark.parametrize("constant", ["image", "text", "sparse text"])
def test_a_constant_view_is_named_whatever_its_width_and_value(dims: tuple[int, int], constant: str) -> None:
    rng = np.random.default_rng(1)
    for size in (1e-8, 0.3337, 1e6):
        x, y = (rng.standard_normal((600, dim)).astype(np.float32) for dim in dims)
        side = x if constant == "image" else y
        side[:] = (size * rng.standard_normal(side.shape[1])).astype(np.float32)
        total = Moments.zero(*dims)
        for rows in np.array_split(np.arange(600), 3):  # The moments of three parts are added, as if each were a shard.
            accumulator = MomentsAccumulator(*dims, threads=1)
            text = sparse.csr_array(y[rows]) if "sparse" in constant else y[rows]
            accumulator.add(x[rows], text, np.arange(len(rows)))
            total += accumulator.result()
        with pytest.raises(
            InputError, match=f"The {constant.split()[-1]} view has the same vector for all 600 training pairs"
        ):
            CCASolver(total)


def test_a_small_variance_beside_a_large_mean_is_not_constant() -> None:
    x, y = make_views()
    x = 1000 + 0.05 * x  # Near 1000, single precision has steps of 0.00006.
    np.testing.assert_allclose(
        CCASolver(moments_of(x, y)).solve(0.1, 0.1, 3).values, reference_correlations(x, y, 0.1, 0.1)[:3], atol=1e-4
    )


def test_too_few_or_constant_pairs_are_refused() -> None:
    x, y = make_views(n=5)
    with pytest.raises(InputError, match="at least 2"):
        CCASolver(moments_of(x[:1], y[:1]))
    with pytest.raises(InputError, match="image view has the same vector for all"):
        CCASolver(moments_of(np.ones_like(x), y))


def test_normalized_embedding_is_equation_2() -> None:
    x, y = make_views()
    moments = moments_of(x, y)
    view = ImageView(("net",), (20,), ())
    solution = CCASolver(moments).solve(0.1, 0.1, 8)
    model = NormalizedCCA(view, text_view(len(y[0])), moments.mean_x, moments.mean_y, solution.first(5), 4)
    images = model.embed_images({"net": x})
    sentences = model.embed_sentences({"tfidf": sparse.csr_array(y)})
    a = (x - x.mean(axis=0)) @ solution.w[:, :5] @ np.diag(solution.values[:5] ** 4)
    b = (y - y.mean(axis=0)) @ solution.u[:, :5] @ np.diag(solution.values[:5] ** 4)
    cosine = (a @ b.T) / np.outer(np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1))
    np.testing.assert_allclose(images @ sentences.T, cosine, atol=1e-4)


def tuned_by(grid: FitSettings, seen: list, train: int = 300, dev: int = 200, shared: int = 10) -> Tuned:
    """Fit NormalizedCCA to `train` synthetic pairs with `shared` hidden factors, with the settings of `grid` that are
    best on `dev` other pairs. The pairs of ridges that are tried are appended to the list `seen`."""
    x, y = make_views(n=train + dev, dim_x=60, dim_y=50, shared=shared)
    pairs = PairArrays({"net": x[train:]}, {"tfidf": sparse.csr_array(y[train:])}, np.arange(dev))
    prepared = PreparedViews(moments_of(x[:train], y[:train]))
    view = ImageView(("net",), (60,), ())
    return tune(NormalizedCCA, view, text_view(50), prepared, pairs, grid, lambda points: seen.extend(points) or points)


def test_tuning_finds_the_planted_pairs_and_reports_overfitting() -> None:
    seen: list = []
    tuned = tuned_by(make_grid([2, 10], [0.01, 1000.0], [0.01], [0.0, 1.0]), seen)
    assert len(tuned.trials) == 2 * 2 * 2 and len(seen) == 2
    assert tuned.chosen == max(tuned.trials, key=lambda trial: trial.merit())
    assert tuned.chosen.dimensions == 10
    assert tuned.chosen.recall_sum > 300
    assert tuned.train_correlations.mean() > tuned.dev_correlations.mean() > 0.5


def test_a_ridge_at_the_end_of_its_grid_is_reported() -> None:
    def trial(x: float, y: float, beta: float = 1.0) -> dict:
        return {"image_ridge": x, "text_ridge": y, "transfer": {"beta": beta, "rule": "paper"}}

    trials = [trial(x, y, beta) for x in (0.1, 1.0, 10.0) for y in (0.0, 3.0) for beta in (0.1, 1.0)]
    assert choices_at_edges(trials, trial(1.0, 3.0, 0.1)) == ["text_ridge 3", "beta 0.1"]
    # A text ridge of 0 is not reported, because no ridge is smaller. The value 0.5 of beta is between two tried values.
    assert choices_at_edges(trials, trial(0.1, 0.0, 0.5)) == ["image_ridge 0.1"]
    assert choices_at_edges(trials[:1], trials[0]) == []  # If only one value was tried, nothing is reported.


def test_a_search_of_the_grid_ends_at_a_pair_without_better_neighbours() -> None:
    ridges = [0.01, 0.1, 1.0, 10.0, 100.0]
    tuned = tuned_by(make_grid([10], ridges, ridges, [1.0], "walk"), [], train=200, dev=100, shared=4)
    merits = {(trial.image_ridge, trial.text_ridge): trial.merit() for trial in tuned.trials}
    assert (1.0, 1.0) in merits and len(merits) < 25  # The search begins in the middle, and does not try all 25 pairs.
    places = [ridges.index(ridge) for ridge in (tuned.chosen.image_ridge, tuned.chosen.text_ridge)]
    for image, text in product(*(range(max(0, place - 1), min(5, place + 2)) for place in places)):
        assert merits[ridges[image], ridges[text]] <= tuned.chosen.merit()


def test_ties_on_dev_are_broken_by_ranks_and_then_by_dimensions() -> None:
    """With 6 and with 12 directions, all dev pairs have the rank 1, so both recall sums are 600 and the mean ranks are
    equal. Then 12 directions are chosen, because a search among more images needs more directions. For equal recall
    sums, a trial with a lower mean rank is better than a trial with more dimensions."""
    tuned = tuned_by(make_grid([2, 6, 12], [0.01], [0.01], [1.0]), [], train=600, dev=12, shared=12)
    assert [trial.recall_sum for trial in tuned.trials][1:] == [600, 600] and tuned.chosen.dimensions == 12
    trial = tuned.chosen
    assert replace(trial, mean_rank=2.0, dimensions=2).merit() > replace(trial, mean_rank=2.5, dimensions=9).merit()
    assert replace(trial, recall_sum=599.0).merit() < trial.merit()


def test_line_searches_find_the_best_of_the_grid_with_fewer_solutions() -> None:
    ridges = (0.01, 0.1, 1, 10, 100)
    whole, lines = (tuned_by(make_grid([10], ridges, ridges, [1.0], search), []) for search in ("grid", "lines"))
    assert len(whole.trials) == 25 > len(lines.trials)
    tried = {(trial.image_ridge, trial.text_ridge) for trial in lines.trials}
    assert len(tried) == len(lines.trials)
    # No pair of ridges with the chosen image ridge or the chosen text ridge has a greater recall sum.
    best = lines.chosen
    rivals = [t for t in whole.trials if best.image_ridge == t.image_ridge or best.text_ridge == t.text_ridge]
    assert best.recall_sum == max(trial.recall_sum for trial in rivals)
