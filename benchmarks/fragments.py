"""Compares the scores of multi-vector models with a loop over pairs, with masked padding, and with the bare products.

    python benchmarks/fragments.py [--dimensions 1000] [--regions 20] [--pairs 7]

There are 100 images and 100 sentences, and the sentences are as long as captions. All ways compute in float32 and in
one process. `void` is explained by `compare` in interleave.py. `peak_mb` is the size in MB of the largest intermediate
result of jointspace.
"""

import argparse
from collections.abc import Callable

from interleave import compare, parse_options, report

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen
import torch  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from pipeline.compute.multivectors import MultiVectors, ScoreRule  # noqa: E402
from pipeline.metrics.multivector_scores import multivector_scores  # noqa: E402

COUNT = 100
RULE = ScoreRule("words", 0)


def make_sets(lengths: np.ndarray, dimensions: int, seed: int) -> MultiVectors:
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((lengths.sum(), dimensions), dtype=np.float32)
    return MultiVectors(torch.from_numpy(vectors), np.concatenate([[0], np.cumsum(lengths)]))


def pad(sets: MultiVectors) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad each set of vectors to the length of the longest set. Return the vectors (n, longest, c) with zeros as
    padding, and a mask (n, longest) that is true for real vectors.
    """
    mask = torch.arange(int(sets.lengths.max())) < torch.from_numpy(sets.lengths)[:, None]
    padded = torch.zeros(*mask.shape, sets.vectors.shape[1])
    padded[mask] = sets.vectors
    return padded, mask


def loop(images: MultiVectors, sentences: MultiVectors) -> torch.Tensor:
    """Compute the scores (n, m) of n images and m sentences by RULE, with one matrix product for each pair of an image
    and a sentence.
    """
    scores = torch.empty(len(images), len(sentences))
    for k in range(len(images)):
        for j in range(len(sentences)):
            v = images.vectors[images.offsets[k] : images.offsets[k + 1]]
            s = sentences.vectors[sentences.offsets[j] : sentences.offsets[j + 1]]
            scores[k, j] = (v @ s.T).amax(dim=0).sum()
    return scores


def masked(regions: torch.Tensor, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Compute the scores (n, m) by RULE from padded sets of regions (n, longest, c) and words (m, longest, c). `mask`
    is true for real words. Padding counts as a score of zero.
    """
    n = len(regions)
    m = len(words)
    products = regions.flatten(0, 1) @ words.flatten(0, 1).T
    return (products.view(n, -1, m, mask.shape[1]).amax(dim=1) * mask).sum(dim=2)


class Largest(TorchDispatchMode):
    """A mode of torch that records in `bytes` the size of the largest result of an operation."""

    bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(each, torch.Tensor):
                self.bytes = max(self.bytes, each.nbytes)
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dimensions", type=int, default=1000)
    parser.add_argument("--regions", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=7)
    options = parse_options(parser, globals(), dimensions=16, regions=4, COUNT=5)
    lengths = np.clip(np.random.default_rng(2).normal(11, 4, COUNT).astype(int), 3, 35)
    images = make_sets(np.full(COUNT, options.regions), options.dimensions, 0)
    sentences = make_sets(lengths, options.dimensions, 1)
    padded = pad(images)[0]
    (words, mask) = pad(sentences)

    def ours() -> torch.Tensor:
        return multivector_scores(images, sentences, RULE)

    references: dict[str, Callable[[], torch.Tensor]] = {
        "a loop over pairs": lambda: loop(images, sentences),
        "masked padding": lambda: masked(padded, words, mask),
        "the products alone": lambda: images.vectors @ sentences.vectors.T,
    }
    for reference in ("a loop over pairs", "masked padding"):
        torch.testing.assert_close(ours(), references[reference](), rtol=1e-4, atol=1e-2)
    with Largest() as largest:
        ours()
    about = {"regions": len(images.vectors), "words": len(sentences.vectors), "dimensions": options.dimensions}
    for name, reference in references.items():
        result = compare(f"fragment scores over {name}", ours, reference, options.pairs, runtime.threads())
        report({**result, **about, "peak_mb": largest.bytes / 1e6})


if __name__ == "__main__":
    main()
