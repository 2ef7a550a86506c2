"""Compares the computation of ranks in both directions with sorting, and with the bare matrix product.

    python benchmarks/ranks.py

The reference is the plain way: one single-precision product, `np.argsort` of each row and column, and the position of
the first right answer. `differing` counts the ranks that are different in the two ways, because single precision rounds
the scores of two candidates in another order. `exact_differing` compares with sorting in double precision.
"""

import argparse
from functools import partial

from interleave import compare, parse_options, report

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen

from pipeline.metrics.ranks import Ranks, count_ranks  # noqa: E402

DIM = 128
SHAPES = [(5000, 5000), (2000, 31000)]
"""The measured shapes: pairs of a number of images and a number of sentences."""


def make_pairs(n: int, m: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw unit vectors of n images (n, DIM) and of m sentences (m, DIM), each sentence near its image. Also return the
    row of the image of each sentence (m,).
    """
    rng = np.random.default_rng(0)
    owners = np.arange(m) % n
    images = rng.standard_normal((n, DIM), dtype=np.float32)
    sentences = images[owners] + 3 * rng.standard_normal((m, DIM), dtype=np.float32)
    return (*(x / np.linalg.norm(x, axis=1, keepdims=True) for x in (images, sentences)), owners)


def sort_ranks(images: np.ndarray, sentences: np.ndarray, owners: np.ndarray) -> Ranks:
    """Compute the ranks in both directions by sorting all rows and all columns of the matrix of scores."""
    scores = images @ sentences.T
    order = np.argsort(-scores, axis=1)
    to_sentence = (owners[order] == np.arange(len(images))[:, None]).argmax(axis=1) + 1
    order = np.argsort(-scores.T, axis=1)
    return Ranks(to_sentence, (order == owners[:, None]).argmax(axis=1) + 1)


def differing(a: Ranks, b: Ranks) -> int:
    pairs = ((a.image_to_sentence, b.image_to_sentence), (a.sentence_to_image, b.sentence_to_image))
    return sum(int((x != y).sum()) for x, y in pairs)


def main() -> None:
    parse_options(argparse.ArgumentParser(description=__doc__), globals(), SHAPES=[(50, 60)])
    for n, m in SHAPES:
        images, sentences, owners = make_pairs(n, m)
        doubles = images.astype(np.float64), sentences.astype(np.float64)
        ours = partial(count_ranks, images, sentences, owners, "inner_product")
        sort = partial(sort_ranks, images, sentences, owners)
        threads = runtime.threads()

        result = compare(f"ranks of {n} x {m} over argsort", ours, sort, 3, threads=1)  # np.argsort uses one thread.
        found = ours()
        exact = sort_ranks(*doubles, owners)
        report({**result, "differing": differing(found, sort()), "exact_differing": differing(found, exact)})
        for name, a, b in (("single", images, sentences), ("double", *doubles)):
            product = partial(np.matmul, a, b.T)
            report(compare(f"ranks of {n} x {m} over one {name}-precision product", ours, product, 7, threads))


if __name__ == "__main__":
    main()
