"""Training a language model by the loop of the neural models: likelihood, clipped gradients, perplexity on dev."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from torch import Tensor, nn

from pipeline.models.neural.training import Checkpoint, Training, TrainingSchedule
from pipeline.settings.generators import OptimisationSettings


class Likelihood:
    """The objective of a module that computes its own loss."""

    drawn = 0

    def __call__(self, loss: Tensor, owners: Tensor) -> Tensor:
        return loss


def train(
    module: nn.Module,
    draw: Callable[[np.ndarray], Sequence[Any]],
    names: np.ndarray,
    perplexity: Callable[[], float],
    optimisation: OptimisationSettings,
    seed: int,
    checkpoint: Checkpoint | None,
    after_step: Callable[[Training], None],
) -> Mapping[str, Any]:
    """Minimise what `module` makes of `draw(rows)`, the sentences `rows` of those called `names` (m,), until
    `perplexity()` on dev no longer falls; leaves the best epoch's parameters in the module, and returns the log.

    Raises as `Training.run` does.
    """
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda gradient: gradient.clamp(-optimisation.clip, optimisation.clip))
    training = Training(
        module, draw, np.arange(len(names)), names, Likelihood(), _schedule(optimisation, seed), lambda: -perplexity()
    )
    if checkpoint:
        training.resume(checkpoint)
    history = [{**entry, "dev": -entry["dev"]} for entry in training.run(after_step)]
    best = training.progress.best_epoch
    return {
        "criterion": "perplexity on dev",
        "sentences": len(names),
        "best_epoch": best,
        "chosen": {"perplexity": history[best]["dev"]},
        "history": history,
    }


def _schedule(optimisation: OptimisationSettings, seed: int) -> TrainingSchedule:
    """Without a limit to the whole gradient: its elements are clipped."""
    kept = optimisation.model_dump(include={one.name for one in fields(TrainingSchedule)})
    return TrainingSchedule(**kept | {"clip": float("inf"), "seed": seed, "adagrad_reset": optimisation.epochs})


def perplexity_of(losses: Sequence[float], words: Sequence[int]) -> float:
    """exp of the mean -log P over all words and ENDs, from block means and their word counts; at most e ** 700."""
    return float(np.exp(min(np.average(losses, weights=words), 700)))
