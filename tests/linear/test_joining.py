"""The results of Procrustes, CSA, ASIF and ridge regression with cosines equal the results of independent formulas."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import linalg
from small_settings import make_grid
from synthetic_tasks import TERMS, make_fit_task

from pipeline.models.linear.accumulation import MomentsAccumulator
from pipeline.models.linear.asif import ASIF, relate
from pipeline.models.linear.cca import CSA, CSASolver
from pipeline.models.linear.moments import Moments
from pipeline.models.linear.ridge import CosineRidge, Procrustes, ProcrustesSolver
from pipeline.models.linear.views import ImageView, TextView, ViewBlock


def draw_views(n: int, rank: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Draw an image view (n, 8) and a text view (n, 6), float32. The text view depends on six hidden factors and has
    noise. The image view depends on only the first `rank` of these factors, has no noise and, after centring, has this
    rank. The seed is n."""
    rng = np.random.default_rng(n)
    hidden = rng.standard_normal((n, 6))
    x = (hidden[:, :rank] @ rng.standard_normal((rank, 8)) + 1).astype(np.float32)
    y = (hidden @ rng.standard_normal((6, 6)) + 0.3 * rng.standard_normal((n, 6)) - 2).astype(np.float32)
    return x, y


def moments_of(x: np.ndarray, y: np.ndarray) -> Moments:
    accumulator = MomentsAccumulator(x.shape[1], y.shape[1], threads=1)
    accumulator.add(x, y, np.arange(len(x)))
    return accumulator.result()


def centred(x: np.ndarray) -> np.ndarray:
    return x.astype(float) - x.mean(axis=0, dtype=float)


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a / np.linalg.norm(a, axis=1, keepdims=True)) @ (b / np.linalg.norm(b, axis=1, keepdims=True)).T


def view_of(dims: int) -> ImageView:
    return ImageView(("eyes",), (dims,), ())


def test_procrustes_is_the_orthogonal_map_of_scipy() -> None:
    x, y = draw_views(50)
    x = x[:, :6]
    directions = ProcrustesSolver(moments_of(x, y)).solve(0, 0, 6)
    expected, scale = linalg.orthogonal_procrustes(centred(x), centred(y))
    np.testing.assert_allclose(directions.w @ directions.u.T, expected, atol=1e-5)
    np.testing.assert_allclose(directions.values.sum() * 50, scale, rtol=1e-5)


def test_procrustes_scores_are_cosines_of_mapped_images() -> None:
    x, y = draw_views(50)
    x = x[:, :6]
    moments = moments_of(x, y)
    text = TextView.from_vectors({"words": y})
    model = Procrustes(view_of(6), text, moments.mean_x, moments.mean_y, ProcrustesSolver(moments).solve(0, 0, 6))
    mapped = centred(x) @ linalg.orthogonal_procrustes(centred(x), centred(y))[0]
    found = model.embed_images({"eyes": x}) @ model.embed_sentences({"words": y}).T
    np.testing.assert_allclose(found, cosines(mapped, centred(y)), atol=1e-5)


@pytest.mark.parametrize(
    ("rank", "image_ridge", "text_ridge"), [(6, 0.0, 0.0), (3, 0.0, 0.0), (6, 0.5, 0.5), (3, 0.5, 0.0), (3, 0.0, 0.5)]
)
def test_csa_scores_are_the_formula_of_the_paper(rank: int, image_ridge: float, text_ridge: float) -> None:
    """The scores of CSA are compared with the formula of the paper, which is computed in float64. The CCA of the
    formula is solved as a generalised eigenproblem in the `rank` principal components of the images."""
    x, y = draw_views(80, rank)
    moments = moments_of(x, y)
    model = CSA(
        view_of(8), TextView.from_vectors({"words": y}), moments.mean_x, moments.mean_y,
        CSASolver(moments).solve(image_ridge, text_ridge, 3),
    )  # fmt: skip
    a = centred(x)
    b = centred(y)
    ridges = [image_ridge * np.trace(a.T @ a) / 8, text_ridge * np.trace(b.T @ b) / 6]
    basis = linalg.svd(a, full_matrices=False)[2][:rank].T
    inner = basis.T @ a.T @ a @ basis + ridges[0] * np.eye(basis.shape[1])
    other = b.T @ b + ridges[1] * np.eye(6)
    cross = basis.T @ a.T @ b
    squares, w = linalg.eigh(cross @ linalg.solve(other, cross.T), inner)
    squares = squares[::-1][:3]
    w = basis @ w[:, ::-1][:, :3]
    u = linalg.solve(other, (basis.T @ a.T @ b).T @ (basis.T @ w)) / np.sqrt(squares)
    left = a @ w
    right = b @ u
    lengths = np.linalg.norm(left, axis=1)[:, None] * np.linalg.norm(right, axis=1)
    found = model.embed_images({"eyes": x}) @ model.embed_sentences({"words": y}).T
    np.testing.assert_allclose(found, (left * np.sqrt(squares)) @ right.T / lengths, atol=2e-4)


