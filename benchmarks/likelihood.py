"""How probable a generator finds sentences given images: as a prefix tree, against sentence by sentence.

    python benchmarks/likelihood.py [--images 4] [--sentences 5000] [--dimensions 256] [--pairs 5]

The network has the shape of a trained `mrnn`, with a vocabulary as large as Flickr8k's; its weights are drawn, and so
are the sentences, by Zipf's law. `shared` is the share of their words that end a prefix which an earlier sentence has
too (a third of those of Flickr8k's test sentences). `furthest` is the largest difference of two logarithms.
"""

import argparse

from interleave import compare, parse_options, report

from pipeline import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen
import torch  # noqa: E402

from pipeline.generate.framing import framed  # noqa: E402
from pipeline.generate.mrnn import DescribingNetwork, RecurrentDecoder  # noqa: E402
from pipeline.generate.prefixes import prefixes  # noqa: E402
from pipeline.generate.training import sums_of  # noqa: E402
from pipeline.models.neural.training import seeded  # noqa: E402
from pipeline.text.sequences import Tokens  # noqa: E402

WORDS, IMAGE_DIM, BLOCK = 4000, 1280, 512


def draw_sentences(count: int) -> Tokens:
    rng = np.random.default_rng(0)
    lengths = rng.integers(6, 18, count)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    shares = 1 / np.arange(1, WORDS + 1)
    return Tokens(rng.choice(WORDS, offsets[-1], p=shares / shares.sum()).astype(np.int32), offsets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("images", 4), ("sentences", 5000), ("dimensions", 256), ("pairs", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parse_options(parser, globals(), images=2, sentences=40, dimensions=16, WORDS=50, IMAGE_DIM=16)
    size, sentences = given.dimensions, draw_sentences(given.sentences)
    with seeded(0):
        frequencies = torch.randn(WORDS + 2)
        network = DescribingNetwork("lstm", size, size, torch.zeros(IMAGE_DIM), torch.ones(()), frequencies, 0).eval()
        images = torch.randn(given.images, IMAGE_DIM)
    boundary = WORDS + 1

    def as_tree() -> np.ndarray:
        tree = prefixes(sentences, boundary)
        with torch.inference_mode():
            decoder = RecurrentDecoder(network, images)
            return np.stack([decoder.log_probabilities(tree, image).numpy() for image in range(len(images))])

    def one_by_one() -> np.ndarray:
        found = np.empty((len(images), len(sentences)), np.float32)
        with torch.inference_mode():
            biases = network.image_bias(images)
            for start in range(0, len(sentences), BLOCK):
                rows = np.arange(start, min(start + BLOCK, len(sentences)))
                block = framed(sentences.take(rows), boundary)
                for image, bias in enumerate(biases):
                    losses = network.losses(bias.expand(len(rows), -1), block)
                    found[image, rows] = sums_of(-losses, block.targets.owners, len(rows))
        return found

    shared = 1 - len(prefixes(sentences, boundary).words) / (len(sentences.ids) + len(sentences))
    furthest = float(np.abs(as_tree() - one_by_one()).max())
    what = f"log P of {given.sentences} sentences given {given.images} images"
    result = compare(what, as_tree, one_by_one, given.pairs)
    report({**result, "shared": round(shared, 3), "furthest": furthest})


if __name__ == "__main__":
    main()
