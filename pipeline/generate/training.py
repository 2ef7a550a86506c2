"""Language models' sentences between their boundaries, and training on them with the loop of the neural models."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.compute.device import move_tensors
from pipeline.compute.ragged import runs
from pipeline.generate.corpus import pad
from pipeline.generate.generator import Material
from pipeline.generate.logbilinear import LogBilinear
from pipeline.models.neural.networks import RecurrentWeights
from pipeline.models.neural.recurrence import Packed, pack
from pipeline.models.neural.training import Training, TrainingPlan, TrainingSchedule, clip_elements
from pipeline.text.sequences import Tokens

BLOCK = 512
"""Sentences whose loss is computed at once."""
Batches = Callable[[np.ndarray], tuple]
"""Sentence numbers -> the arguments of the network, which returns their mean loss."""


class Framed(NamedTuple):
    """A model's input, START w1 ... wN, and what it predicts, w1 ... wN END, packed alike."""

    inputs: Packed
    targets: Packed


def framed(tokens: Tokens, boundary: int) -> Framed:
    """The inputs and targets of `tokens`; the id `boundary` is START and END."""
    whole = pad(tokens, 1, 1, boundary)
    offsets = whole.offsets - np.arange(len(whole.offsets))
    inputs = np.delete(whole.ids, whole.offsets[1:] - 1)
    targets = np.delete(whole.ids, whole.offsets[:-1])
    return Framed(*(pack(Tokens(ids, offsets), boundary) for ids in (inputs, targets)))


class Windows(NamedTuple):
    """For each of the k words and ENDs of some sentences: the `context` (k, n - 1) of words before it, the word itself
    in `targets` (k,), its row in `sentences` (k,), and its and the next parts of speech, `tags` (k, 1 + ahead)."""

    context: Tensor
    targets: Tensor
    sentences: Tensor
    tags: Tensor | None


def windows(tokens: Tokens, boundary: int, size: int, tags: Tokens | None, no_tag: int, ahead: int) -> Windows:
    """The windows of `tokens`, with `size` words of context. `tags` has every word's part of speech; that of END and
    beyond is `no_tag`."""
    lengths = tokens.lengths + 1

    def cut(padded: Tokens, width: int) -> Tensor:
        starts = runs(padded.offsets[:-1], lengths)
        return torch.from_numpy(padded.ids[starts[:, None] + np.arange(width)].astype(np.int64))

    words = cut(pad(tokens, size, 1, boundary), size + 1)
    kinds = None if tags is None else cut(pad(tags, 0, 1 + ahead, no_tag), 1 + ahead)
    sentences = torch.from_numpy(np.repeat(np.arange(len(tokens)), lengths))
    return Windows(words[:, :-1], words[:, -1], sentences, kinds)


def log_frequencies(tokens: Tokens, count: int) -> np.ndarray:
    """(count,) float32: log of the share of each id, and of END as the last, in the targets of `tokens`.

    An id that does not occur counts as half an occurrence.
    """
    counts = np.bincount(tokens.ids, minlength=count).astype(float)
    counts[count - 1] = len(tokens)
    counts = np.maximum(counts, 0.5)
    return np.log(counts / counts.sum()).astype(np.float32)


class Likelihood:
    """The objective of a module that computes its own loss."""

    drawn = 0

    def __call__(self, loss: Tensor, owners: Tensor) -> Tensor:
        return loss


def train(
    network: LogBilinear | RecurrentWeights,
    batch: Batches,
    names: np.ndarray,
    perplexity: Callable[[], float],
    material: Material,
) -> Mapping[str, Any]:
    """Minimise the loss of `network` on the sentences `names` (m,) until `perplexity()` on dev no longer falls.

    Leaves the best epoch's parameters in the network, and returns the log. Raises like `Training.run`.
    """
    settings = material.settings
    clip_elements(network, settings.clip)
    schedule = settings.model_dump(include={field.name for field in fields(TrainingSchedule)})
    # The elements of the gradient are clipped, not its norm.
    schedule |= {"clip": float("inf"), "penalty": 0, "seed": material.seed}
    rows = np.arange(len(names))
    network.precision = material.precision
    plan = TrainingPlan(
        network, batch, rows, names, Likelihood(), TrainingSchedule(**schedule), lambda: -perplexity(),
        precision=material.precision,
    )  # fmt: skip
    training = Training(plan)
    if material.checkpoint:
        training.resume(material.checkpoint)
    history = [{**entry, "dev": -entry["dev"]} for entry in training.run(material.after_step)]
    network.precision = torch.float32
    best = training.progress.best_epoch
    return {
        "criterion": "perplexity on dev",
        "sentences": len(names),
        "best_epoch": best,
        "chosen": {"perplexity": history[best]["dev"]},
        "history": history,
    }


def perplexity_of(network: nn.Module, batch: Batches, tokens: Tokens) -> float:
    """exp of the mean -log P of the sentences `tokens`, over words and ENDs; at most e ** 700."""
    device = next(network.parameters()).device
    losses, words = [], []
    with torch.inference_mode():
        for rows in _blocks(tokens):
            losses.append(network(*move_tensors(batch(rows), device)).item())
            words.append((tokens.lengths[rows] + 1).sum())
    return float(np.exp(min(np.average(losses, weights=words), 700)))


def log_probabilities(
    tokens: Tokens, count: int, open_block: Callable[[np.ndarray], tuple[Tensor, Callable[[int], Tensor]]]
) -> np.ndarray:
    """(count, m) float32 log P of each of the sentences `tokens`, END included, given each of `count` images.

    `open_block(rows)` returns the owner (total,) of each word and END of some sentences, from 0, and the function from
    an image's number to their -log P (total,)."""
    found = np.empty((count, len(tokens)), np.float32)
    with torch.inference_mode():
        for rows in _blocks(tokens):
            owners, losses_given = open_block(rows)
            for image in range(count):
                losses = losses_given(image)
                found[image, rows] = -losses.new_zeros(len(rows)).index_add_(0, owners, losses).cpu().numpy()
    return found


def _blocks(tokens: Tokens) -> list[np.ndarray]:
    return [np.arange(start, min(start + BLOCK, len(tokens))) for start in range(0, len(tokens), BLOCK)]


def likelihood_scores(log_probabilities: np.ndarray, lengths: np.ndarray, prior: np.ndarray | None) -> np.ndarray:
    """(n, m) float64 scores of n images by m sentences from log P of each sentence given each image (n, m): retrieval
    by a generator, as Kiros et al. 2014, section 3.1, have it of the m-RNN.

    `lengths` (m,) count a sentence's words and its END. Without a `prior`, the score is minus the logarithm of the
    sentence's perplexity. With `prior` (k, m), log P given k training images, the logarithm of its mean probability
    over these is subtracted first, so that a common sentence does not describe every image. Which image is best for a
    sentence does not depend on it.
    """
    scores = log_probabilities.astype(np.float64)
    if prior is not None:
        scores -= np.logaddexp.reduce(prior.astype(np.float64), axis=0) - np.log(len(prior))
    return scores / lengths
