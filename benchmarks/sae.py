"""Compares the random Fourier map with scikit-learn's, and the second CCA of SAE with the concatenated dense matrix.

    python benchmarks/sae.py [--rows 16384]

The map is drawn by the default rule, and then with one phase for each frequency, as in scikit-learn's sampler. The last
line compares two ways to compute the moments of the second CCA, timed from rows in memory to moments, with 4,096 +
3,000 image columns and 3,000 + 3,000 text columns. The later steps of the fit are the same for both ways. The line also
has the largest difference of the canonical correlations of both ways.
"""

import argparse
from functools import partial

from interleave import compare, parse_options, report

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen
from pairs import DIM_X, DIM_Y, make_pairs  # noqa: E402
from scipy.linalg.blas import sgemm, ssyrk  # noqa: E402
from sklearn.kernel_approximation import RBFSampler  # noqa: E402

from pipeline.models.linear.accumulation import MomentsAccumulator, mapped_moments  # noqa: E402
from pipeline.models.linear.cca import CCASolver  # noqa: E402
from pipeline.models.linear.feature_maps import FeatureMaps, FourierFeatures, FourierMap  # noqa: E402
from pipeline.models.linear.moments import Moments, mirror  # noqa: E402
from pipeline.models.linear.views import ViewBlock  # noqa: E402

C1 = 128
FEATURES = 3000
DIMENSIONS = 96
RIDGE = 0.1
SIGMA = 10.0
BLOCK = 2048


def make_lift(dim: int, seed: int) -> FourierFeatures:
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((dim, C1)).astype(np.float32) / np.float32(np.sqrt(dim))
    return FourierFeatures(matrix, np.zeros(C1, np.float32), draw("cosine-sine", rng), 0.1)


def draw(rule: str, rng: np.random.Generator) -> FourierMap:
    return FourierMap.draw(rule, C1, FEATURES, SIGMA, rng)


def dense_moments(x: np.ndarray, y: np.ndarray) -> Moments:
    """Compute the moments of the pairs of rows of two dense matrices x (n, p) and y (n, q) by the BLAS, in single
    precision. This function is the reference for `mapped_moments`.
    """
    mean_x = x.mean(axis=0)
    mean_y = y.mean(axis=0)
    a = x - mean_x
    b = y - mean_y
    xx, yy = (mirror(ssyrk(1.0, part.T)) for part in (a, b))
    return Moments(len(x), mean_x.astype(float), mean_y.astype(float), xx, sgemm(1.0, a.T, b.T, trans_b=True), yy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1 << 14)
    rows = parse_options(parser, globals(), rows=512).rows
    x, y = make_pairs(rows)
    maps = FeatureMaps(make_lift(DIM_X, 1), make_lift(DIM_Y, 2))
    z = x @ maps.image.matrix
    sampler = RBFSampler(gamma=1 / (2 * SIGMA**2), n_components=FEATURES, random_state=0).fit(z)
    threads = runtime.threads()
    phased = draw("paper", np.random.default_rng(3))
    for name, drawn in (("map", maps.image.fourier), ("map with drawn phases", phased)):
        report(compare(f"{name} over RBFSampler", partial(drawn, z), lambda: sampler.transform(z), 7, threads))

    accumulator = MomentsAccumulator(DIM_X, DIM_Y, threads)
    accumulator.add(x, y, np.arange(rows))
    known = accumulator.result()
    found: dict[str, Moments] = {}

    def ours() -> None:
        parts = (slice(start, start + BLOCK) for start in range(0, rows, BLOCK))
        blocks = (ViewBlock(x[part], y[part], np.arange(len(x[part]))) for part in parts)
        found["ours"] = mapped_moments(known, blocks, maps)

    def concatenated() -> None:
        found["reference"] = dense_moments(np.hstack([x, maps.image(x)]), np.hstack([y.toarray(), maps.text(y)]))

    result = compare("moments of the second fit over the concatenated matrix", ours, concatenated, 5, threads)
    one, other = (CCASolver(moments).solve(RIDGE, RIDGE, DIMENSIONS).values for moments in found.values())
    report(
        {**result, "rows": rows, "largest_difference": float(np.abs(one - other).max()), "correlation": float(one[0])}
    )


if __name__ == "__main__":
    main()