def test_cosine_ridge_scores_are_the_formula() -> None:
    task, unseen = make_fit_task("ridge-cosine")
    grid = make_grid([TERMS], [0.1], [0.1], [0])
    model = CosineRidge.fit(replace(task, grid=grid)).model
    (block,) = task.sets.target_blocks()
    x = block.x[block.owners].astype(float)
    y = block.y.toarray().astype(float)
    a = x - x.mean(axis=0)
    b = y - y.mean(axis=0)
    weights = linalg.solve(a.T @ a + 0.1 * np.trace(a.T @ a) / a.shape[1] * np.eye(a.shape[1]), a.T @ b)
    mapped = (task.view.stack(unseen.features) - x.mean(axis=0)) @ weights
    expected = cosines(mapped, unseen.sentences["tfidf"].toarray() - y.mean(axis=0))
    found = model.embed_images(unseen.features) @ model.embed_sentences(unseen.sentences).T
    np.testing.assert_allclose(found, expected, atol=1e-4)


def naive_relation(row: np.ndarray, anchors: np.ndarray, k: int, p: float) -> np.ndarray:
    """Compute the relative representation of one `row` (d,) by its cosines with the `anchors` (a, d), in a loop over
    the anchors. The `k` greatest cosines are kept and raised to the power `p`. All others and negative cosines become
    0. Return (a,) of unit length."""
    found = [float(row @ anchor / (np.linalg.norm(row) * np.linalg.norm(anchor))) for anchor in anchors]
    least = sorted(found)[-k]
    kept = [max(value, 0) ** p if value >= least else 0 for value in found]
    return np.array(kept) / np.linalg.norm(kept)


@pytest.mark.parametrize("chosen_centring", [0.0, 1.0])
def test_asif_is_the_loop_over_anchors(chosen_centring: float) -> None:
    task, unseen = make_fit_task("asif")
    (whole,) = task.sets.target_blocks()
    # Only the first caption of each image is kept. Anchors with the same image would have equal cosines, so it would be
    # undetermined which of these anchors are used.
    first = np.unique(whole.owners, return_index=True)[1]
    block = ViewBlock(whole.x, whole.y[first], np.arange(len(first)))
    sets = replace(task.sets, target=moments_of(block.x, block.y), target_blocks=lambda: [block])
    task = replace(task, sets=sets)
    tuned = ASIF.fit(task)
    trial = next(one for one in tuned.trials if one.transfer == {"nonzero": 20, "centred": chosen_centring})
    model = ASIF.fit(replace(task, chosen=trial)).model
    drawn = np.sort(np.random.default_rng(0).permutation(len(block.owners))[:200])
    x = block.x
    y = block.y.toarray()
    mean_x = chosen_centring * x.mean(axis=0, dtype=float)
    mean_y = chosen_centring * y.mean(axis=0, dtype=float)
    images = task.view.stack(unseen.features)[:6] - mean_x
    words = unseen.sentences["tfidf"].toarray()[:6] - mean_y
    power = trial.eigenvalue_power
    expected = np.array([naive_relation(row, x[drawn] - mean_x, 20, power) for row in images])
    np.testing.assert_allclose(model.embed_images(unseen.features)[:6], expected, atol=2e-4)
    expected = np.array([naive_relation(row, y[drawn] - mean_y, 20, power) for row in words])
    np.testing.assert_allclose(model.embed_sentences(unseen.sentences)[:6], expected, atol=2e-4)


def test_a_relation_without_positive_cosines_is_zero() -> None:
    found = relate(np.array([[-1.0, -2.0, -0.5]], np.float32), 2, 8)
    np.testing.assert_array_equal(found.toarray(), np.zeros((1, 3)))


def test_a_stored_number_of_anchors_below_one_is_refused() -> None:
    model = ASIF.fit(make_fit_task("asif")[0]).model
    with pytest.raises(ValueError, match="nonzero is 0, but must be at least 1"):
        ASIF.from_parts({**model.settings(), "nonzero": 0}, model.tensors())
