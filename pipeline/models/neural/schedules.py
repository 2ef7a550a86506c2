"""How long and how fast a network is trained."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainingSchedule:
    """How long and how fast. The learning rate falls by the factor `decay` every epoch, step by step.

    Every `adagrad_reset` epochs AdaGrad's sums of squared gradients are set back to 1, their initial value (Socher et
    al. 2014, section 5). `weight_decay`, decoupled from the gradient, pulls every parameter towards its anchor in
    `Training`. `clip` is the largest norm of the whole gradient. What is judged and kept are running averages of the
    parameters; every step replaces the share 1 - `averaging` of them. Training ends after `epochs`, or after `patience`
    epochs without a better dev score; with a patience of 0 nothing is judged and the last epoch is kept.
    """

    optimiser: str
    adagrad_reset: int
    learning_rate: float
    decay: float
    weight_decay: float
    averaging: float
    clip: float
    batch_size: int
    epochs: int
    patience: int
    seed: int
