"""Compares two ways of sampling sentences: with and without removing the sentences that have ended.

    python benchmarks/sampling.py [--candidates 1000] [--dimensions 300] [--factors 100] [--words 6790] [--pairs 5]

The sentences are the candidates for one image by the network of `mnlm`, in the sizes of Kiros et al. 2014 and with a
vocabulary of the size of Flickr8k's. `ours` removes ended sentences. `reference` draws the next word of every sentence
with torch.multinomial until the last sentence has ended or has MAX_WORDS words. The weights are random, and the bias
makes a sentence end at each word with a probability of about 1 / LENGTH. `words` in the output has the mean number of
words per sentence for each of the two ways.
"""

import argparse

from interleave import compare, parse_options, report

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen
import torch  # noqa: E402

from pipeline.generate.beam import sample  # noqa: E402
from pipeline.generate.logbilinear import LogBilinearSizes, Multiplicative, WindowDecoder  # noqa: E402
from pipeline.models.neural.training import seeded  # noqa: E402

MAX_WORDS = 20
TEMPERATURE = 0.7
LENGTH = 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("candidates", 1000), ("dimensions", 300), ("factors", 100), ("words", 6790), ("pairs", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parse_options(parser, globals(), candidates=20, dimensions=16, factors=8, words=60)
    with seeded(0):
        frequencies = torch.zeros(given.words + 2)
        frequencies[-1] = TEMPERATURE * float(np.log(given.words / (LENGTH - 1)))
        sizes = LogBilinearSizes(5, given.dimensions, given.factors, given.dimensions, 0, 0, 0, False)
        network = Multiplicative(sizes, frequencies).eval()
        u = torch.nn.functional.normalize(torch.randn(given.candidates, given.dimensions))

    def shrinking() -> list[int]:
        found = sample(WindowDecoder(network, u, None), MAX_WORDS, TEMPERATURE, torch.Generator().manual_seed(0))
        return [len(one.words) for one in found]

    @torch.inference_mode()
    def together() -> list[int]:
        decoder = WindowDecoder(network, u, None)
        random = torch.Generator().manual_seed(0)
        logits, state = decoder.begin()
        logits[:, decoder.boundary] = -torch.inf
        ended = torch.zeros(len(logits), dtype=torch.bool)
        lengths = torch.zeros(len(logits), dtype=torch.long)
        for _ in range(MAX_WORDS):
            logits[:, decoder.boundary - 1] = -torch.inf
            drawn = torch.multinomial((logits / TEMPERATURE).softmax(dim=1), 1, generator=random).flatten()
            words = drawn.masked_fill(ended, decoder.boundary)
            ended |= words == decoder.boundary
            lengths += ~ended
            if ended.all():
                break
            logits, state = decoder.step(words, state)
        return lengths.tolist()

    words = [round(float(np.mean(way())), 2) for way in (shrinking, together)]
    report({**compare(f"{given.candidates} candidates of an image", shrinking, together, given.pairs), "words": words})


if __name__ == "__main__":
    main()
