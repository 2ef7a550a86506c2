"""Kernel CCA with inner products and with distances (Socher et al. 2014) is compared with a dense computation."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import inv, sqrtm, svd
from small_settings import make_grid
from synthetic_tasks import FIT_VIEW, make_fit_task

from pipeline.config.registry import model_spec
from pipeline.config.stored import restore

RIDGE = 0.1
COUNT = 4
POWER = 1.0


def dense_cca(x: np.ndarray, y: np.ndarray, ridges: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Return the COUNT directions of each view with the greatest correlations, (D, COUNT) and (d, COUNT), from the
    singular vectors of Cxx^-1/2 Cxy Cyy^-1/2 with absolute `ridges`.

    Each direction is multiplied by its correlation to the power POWER.
    """
    x = x - x.mean(axis=0)
    y = y - y.mean(axis=0)
    rx, ry = (
        inv(sqrtm(a.T @ a / len(a) + ridge * np.eye(a.shape[1]))).real for a, ridge in zip((x, y), ridges, strict=True)
    )
    left, values, right = svd(rx @ (x.T @ y / len(x)) @ ry)
    return rx @ left[:, :COUNT] * values[:COUNT] ** POWER, ry @ right[:COUNT].T * values[:COUNT] ** POWER


@pytest.mark.parametrize(("score", "metric"), [("product", "inner_product"), ("distance", "euclidean")])
def test_linear_kernels_are_cca_whose_vectors_keep_their_length(score: str, metric: str) -> None:
    task, pairs = make_fit_task("kcca", "target")
    linear = {"image_kernel": "linear", "text_kernel": "linear", "score": score}
    grid = make_grid([COUNT], [RIDGE], [RIDGE], [POWER])
    model = model_spec("kcca").load().fit(replace(task, grid=grid, settings=task.settings.changed(linear))).model
    assert model.metric == metric
    images = model.embed_images(pairs.features)
    sentences = model.embed_sentences(pairs.sentences)
    twin = restore("kcca", model.settings(), model.tensors())
    assert twin.metric == metric
    np.testing.assert_array_equal(twin.embed_images(pairs.features), images)

    (block,) = task.sets.target_blocks()
    x = block.x.astype(float)[block.owners]
    y = block.y.toarray().astype(float)
    # A ridge is relative to the mean variance of the kernel's features. There is one feature per landmark, and here
    # every row is a landmark, so the total variance is divided by the number of rows.
    ridges = (RIDGE * x.var(axis=0).sum() / len(block.x), RIDGE * y.var(axis=0).sum() / len(y))
    w, u = dense_cca(x, y, ridges)
    v = (FIT_VIEW.stack(pairs.features) - x.mean(axis=0)) @ w
    s = (pairs.sentences["tfidf"].toarray() - y.mean(axis=0)) @ u
    np.testing.assert_allclose(images @ sentences.T, v @ s.T, atol=1e-2 * np.abs(v @ s.T).max())
    distances = (np.square(a).sum(axis=1)[:, None] + np.square(b).sum(axis=1) for a, b in ((images, sentences), (v, s)))
    found, expected = distances
    np.testing.assert_allclose(found, expected, rtol=2e-2)
