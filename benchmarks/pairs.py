"""Functions that make synthetic pairs of 4,096 dense and 3,000 sparse dimensions, for several benchmarks."""

import numpy as np
from scipy import sparse

DIM_X = 4096
DIM_Y = 3000
WORDS = 12


def make_pairs(rows: int) -> tuple[np.ndarray, sparse.csr_array]:
    """Draw `rows` pairs of an image and a sentence, with the seed 0.

    The images (rows, DIM_X) in float32 look like features after a ReLU: about a quarter of the numbers is not zero. The
    sentences (rows, DIM_Y) in float32 are sparse. Each has WORDS words, which follow Zipf's law and have random
    weights.
    """
    rng = np.random.default_rng(0)
    x = np.maximum(rng.standard_normal((rows, DIM_X), dtype=np.float32) - 0.7, 0)
    frequency = 1 / np.arange(1, DIM_Y + 1)
    words = rng.choice(DIM_Y, size=rows * WORDS, p=frequency / frequency.sum())
    owners = np.repeat(np.arange(rows), WORDS)
    y = sparse.csr_array((rng.random(rows * WORDS, dtype=np.float32), (owners, words)), shape=(rows, DIM_Y))
    return x, y
