"""Compares the LSTM of jointspace (packed sentences, bfloat16 on fast devices) with torch's LSTM on padded float32.

    python benchmarks/lstm.py [--dimensions 512] [--pairs 7] [--steps 60]

One measurement is a few training steps (forward, backward, Adam) on batches of 128 pairs. The sentences are as long as
captions. `loss` and `reference_loss` are the losses on held-out pairs after `--steps` steps. Both networks start from
the same weights.
"""

import argparse
import itertools

from interleave import compare, parse_options, report

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen
import torch  # noqa: E402
from torch import nn  # noqa: E402

from pipeline.compute.precision import choose_precision  # noqa: E402
from pipeline.models.neural.losses import Objective  # noqa: E402
from pipeline.models.neural.networks import JointNetwork, Recurrent  # noqa: E402
from pipeline.models.neural.recurrence import Packed, pack  # noqa: E402
from pipeline.models.neural.training import seeded  # noqa: E402
from pipeline.text.vocabulary import Tokens  # noqa: E402

BATCH = 128
IMAGE_DIM = 1792
WORD_DIM = 300
WORDS = 5000
TIMED_STEPS = 3
OBJECTIVE = Objective("info-nce", "all", 0, margin=0.2, temperature=0.1, reduction="mean")


class PaddedLSTM(nn.Module):
    """A sentence encoder with torch.nn.LSTM in float32. Sentences are padded to the longest sentence of the batch. The
    initial weights are copied from the encoder `other`.
    """

    def __init__(self, other: Recurrent, dimensions: int) -> None:
        super().__init__()
        self.words = nn.Parameter(other.words.detach().clone())
        self.lstm = nn.LSTM(other.words.shape[1], dimensions, batch_first=True)
        parts = (other.w, other.u, other.bias, other.hidden_bias)
        with torch.no_grad():
            for parameter, part in zip(self.lstm.parameters(), parts, strict=True):
                parameter.copy_(part)

    def forward(self, packed: Packed) -> torch.Tensor:
        padded = torch.zeros(len(packed.lengths), len(packed.sizes), dtype=torch.long)
        position = torch.repeat_interleave(torch.arange(len(packed.sizes)), torch.tensor(packed.sizes))
        padded[packed.owners, position] = packed.ids
        states = self.lstm(self.words[padded])[0]
        return states[torch.arange(len(states)), packed.lengths - 1]


def make_batches(count: int) -> list[tuple[torch.Tensor, Packed]]:
    """Draw `count` batches of BATCH images, (BATCH, IMAGE_DIM) float32, and of BATCH packed sentences, one for each
    image. A sentence has about 11 words, which follow Zipf's law. Its image is the mean of random features of these
    words, with added noise.
    """
    rng = np.random.default_rng(0)
    share = 1 / np.arange(1, WORDS + 1)
    shown = rng.standard_normal((WORDS, IMAGE_DIM), dtype=np.float32)
    batches = []
    for _ in range(count):
        lengths = np.clip(rng.normal(11, 4, BATCH).astype(int), 3, 35)
        ids = rng.choice(WORDS, lengths.sum(), p=share / share.sum()).astype(np.int32)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        images = np.add.reduceat(shown[ids], offsets[:-1]) / lengths[:, None]
        images += 0.1 * rng.standard_normal(images.shape, dtype=np.float32)
        batches.append((torch.from_numpy(images.astype(np.float32)), pack(Tokens(ids, offsets), WORDS)))
    return batches


class Trainee:
    """A network in training, with the padded sentence encoder if `padded` is true, and otherwise with the encoder of
    jointspace. Both kinds of network start from the same weights.
    """

    def __init__(self, dimensions: int, padded: bool) -> None:
        with seeded(0):
            encoder: nn.Module = Recurrent("lstm", torch.randn(WORDS + 1, WORD_DIM) * 0.1, dimensions, dropout=0)
            encoder.precision = choose_precision("auto", torch.device("cpu"))
            encoder = PaddedLSTM(encoder, dimensions) if padded else encoder
            self.network = JointNetwork(torch.zeros(IMAGE_DIM), encoder, dimensions, dropout=0)
        self.optimiser = torch.optim.Adam(self.network.parameters(), lr=1e-3, fused=True)

    def loss(self, batch: tuple[torch.Tensor, Packed]) -> torch.Tensor:
        return OBJECTIVE(self.network(*batch), torch.arange(BATCH))

    def train(self, batches: list[tuple[torch.Tensor, Packed]]) -> None:
        for batch in batches:
            self.optimiser.zero_grad()
            self.loss(batch).backward()
            self.optimiser.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dimensions", type=int, default=512)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=60)
    options = parse_options(
        parser, globals(), dimensions=16, steps=2, BATCH=8, IMAGE_DIM=16, WORD_DIM=8, WORDS=60, TIMED_STEPS=1
    )
    batches = make_batches(options.steps + 4)
    training = batches[:-4]
    held_out = batches[-4:]
    ours = Trainee(options.dimensions, padded=False)
    reference = Trainee(options.dimensions, padded=True)
    losses = []
    for trainee in (ours, reference):
        trainee.train(training)
        with torch.no_grad():
            losses.append(sum(trainee.loss(batch).item() for batch in held_out) / len(held_out))
    cycles = [itertools.cycle(training) for _ in range(2)]
    precision = choose_precision("auto", torch.device("cpu"))
    result = compare(
        f"LSTM training, packed {str(precision).removeprefix('torch.')}, over padded float32",
        lambda: ours.train(list(itertools.islice(cycles[0], TIMED_STEPS))),
        lambda: reference.train(list(itertools.islice(cycles[1], TIMED_STEPS))),
        options.pairs,
        runtime.threads(),
    )
    report({**result, "dimensions": options.dimensions, "loss": losses[0], "reference_loss": losses[1]})


if __name__ == "__main__":
    main()
