"""Training and evaluation of language models: inputs and targets, the training loop, perplexity, and probabilities."""

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
from pipeline.text.vocabulary import Tokens

LOSS_BLOCK = 512
"""Maximum number of sentences whose loss is computed at once in an evaluation, after or between epochs of training."""
Batches = Callable[[np.ndarray], tuple]
"""A function from the row numbers of k sentences (k,) to the arguments with which the network computes the mean loss of
the words and ENDs of these sentences."""


class Framed(NamedTuple):
    """Packed sentences, in which each input word has the next word as its target: `inputs` are START w1 ... wN, and
    `targets`, in the same order, are w1 ... wN END."""

    inputs: Packed
    targets: Packed


def framed(tokens: Tokens, boundary: int) -> Framed:
    """Create the inputs and targets of the sentences `tokens`, which are ids of words. The id `boundary` is both START
    and END."""
    whole = pad(tokens, 1, 1, boundary)
    offsets = whole.offsets - np.arange(len(whole.offsets))
    inputs = np.delete(whole.ids, whole.offsets[1:] - 1)
    targets = np.delete(whole.ids, whole.offsets[:-1])
    return Framed(*(pack(Tokens(ids, offsets), boundary) for ids in (inputs, targets)))


class Windows(NamedTuple):
    """The windows of k targets, which are all words and ENDs of some sentences. `context` (k, n - 1) has the ids of the
    n - 1 words before each of the `targets` (k,), where the boundary stands before the first word. `sentences` (k,) has
    the number of the sentence of each target. `tags` (k, 1 + ahead) has the parts of speech of the target and of the
    `ahead` words after it, or is None if parts of speech are not used."""

    context: Tensor
    targets: Tensor
    sentences: Tensor
    tags: Tensor | None


def windows(tokens: Tokens, boundary: int, size: int, tags: Tokens | None, no_tag: int, ahead: int) -> Windows:
    """Create the windows of the sentences `tokens`, with `size` words of context, sentence after sentence. The id
    `boundary` is START and END. `tags` has the part of speech of every word of `tokens`, or is None. END and the
    positions after it have the part of speech `no_tag`. `ahead` is the number of further parts of speech after the part
    of speech of each target."""
    lengths = tokens.lengths + 1

    def cut(padded: Tokens, width: int) -> Tensor:
        starts = runs(padded.offsets[:-1], lengths)
        return torch.from_numpy(padded.ids[starts[:, None] + np.arange(width)].astype(np.int64))

    words = cut(pad(tokens, size, 1, boundary), size + 1)
    kinds = None if tags is None else cut(pad(tags, 0, 1 + ahead, no_tag), 1 + ahead)
    sentences = torch.from_numpy(np.repeat(np.arange(len(tokens)), lengths))
    return Windows(words[:, :-1], words[:, -1], sentences, kinds)


def log_frequencies(tokens: Tokens, count: int) -> np.ndarray:
    """Compute the natural logarithm of the relative frequency of each id from 0 to `count` - 1 among the words and ENDs
    of the sentences `tokens`. Return (count,) float32. The last id, `count` - 1, is END, which occurs once per
    sentence. An id that does not occur counts as half an occurrence, so that its logarithm is finite."""
    counts = np.bincount(tokens.ids, minlength=count).astype(float)
    counts[count - 1] = len(tokens)
    counts = np.maximum(counts, 0.5)
    return np.log(counts / counts.sum()).astype(np.float32)


class Likelihood:
    """The objective (see TrainingPlan) of a language model. The network itself returns its loss, and the objective
    passes it on unchanged. The objective needs no contrastive pairs, so `drawn` is 0 and `owners` is not used."""

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
    """Train `network` on m sentences, in place. At the end, the network has the parameters of the epoch with the lowest
    perplexity on dev.

    `batch` makes the arguments of the network from the row numbers of sentences. `names` (m,) are the numbers of the
    sentences in error messages, and `perplexity()` computes the perplexity on dev with the current parameters.
    `material` has the settings, and the checkpoint from which to resume. Returns the log of the training as JSON
    values. Raises JointspaceError if a loss or gradient is not finite.
    """
    settings = material.settings
    clip_elements(network, settings.clip)
    schedule = settings.model_dump(include={field.name for field in fields(TrainingSchedule)})
    # `clip_elements` has limited each element of the gradient, so the schedule need not limit the norm of the gradient.
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
    """Compute the perplexity of the sentences `tokens` over all their words and ENDs: the exponential of the mean of
    -log P, at most e ** 700. `batch` makes the arguments of `network` from row numbers of sentences. `network` is not
    changed."""
    device = next(network.parameters()).device
    losses = []
    words = []
    with torch.inference_mode():
        for rows in _blocks(tokens):
            losses.append(network(*move_tensors(batch(rows), device)).item())
            words.append((tokens.lengths[rows] + 1).sum())
    return float(np.exp(min(np.average(losses, weights=words), 700)))


def log_probabilities(
    tokens: Tokens, count: int, open_block: Callable[[np.ndarray], tuple[Tensor, Callable[[int], Tensor]]]
) -> np.ndarray:
    """Compute the natural logarithm of the probability of each of the m sentences `tokens`, END included, given each of
    `count` images. Return (count, m) float32.

    `open_block(rows)` is called for blocks of sentences. `rows` (k,) are the row numbers of the sentences of a block,
    which together have `total` words and ENDs. The function returns a tensor (total,) and another function. The tensor
    says to which sentence each word or END belongs, as a position in `rows`. The other function gets the number of an
    image, and returns -log P of each word and END, (total,), in the same order.
    """
    found = np.empty((count, len(tokens)), np.float32)
    with torch.inference_mode():
        for rows in _blocks(tokens):
            owners, losses_given = open_block(rows)
            for image in range(count):
                losses = losses_given(image)
                found[image, rows] = -losses.new_zeros(len(rows)).index_add_(0, owners, losses).cpu().numpy()
    return found


def _blocks(tokens: Tokens) -> list[np.ndarray]:
    return [np.arange(start, min(start + LOSS_BLOCK, len(tokens))) for start in range(0, len(tokens), LOSS_BLOCK)]


def likelihood_scores(log_probabilities: np.ndarray, lengths: np.ndarray, prior: np.ndarray | None) -> np.ndarray:
    """Score m sentences for n images, (n, m) float64, for retrieval by perplexity as with the m-RNN in Kiros et al.
    2014, section 3.1. A higher score is better.

    `log_probabilities` (n, m) are the natural log probabilities of the sentences by a generator. They are not changed.
    `lengths` (m,) are the numbers of words of the sentences, including END. If `prior` is None, the score is the log
    probability divided by the length. This is the negative logarithm of the perplexity.

    `prior` (k, m) is the log probability of each sentence given k training images. If it is given, the mean probability
    of the sentence over the k images is computed, and the logarithm of this mean is subtracted from the log probability
    before the division by the length. A common sentence then does not score high for every image. The prior does not
    change the order of the images for a sentence.
    """
    scores = log_probabilities.astype(np.float64)
    if prior is not None:
        scores -= np.logaddexp.reduce(prior.astype(np.float64), axis=0) - np.log(len(prior))
    return scores / lengths
