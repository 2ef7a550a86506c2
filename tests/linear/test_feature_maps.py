"""Moments of mapped and expanded views are compared with dense matrices, and the feature maps with their equations."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse
from sklearn.metrics.pairwise import rbf_kernel

from pipeline.models.linear.accumulation import MomentsAccumulator, mapped_moments
from pipeline.models.linear.cca import CCASolver
from pipeline.models.linear.feature_maps import (
    PRODUCT_ROWS,
    FeatureMaps,
    FourierFeatures,
    FourierMap,
    NeighbourText,
    ReservoirSample,
    TanhFeatures,
    mapped_columns,
    measure_bandwidth,
)
from pipeline.models.linear.kernels import KernelFeatures
from pipeline.models.linear.moments import Expansion, Moments
from pipeline.models.linear.views import Columns, ViewBlock


def make_block(seed: int, n: int = 90, dim_x: int = 12, dim_y: int = 9) -> ViewBlock:
    """Make a block of `n` images with features far from zero, and with 0 to 3 sparse sentences per image."""
    rng = np.random.default_rng(seed)
    owners = np.repeat(np.arange(n), rng.integers(0, 4, n))
    x = rng.standard_normal((n, dim_x)).astype(np.float32) + 3
    y = sparse.random_array((len(owners), dim_y), density=0.5, rng=rng, dtype=np.float32, format="csr")
    return ViewBlock(x, y, owners)


def moments_of(*blocks: ViewBlock) -> Moments:
    accumulator = MomentsAccumulator(blocks[0].x.shape[1], blocks[0].y.shape[1], threads=1)
    for block in blocks:
        accumulator.add(block.x, block.y, block.owners)
    return accumulator.result()


def dense_moments(x: np.ndarray, y: np.ndarray) -> Moments:
    """Compute the expected moments in float64 from dense rows. Row i of `x` and row i of `y` are a pair."""
    x = x.astype(np.float64)
    y = y.astype(np.float64)
    a = x - x.mean(axis=0)
    b = y - y.mean(axis=0)
    return Moments(len(x), x.mean(axis=0), y.mean(axis=0), a.T @ a, a.T @ b, b.T @ b)


def assert_same(left: Moments, right: Moments, tolerance: float = 2e-5) -> None:
    for name in ("n", "mean_x", "mean_y", "xx", "xy", "yy"):
        expected = np.asarray(getattr(right, name))
        np.testing.assert_allclose(getattr(left, name), expected, atol=tolerance * np.abs(expected).max(), err_msg=name)


def dense_columns(rows, feature_map) -> np.ndarray:
    return np.hstack([c.toarray() if sparse.issparse(c) else c for c in mapped_columns(rows, feature_map)])


def make_tanh(dim: int) -> TanhFeatures:
    rng = np.random.default_rng(dim)
    return TanhFeatures(rng.standard_normal((dim, 4)).astype(np.float32), np.ones(4, np.float32), 0.5)


def make_fourier(dim: int, seed: int, rule: str = "paper") -> FourierFeatures:
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((dim, 4)).astype(np.float32)
    fourier = FourierMap.draw(rule, 4, 20, 3.0 if rule == "cosine-sine" else 1 / 3, rng)
    return FourierFeatures(matrix, rng.standard_normal(4).astype(np.float32), fourier, 0.5)


def make_kernel(rows) -> KernelFeatures:
    return KernelFeatures.fit(lambda: [rows], "rbf", 0.5, 25, seed=0)


BLOCKS = (make_block(0), make_block(1, n=1), make_block(2, n=140))
MAPS = {
    "both kept": FeatureMaps(make_fourier(12, 3), make_fourier(9, 4)),
    "cosines and sines": FeatureMaps(make_fourier(12, 3, "cosine-sine"), make_fourier(9, 4, "cosine-sine")),
    "images only": FeatureMaps(image=make_fourier(12, 3)),
    "tanh": FeatureMaps(make_tanh(12), make_tanh(9)),
    "sentences only": FeatureMaps(text=make_fourier(9, 4)),
    "both replaced": FeatureMaps(make_kernel(BLOCKS[0].x), make_kernel(BLOCKS[0].y)),
    "one of each": FeatureMaps(make_fourier(12, 3), make_kernel(BLOCKS[0].y)),
    "neighbours": FeatureMaps(image=NeighbourText.build(BLOCKS, 5)),
}


@pytest.mark.parametrize("maps", MAPS.values(), ids=MAPS)
def test_moments_of_mapped_views_equal_those_of_dense_mapped_rows(maps: FeatureMaps) -> None:
    found = mapped_moments(moments_of(*BLOCKS), BLOCKS, maps)
    x = np.vstack([dense_columns(block.x, maps.image)[block.owners] for block in BLOCKS])
    y = np.vstack([dense_columns(block.y, maps.text) for block in BLOCKS])
    assert_same(found, dense_moments(x, y))


@pytest.mark.parametrize("text", ["dense", "sparse and dense"])
@pytest.mark.parametrize("name", ["cosines and sines", "images only", "sentences only"])
def test_mapped_moments_do_not_depend_on_the_form_of_the_text_and_the_order_of_sentences(name: str, text: str) -> None:
    rng = np.random.default_rng(13)
    shuffled = []
    for block in BLOCKS:
        order = rng.permutation(len(block.owners))
        y = block.y[order]
        dense = y.toarray()
        forms = {"dense": dense, "sparse and dense": Columns([y[:, :4], dense[:, 4:]])}
        shuffled.append(ViewBlock(block.x, forms[text], block.owners[order]))
    known = moments_of(*BLOCKS)
    assert_same(mapped_moments(known, shuffled, MAPS[name]), mapped_moments(known, BLOCKS, MAPS[name]))


@pytest.mark.parametrize("keep", [True, False])
def test_expanded_moments_equal_those_of_expanded_rows(keep: bool) -> None:
    rng = np.random.default_rng(6)
    block = BLOCKS[2]
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((12, 3), (9, 4)))
    sides = ((block.x[block.owners], a), (block.y.toarray(), b))
    columns = [np.hstack([rows, rows @ matrix]) if keep else rows @ matrix for rows, matrix in sides]
    assert_same(moments_of(block).expanded(Expansion(a, keep), Expansion(b, keep)), dense_moments(*columns))


def test_fourier_products_estimate_the_gaussian_kernel() -> None:
    """The products of the random features of the rule cosine-sine, divided by the number of features, are compared with
    the Gaussian kernel. The product of a row with itself is exact (Sutherland and Schneider 2015, section 3)."""
    z = np.random.default_rng(8).standard_normal((40, 6)).astype(np.float32)
    features = FourierMap.draw("cosine-sine", 6, 40_000, 2.0, np.random.default_rng(9))(z)
    np.testing.assert_allclose(features @ features.T / 40_000, rbf_kernel(z, gamma=1 / 8), atol=0.03)
    np.testing.assert_allclose(np.square(features).sum(axis=1), 40_000, rtol=1e-5)


@pytest.mark.parametrize("rule", ["cosine-sine", "paper"])
def test_fourier_maps_of_several_blocks_of_rows_follow_the_equation(rule: str) -> None:
    rng = np.random.default_rng(10)
    z = rng.standard_normal((2 * PRODUCT_ROWS + 3, 6)).astype(np.float32)
    fourier = FourierMap.draw(rule, 6, 8, 1.0, rng)
    angles = z.astype(float) @ fourier.frequencies
    columns = [angles, angles - np.pi / 2] if fourier.phases is None else [angles + fourier.phases]
    np.testing.assert_allclose(fourier(z, scale=3.0), 3 * np.sqrt(2) * np.cos(np.hstack(columns)), atol=1e-4)


def test_bandwidth_is_the_mean_distance_to_the_fiftieth_neighbour() -> None:
    z = np.random.default_rng(11).standard_normal((120, 3))
    distances = np.sort(np.linalg.norm(z[:, None] - z, axis=2), axis=1)
    assert measure_bandwidth(z) == pytest.approx(distances[:, 50].mean())


def test_kernel_cca_equals_the_dual_problem_with_kernel_matrices() -> None:
    """The correlations of CCA on KernelFeatures, with all rows as landmarks, equal the correlations of the dual problem
    of kernel CCA in float64. The dual problem maximises a'Kx Ky b subject to a'(Kx^2/n + rx Kx)a = 1 and to the
    corresponding constraint on b, where Kx and Ky are the centred kernel matrices."""
    rng = np.random.default_rng(12)
    hidden = rng.standard_normal((60, 2))
    x, y = (np.tanh(hidden @ rng.standard_normal((2, 5))) + 0.1 * rng.standard_normal((60, 5)) for _ in range(2))
    block = ViewBlock(x.astype(np.float32), sparse.csr_array(y.astype(np.float32)), np.arange(60))
    views = (block.x, block.y)
    maps = FeatureMaps(*(KernelFeatures.fit(lambda rows=rows: [rows], "rbf", 0.5, 60, 0) for rows in views))
    moments = mapped_moments(moments_of(block), [block], maps)
    found = CCASolver(moments).solve(0.5, 0.5, 3).values

    centre = np.eye(60) - 1 / 60
    roots = []
    for rows, feature_map, trace in ((x, maps.image, moments.xx), (y, maps.text, moments.yy)):
        kernel = centre @ rbf_kernel(rows, gamma=feature_map.gamma) @ centre
        ridge = 0.5 * np.trace(trace) / 60 / len(trace)
        roots.append(kernel @ np.linalg.inv(kernel / 60 + ridge * np.eye(60)) / 60)
    expected = np.sqrt(np.sort(np.linalg.eigvals(roots[0] @ roots[1]).real)[::-1][:3])
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_transferred_text_is_the_mean_text_of_the_nearest_images() -> None:
    gallery = np.array([[0, 0], [1, 0], [5, 5]], np.float32)
    texts = sparse.csr_array(np.array([[2, 0], [0, 4], [9, 9]], np.float32))
    feature_map = NeighbourText(gallery, texts, 2)
    np.testing.assert_allclose(feature_map(np.array([[0.2, 0]], np.float32)), [[1, 2]])
    assert NeighbourText(gallery, texts, 50).neighbours == 3


def test_a_sample_is_uniform_and_does_not_depend_on_the_blocks() -> None:
    rows = np.arange(50, dtype=np.float32)[:, None]

    def draw(seed: int, *bounds: int, rows=rows):
        sample = ReservoirSample(10, np.random.default_rng(seed))
        for start, stop in pairwise((0, *bounds, 50)):
            sample.add(rows[start:stop])
            assert sample.rows().shape[0] <= 10
        return sample.rows()

    whole = [draw(seed) for seed in range(2000)]
    for seed, bounds in enumerate([(1, 2, 30), (5, 10, 10), range(1, 50)]):
        np.testing.assert_array_equal(draw(seed, *bounds), whole[seed])
    np.testing.assert_array_equal(draw(0, 7, rows=sparse.csr_array(rows)).toarray(), whole[0])
    counts = np.bincount(np.concatenate(whole).astype(int).ravel(), minlength=50)
    assert np.abs(counts - 400).max() < 5 * (400 * 0.8) ** 0.5
