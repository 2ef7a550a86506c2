"""How long and how fast a network is trained."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch

MOMENTUM = 0.9
"""Of the optimiser `momentum` (Karpathy and Fei-Fei 2015, section 3.3)."""
ADAGRAD_RESET = 5
"""Epochs after which the sums of the optimiser `adagrad` begin again (Socher et al. 2014, section 5)."""


@dataclass(frozen=True)
class TrainingSchedule:
    """How long and how fast. The learning rate falls by the factor `decay` every epoch, step by step.

    Every ADAGRAD_RESET epochs AdaGrad's sums of squared gradients are set back to 1, their initial value (Socher et
    al. 2014, section 5). `weight_decay`, decoupled from the gradient, pulls every parameter towards its anchor in
    `Training`; `penalty` weighs what `Training` calls its regulariser, a part of the loss. `clip` is the largest norm
    of the whole gradient. What is judged and kept are running averages of the parameters; every step replaces the share
    1 - `averaging` of them. Training ends after `epochs`, or after `patience` epochs without a better dev score; with a
    patience of 0 nothing is judged and the last epoch is kept. `resampled` says when contrastive pairs that are drawn
    from the training set are drawn anew: every `batch`, or every `epoch`, so that all its batches have the same ones
    (Kiros et al. 2014, section 2.2).
    """

    optimiser: str
    learning_rate: float
    decay: float
    weight_decay: float
    penalty: float
    averaging: float
    clip: float
    batch_size: int
    epochs: int
    patience: int
    resampled: str
    seed: int

    def make_optimiser(self, parameters: Iterable[torch.Tensor], device: torch.device) -> torch.optim.Optimizer:
        """The optimiser of `parameters` on `device`, at the first learning rate."""
        fused = device.type == "cpu" or None  # one pass over the parameters; elsewhere torch decides
        make = {
            "adam": partial(torch.optim.Adam, fused=fused),
            "sgd": torch.optim.SGD,
            "momentum": partial(torch.optim.SGD, momentum=MOMENTUM),
            "rmsprop": torch.optim.RMSprop,
            "adagrad": partial(torch.optim.Adagrad, initial_accumulator_value=1, fused=fused),
        }[self.optimiser]
        return make(parameters, lr=self.learning_rate)
