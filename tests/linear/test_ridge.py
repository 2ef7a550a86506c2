"""Ridge regression from moments is compared with scikit-learn on the same rows."""

import numpy as np
from scipy import sparse
from sklearn.decomposition import PCA
from sklearn.linear_model import Ridge
from small_settings import text_view

from pipeline.models.linear.accumulation import MomentsAccumulator
from pipeline.models.linear.ridge import RidgeRegression, RidgeSolver
from pipeline.models.linear.views import ImageView


def test_more_directions_are_solved_after_fewer_and_no_variance_is_negative() -> None:
    """A RidgeSolver first computes 2, then 5 and then all 9 directions. The last result equals the result of a new
    solver, and no value is negative. The text has 9 columns but rank 3, so six of the variances are rounding errors."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((200, 12)).astype(np.float32)
    y = (x[:, :3] @ rng.standard_normal((3, 9))).astype(np.float32)
    accumulator = MomentsAccumulator(12, 9, threads=1)
    accumulator.add(x, y, np.arange(200))
    moments = accumulator.result()
    solver = RidgeSolver(moments)
    assert [len(solver.solve(0.5, 0, count).values) for count in (2, 5, 30)] == [2, 5, 9]
    solution = solver.solve(0.5, 0, 9)
    alone = RidgeSolver(moments).solve(0.5, 0, 9)
    np.testing.assert_allclose(solution.w, alone.w, atol=1e-6)
    assert (solution.values >= 0).all() and solution.values[3:].max() < 1e-6 < solution.values[2]


def test_directions_equal_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((600, 12)).astype(np.float32)
    y = (x @ rng.standard_normal((12, 9)) + rng.standard_normal((600, 9))).astype(np.float32)
    accumulator = MomentsAccumulator(12, 9, threads=1)
    accumulator.add(x, sparse.csr_array(y), np.arange(600))
    moments = accumulator.result()
    solution = RidgeSolver(moments).solve(0.5, 0, 4)

    pca = PCA(4).fit(y.astype(np.float64))
    signs = np.sign(np.einsum("ci,ic->c", pca.components_, solution.u))
    np.testing.assert_allclose(solution.u, pca.components_.T * signs, atol=1e-4)
    np.testing.assert_allclose(solution.values, pca.explained_variance_ * 599 / 600, rtol=1e-4)
    penalty = 0.5 * np.trace(moments.xx) / 12
    oracle = Ridge(alpha=penalty).fit(x.astype(np.float64), (y - y.mean(axis=0)) @ solution.u)
    np.testing.assert_allclose(solution.w, oracle.coef_.T, atol=1e-4)

    model = RidgeRegression(
        ImageView(("net",), (12,), ()), text_view(9), moments.mean_x, moments.mean_y, solution.first(3)
    )
    np.testing.assert_allclose(model.embed_images({"net": x}), oracle.predict(x)[:, :3], atol=1e-3)
    np.testing.assert_allclose(
        model.embed_sentences({"tfidf": sparse.csr_array(y)}), (y - y.mean(0)) @ solution.u[:, :3], atol=1e-3
    )
