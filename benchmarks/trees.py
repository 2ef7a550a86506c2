"""Compares tree encoders that compute a minibatch level by level with the same recursion node by node.

    python benchmarks/trees.py [--dimensions 512] [--pairs 5] [--epoch 30000]

One measurement is a forward and a backward pass through the sentence encoder for a batch of 128 sentences. The
recursion computes a few sentences, and its times are scaled to the batch. `largest_difference` is the largest
difference between the vectors or gradients of both ways, divided by the largest entry of the recursion if this entry is
above 1. The last line is one epoch of training `sdtrnn` on `--epoch` sentences, with drawing batches, the image map,
the loss, the gradients and AdaGrad. `cpu_seconds` counts all threads.
"""

import argparse
import sys
import time
from pathlib import Path

from interleave import compare, parse_options, report, scale_reference

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen
import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from tree_shapes import WORDS, draw_dependencies, draw_phrases  # noqa: E402

from pipeline.compute.precision import choose_precision  # noqa: E402
from pipeline.models.neural.losses import Objective  # noqa: E402
from pipeline.models.neural.networks import JointNetwork  # noqa: E402
from pipeline.models.neural.training import (  # noqa: E402
    Training,
    TrainingPlan,
    TrainingSchedule,
    seeded,
)
from pipeline.models.neural.tree_rnn import ConstituencyRNN, PositionRNN, RelationRNN, TreeRNN  # noqa: E402
from pipeline.text.trees import Trees, pack  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "neural"))
from recursion import recursion  # noqa: E402  the node-by-node computation that the tests use

BATCH = 128
FEW_TREES = 16
IMAGE_DIM = 1792
WORD_DIM = 300
OBJECTIVE = Objective("ranking", "all", 0, margin=0.2, temperature=0.1, reduction="mean")


def draw_trees(draw, count: int) -> Trees:
    """Draw `count` trees of sentences with about 11 words, as captions have. `draw` is a function of a random generator
    and a number of words, which draws the nodes of one tree.
    """
    rng = np.random.default_rng(0)
    return pack([draw(rng, int(n)) for n in np.clip(rng.normal(11, 4, count).astype(int), 3, 35)])


def make_encoder(kind: type[TreeRNN], trees: Trees, dimensions: int) -> TreeRNN:
    learned = kind.learn(trees, 20) if kind is RelationRNN else kind.learn(trees)
    with seeded(0):
        return kind(torch.randn(WORDS + 1, WORD_DIM) * 0.1, dimensions, 0.0, "tanh", **learned)


def gradients(encoder: nn.Module, vectors: Tensor) -> list[Tensor]:
    return torch.autograd.grad((vectors * vectors.detach().cos()).sum(), list(encoder.parameters()))


def compare_encoder(kind: type[TreeRNN], trees: Trees, dimensions: int, pairs: int) -> dict:
    encoder = make_encoder(kind, trees, dimensions)
    batch = trees.take(np.arange(BATCH))
    few = trees.take(np.arange(FEW_TREES))
    ours = encoder(encoder.arrange(few))
    reference = recursion(encoder, few)
    apart = zip(gradients(encoder, ours), gradients(encoder, reference), strict=True)
    with torch.no_grad():
        differences = [float((a - b).abs().max() / b.abs().max().clamp(min=1)) for a, b in [(ours, reference), *apart]]
    result = compare(
        f"{kind.__name__}, {BATCH} sentences, forward and backward, over node by node",
        lambda: gradients(encoder, encoder(encoder.arrange(batch))),
        lambda: gradients(encoder, recursion(encoder, few)),
        pairs,
        runtime.threads(),
    )
    scaled = scale_reference(result, BATCH / FEW_TREES)
    return {**scaled, "dimensions": dimensions, "largest_difference": max(differences)}


def time_epoch(trees: Trees, dimensions: int) -> dict:
    """Time one epoch of `sdtrnn` on `trees`, with five trees per image and random image features. Return the wall
    seconds as `ours`, and the CPU seconds as `cpu_seconds`. `dimensions` is the size of the vectors of nodes.
    """
    encoder = make_encoder(RelationRNN, trees, dimensions)
    rng = np.random.default_rng(0)
    encoder.precision = choose_precision("auto", torch.device("cpu"))
    images = torch.from_numpy(rng.standard_normal((len(trees) // 5 + 1, IMAGE_DIM), dtype=np.float32))
    owners = np.arange(len(trees)) // 5
    schedule = TrainingSchedule(
        optimiser="adagrad", learning_rate=0.01, decay=1, weight_decay=0, penalty=0, averaging=0,
        clip=2, batch_size=BATCH, epochs=1, patience=1, seed=0,
    )  # fmt: skip
    plan = TrainingPlan(
        JointNetwork(torch.zeros(IMAGE_DIM), encoder, dimensions, 0.3),
        lambda rows: (images[owners[rows]], encoder.arrange(trees.take(rows))),
        owners, owners, OBJECTIVE, schedule, judge=lambda: 0.0,
    )  # fmt: skip
    training = Training(plan)
    wall = time.perf_counter()
    processor = time.process_time()
    training.run(lambda training: None)
    return {"ours": time.perf_counter() - wall, "cpu_seconds": time.process_time() - processor}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dimensions", type=int, default=512)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--epoch", type=int, default=30000)
    options = parse_options(parser, globals(), dimensions=16, epoch=200, BATCH=8, FEW_TREES=2)
    kinds = ((ConstituencyRNN, draw_phrases), (PositionRNN, draw_dependencies), (RelationRNN, draw_dependencies))
    for kind, draw in kinds:
        report(compare_encoder(kind, draw_trees(draw, 2000), options.dimensions, options.pairs))
    timed = time_epoch(draw_trees(draw_dependencies, options.epoch), options.dimensions)
    report({"name": "sdtrnn epoch", "sentences": options.epoch, "dimensions": options.dimensions, **timed})


if __name__ == "__main__":
    main()
