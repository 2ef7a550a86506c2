"""Compares one epoch of Wsabie with a loop over pairs, for 30,000 pairs of 1,792 dense and 3,000 sparse dimensions.

    python benchmarks/wsabie.py [--batch 64]

The joint space has 96 dimensions. The reference is the step of Gong et al. 2014: one pair, negatives that are sampled
one after the other, a gradient step on all of W and on the rows of U that the two sentences touch, and the constraint
on the norms. The reference runs over a sample of the pairs from the first weights, where violating sentences are found
at once. Its times are scaled to the whole epoch. `pairs_per_second` and `reference_pairs_per_second` are the wall times
as rates. The sentences contain words that depend on their image, so that the epoch learns and violations become rarer.
"""

import argparse
from dataclasses import replace
from functools import partial
from typing import Any

from interleave import compare, parse_options, report, scale_reference

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen
from scipy import sparse  # noqa: E402

from pipeline.models.linear.wsabie import WsabieSchedule, rank_weights, train  # noqa: E402

IMAGES = 6000
SENTENCES_EACH = 5
DIM_X = 1792
DIM_Y = 3000
WORDS = 12
SAMPLE = 300
"""Number of pairs on which the loop is timed."""


def make_pairs() -> tuple[np.ndarray, sparse.csr_array, np.ndarray]:
    """Draw images and sentences. Return the images (n, DIM_X), centred and of length 1, the sentences (m, DIM_Y), and
    the row of the image of each sentence (m,). Half of the words of a sentence come from the 20 words of its image.
    """
    rng = np.random.default_rng(0)
    frequency = 1 / np.arange(1, DIM_Y + 1)
    topics = rng.choice(DIM_Y, size=(IMAGES, 20), p=frequency / frequency.sum())
    x = np.maximum(rng.standard_normal((DIM_Y, DIM_X), dtype=np.float32), 0)[topics].mean(axis=1)
    x -= x.mean(axis=0)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    owners = np.repeat(np.arange(IMAGES), SENTENCES_EACH)
    own = topics[owners[:, None], rng.integers(20, size=(len(owners), WORDS // 2))]
    other = rng.choice(DIM_Y, size=(len(owners), WORDS - WORDS // 2), p=frequency / frequency.sum())
    words = np.hstack([own, other]).ravel()
    rows = np.repeat(np.arange(len(owners)), WORDS)
    values = np.full(len(words), WORDS**-0.5, np.float32)
    return x, sparse.csr_array((values, (rows, words)), shape=(len(owners), DIM_Y)), owners


def loop(
    x: np.ndarray, y: sparse.csr_array, owners: np.ndarray, w: np.ndarray, u: np.ndarray, schedule: WsabieSchedule
) -> None:
    """Run the SGD of Gong et al. 2014 over SAMPLE random pairs of the images `x` and the sentences `y`, to be timed by
    the caller. `owners` has the row of the image of each sentence. `w` and `u` are the weights at the start, which are
    not changed.
    """
    rng = np.random.default_rng(schedule.seed)
    w = w.copy()
    u = u.copy()
    weights = rank_weights(len(owners))
    n = len(owners)
    words = [y.indices[y.indptr[i] : y.indptr[i + 1]] for i in range(n)]
    values = [y.data[y.indptr[i] : y.indptr[i + 1]] for i in range(n)]
    for i in rng.permutation(n)[:SAMPLE]:
        image = x[owners[i]]
        projected = image @ w
        positive = values[i] @ u[words[i]]
        for sampled in range(1, schedule.max_samples + 1):
            j = rng.integers(n)
            while owners[j] == owners[i]:
                j = rng.integers(n)
            negative = values[j] @ u[words[j]]
            if projected @ negative > projected @ positive - 1:
                rate = schedule.learning_rate * weights[(n - 1) // sampled]
                w -= np.outer(image, rate * (negative - positive))
                u[words[j]] -= np.outer(values[j], rate * projected)
                u[words[i]] += np.outer(values[i], rate * projected)
                for matrix in (w, u):
                    matrix /= np.maximum(np.linalg.norm(matrix, axis=0) / np.sqrt(schedule.max_norm), 1)
                break


def run(*pairs: Any) -> None:
    """Train Wsabie by jointspace to the end of the only epoch. `pairs` are the arguments of `train`."""
    for _ in train(*pairs):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64)
    schedule = WsabieSchedule(
        epochs=1,
        batch=parse_options(parser, globals(), IMAGES=60, DIM_X=32, DIM_Y=50, SAMPLE=20).batch,
        learning_rate=0.2,
        max_norm=50,
        adaptive=False,
        dimensions=96,
        seed=0,
        max_samples=1000,
    )
    pairs = make_pairs()
    first = next(train(*pairs, schedule))
    one_by_one = partial(loop, *pairs, first.w, first.u, replace(schedule, learning_rate=0.01))
    n = len(pairs[2])
    for rule, adaptive in (("SGD", False), ("AdaGrad", True)):
        epoch = partial(run, *pairs, replace(schedule, adaptive=adaptive))
        result = compare(f"an epoch of {rule} over a loop of SGD over pairs", epoch, one_by_one, 5, runtime.threads())
        result = scale_reference(result, n / SAMPLE)
        rates = {"pairs_per_second": n / result["ours"], "reference_pairs_per_second": n / result["reference"]}
        report({**result, "batch": schedule.batch, **rates})


if __name__ == "__main__":
    main()
