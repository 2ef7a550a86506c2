"""Compares the beam search for many images at once with the same search for one image after another.

    python benchmarks/beam.py [--images 64] [--beam 7] [--dimensions 256] [--pairs 7]

The network has the shape of a trained `mrnn`, and a vocabulary of the size of the vocabulary of Flickr8k. Its weights
are random, and no sentence ends before its 15th word. `equal` says whether both ways found the same sentences.
"""

import argparse

from interleave import compare, parse_options, report

from pipeline.compute import runtime

runtime.configure()

import torch  # noqa: E402  after the BLAS kernels are chosen

from pipeline.compute.precision import choose_precision  # noqa: E402
from pipeline.generate.beam import BeamSearch, Hypothesis, beam_search  # noqa: E402
from pipeline.generate.mrnn import DescribingNetwork, RecurrentDecoder  # noqa: E402
from pipeline.models.neural.training import seeded  # noqa: E402

WORDS = 4000
IMAGE_DIM = 1280
MAX_WORDS = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("images", 64), ("beam", 7), ("dimensions", 256), ("pairs", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--precision", default="float32")
    given = parse_options(parser, globals(), images=2, dimensions=16, WORDS=50, IMAGE_DIM=16)
    size = given.dimensions
    search = BeamSearch(given.beam, 0.7, MAX_WORDS)
    with seeded(0):
        frequencies = torch.randn(WORDS + 2)
        frequencies[-1] = -30
        network = DescribingNetwork("lstm", size, size, torch.zeros(IMAGE_DIM), torch.ones(()), frequencies, 0).eval()
        images = torch.randn(given.images, IMAGE_DIM)
    network.precision = choose_precision(given.precision, torch.device("cpu"))

    def together() -> list[list[Hypothesis]]:
        with torch.inference_mode():
            return beam_search(RecurrentDecoder(network, images), search)

    def alone() -> list[list[Hypothesis]]:
        # All images share one decoder, as in `together`, so that preparing the weights is not a part of the comparison.
        with torch.inference_mode():
            decoder = RecurrentDecoder(network, images)
            every = decoder.first
            found = []
            for image in range(len(images)):
                decoder.first = every[image : image + 1]
                found += beam_search(decoder, search)
        return found

    words = [[[one.words for one in found] for found in way()] for way in (together, alone)]
    result = compare(f"beam search of {given.images} images, beam {given.beam}", together, alone, given.pairs)
    report({**result, "equal": words[0] == words[1]})


if __name__ == "__main__":
    main()
