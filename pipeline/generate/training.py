"""Training a language model with the loop of the neural models: likelihood, clipped gradients, perplexity on dev."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.device import place
from pipeline.generate.material import Material
from pipeline.models.neural.schedules import TrainingSchedule
from pipeline.models.neural.training import Training
from pipeline.text.sequences import Tokens

BLOCK = 512
"""Sentences whose loss is computed at once."""
Batches = Callable[[np.ndarray], Sequence[Any]]
"""Sentence numbers -> the arguments of the network, which returns their mean loss."""


class Likelihood:
    """The objective of a module that computes its own loss."""

    drawn = 0

    def __call__(self, loss: Tensor, owners: Tensor) -> Tensor:
        return loss


def train(
    network: nn.Module, batch: Batches, names: np.ndarray, perplexity: Callable[[], float], material: Material
) -> Mapping[str, Any]:
    """Minimise the loss of `network` on the sentences `names` (m,) until `perplexity()` on dev no longer falls.

    Leaves the best epoch's parameters in the network, and returns the log. Raises like `Training.run`.
    """
    settings = material.settings
    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda gradient: gradient.clamp(-settings.clip, settings.clip))
    kept = settings.model_dump(include={one.name for one in fields(TrainingSchedule)})
    # The elements of the gradient are clipped, not its norm.
    kept |= {"clip": float("inf"), "penalty": 0, "seed": material.seed, "resampled": "batch"}
    network.precision = material.precision
    training = Training(
        network, batch, np.arange(len(names)), names, Likelihood(), TrainingSchedule(**kept), lambda: -perplexity()
    )
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


def sums_of(values: Tensor, owners: Tensor, count: int) -> np.ndarray:
    """(count,) the sum of the `values` (k,) of each of the `owners` (k,)."""
    return values.new_zeros(count).index_add_(0, owners, values).cpu().numpy()


def perplexity_of(network: nn.Module, batch: Batches, tokens: Tokens) -> float:
    """exp of the mean -log P of the sentences `tokens`, over words and ENDs; at most e ** 700."""
    losses, words, device = [], [], next(network.parameters()).device
    with torch.inference_mode():
        for start in range(0, len(tokens), BLOCK):
            rows = np.arange(start, min(start + BLOCK, len(tokens)))
            losses.append(network(*place(batch(rows), device)).item())
            words.append((tokens.lengths[rows] + 1).sum())
    return float(np.exp(min(np.average(losses, weights=words), 700)))
