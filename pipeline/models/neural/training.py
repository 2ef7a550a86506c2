"""The training loop: minibatches of pairs, early stopping on dev, and checkpoints that resume exactly."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.compute.device import Arriving, drawn_from, full_float32, move_tensors, upload
from pipeline.errors import IntegrityError, JointspaceError
from pipeline.models.joint_model import JointModel

MOMENTUM = 0.9
"""Momentum coefficient of the optimiser `momentum` (Karpathy and Fei-Fei 2015, section 3.3)."""
ADAGRAD_RESET = 5
"""Number of epochs after which the sums of the optimiser `adagrad` begin again (Socher et al. 2014, section 5)."""

Output = TypeVar("Output", contravariant=True)


@dataclass(frozen=True)
class TrainingSchedule:
    """The duration and the speed of a training.

    The learning rate falls by the factor `decay` every epoch, step by step. Every ADAGRAD_RESET epochs AdaGrad's sums
    of squared gradients are set back to 1, their initial value (Socher et al. 2014, section 5). `weight_decay`,
    decoupled from the gradient, pulls every parameter towards its anchor. `penalty` weighs the regulariser, a part of
    the loss. `clip` is the largest norm of the whole gradient. Running averages of the parameters are judged and kept;
    every step replaces the share 1 - `averaging` of them. Training ends after `epochs`, or after `patience` epochs
    without a better dev score; with a patience of 0 nothing is judged and the last epoch is kept.
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
    seed: int

    def make_optimiser(self, parameters: Iterable[torch.Tensor], device: torch.device) -> torch.optim.Optimizer:
        """Make the optimiser of `parameters` on `device`, at the first learning rate."""
        on_cpu = device.type == "cpu"
        # Fused: one pass over the parameters. If it is None, torch decides.
        make = {
            "adam": partial(torch.optim.Adam, fused=on_cpu or device.type == "cuda" or None),
            "sgd": torch.optim.SGD,
            "momentum": partial(torch.optim.SGD, momentum=MOMENTUM),
            "rmsprop": torch.optim.RMSprop,
            "adagrad": partial(torch.optim.Adagrad, initial_accumulator_value=1, fused=on_cpu or None),
        }[self.optimiser]
        return make(parameters, lr=self.learning_rate)


CPU = torch.device("cpu")


@dataclass
class Progress:
    """The state of a training: `step` batches of `epoch` are done, with the sum of their `losses`. `history` has an
    entry for every finished epoch."""

    epoch: int = 0
    step: int = 0
    losses: float = 0.0
    best_epoch: int = -1
    history: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Checkpoint:
    """The state from which a training resumes: `tensors` by name, and `progress` in JSON's types."""

    tensors: Mapping[str, np.ndarray]
    progress: Mapping[str, Any]


@contextmanager
def seeded(*parts: int, device: torch.device = CPU) -> Iterator[None]:
    """Make torch's random numbers inside, also on `device`, depend on `parts` alone; outside, nothing changes."""
    with drawn_from(int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0]), device):
        yield


def clip_elements(network: nn.Module, limit: float) -> None:
    """Clip each entry of the gradient of the trained parameters to [-limit, limit]."""
    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda gradient: gradient.clamp(-limit, limit))


class UnreadLoss(NamedTuple):
    """The loss and the gradient's norm, `values` (2,), of the batch `rows` of a step, on their way from a GPU."""

    epoch: int
    step: int
    rows: np.ndarray
    values: Arriving


class LossFunction(Protocol[Output]):
    """A loss of a module's output for a batch. The last `drawn` pairs of a batch are contrastive pairs."""

    @property
    def drawn(self) -> int: ...

    def __call__(self, output: Output, owners: Tensor, /) -> Tensor:
        """Compute the loss, a scalar; `owners` (n,) are the images of the batch's pairs."""
        ...


class TrainedModel(JointModel, Protocol):
    """A model that training makes; dev chooses its epoch `by_mean_rank`, or else by the recall sum."""

    @property
    def by_mean_rank(self) -> bool: ...


@dataclass(frozen=True)
class TrainingPlan:
    """A module and everything that its training needs.

    The `objective` is minimised on the output of `module` for a batch, whose pairs are on the diagonal of the (n, n)
    scores. Weight decay pulls parameters towards `anchors`, by name, or towards zero. The schedule's penalty weighs the
    module's `regulariser()`, or the sum of all squares.
    """

    module: nn.Module
    draw: Callable[[np.ndarray], tuple]
    """Function that makes the module's arguments from the pairs `rows` (n,)."""
    owners: np.ndarray
    """(m,) the image of each pair."""
    pair_ids: np.ndarray
    """(m,) the name of each pair in errors."""
    objective: LossFunction
    schedule: TrainingSchedule
    judge: Callable[[], float]
    """Function that computes the score on dev; higher is better."""
    anchors: Mapping[str, Tensor] = field(default_factory=dict)
    groups: Sequence[Collection[str]] = ()
    """Sets of names of parameters, which learn one after another, each for its share of the epochs."""
    extra_state: Mapping[str, Tensor] = field(default_factory=dict)
    """Tensors by name that the module or `before_epoch` changes in place; they are kept with the parameters."""
    before_epoch: Callable[[int], None] = lambda epoch: None
    precision: torch.dtype = torch.float32
    """The dtype of the module's heaviest products."""
    finish: Callable[[], TrainedModel] | None = None
    """Function that makes the model of the module's parameters; None if the module is the model."""


class Training:
    """The training of a plan. Random numbers follow from the seed and the number of the batch, so that a checkpoint
    does not store their state."""

    def __init__(self, plan: TrainingPlan) -> None:
        self.plan = plan
        self.module = plan.module
        self.schedule = plan.schedule
        self.draw = plan.draw
        self.judge = plan.judge
        self.extra_state = plan.extra_state
        self.progress = Progress()
        self.trained = {name: p for name, p in plan.module.named_parameters() if p.requires_grad}
        self.state: dict[str, Tensor] = {**self.trained, **plan.extra_state}
        self.device = next(iter(self.trained.values())).device
        self.average = {name: parameter.detach().clone() for name, parameter in self.trained.items()}
        self.best = {name: tensor.detach().clone() for name, tensor in self.state.items()}
        self.optimiser = plan.schedule.make_optimiser(self.trained.values(), self.device)
        self._ahead: tuple[np.ndarray, tuple] | None = None
        self._unread: UnreadLoss | None = None

    def finish(self) -> TrainedModel:
        """Make the model of the parameters that the module has now."""
        assert self.plan.finish is not None
        return self.plan.finish()

    @property
    def steps(self) -> int:
        """The number of batches in an epoch."""
        return math.ceil(len(self.plan.owners) / self.schedule.batch_size)

    @property
    def steps_done(self) -> int:
        return self.progress.epoch * self.steps + self.progress.step

    @property
    def learning(self) -> Collection[str]:
        """The parameters that this epoch changes."""
        groups = self.plan.groups or [self.trained.keys()]
        return groups[self.progress.epoch * len(groups) // self.schedule.epochs]

    @property
    def finished(self) -> bool:
        state, schedule = self.progress, self.schedule
        # Patience begins when the last group learns, because the other groups may reach their best at once.
        begun = schedule.epochs - schedule.epochs // max(1, len(self.plan.groups))
        stale = schedule.patience and state.epoch >= max(state.best_epoch + 1, begun) + schedule.patience
        return state.epoch >= schedule.epochs or bool(stale)

    def run(self, after_step: Callable[["Training"], None]) -> list[dict[str, float]]:
        """Train to the end, calling `after_step` after every batch; leaves the best epoch's parameters in the module.

        Returns the history: epoch, loss, learning rate, and the dev score where epochs are judged. Raises
        JointspaceError naming a batch whose loss or gradient is not finite, before a checkpoint can hold what follows
        from it; on the processor, before it changes a parameter.
        """
        with full_float32() if self.plan.precision == torch.float32 else nullcontext():
            while not self.finished:
                if self.progress.step == 0:
                    self._reset_adagrad()
                    self.plan.before_epoch(self.progress.epoch)
                batches = self._batches()
                self.module.train()
                while (step := self.progress.step) < len(batches):
                    self._step(batches[step], *batches[step + 1 : step + 2])
                    after_step(self)
                self._finish_epoch()
        self._put(self.best)
        self.module.eval()
        return self.progress.history

    def _reset_adagrad(self) -> None:
        if self.schedule.optimiser == "adagrad" and self.progress.epoch % ADAGRAD_RESET == 0:
            for state in self.optimiser.state.values():
                state["sum"].fill_(1)

    def _batches(self) -> list[np.ndarray]:
        """Draw the batches of the epoch, each followed by the contrastive pairs that the objective needs."""
        rng = np.random.default_rng([self.schedule.seed, self.progress.epoch])
        m = len(self.plan.owners)
        batches = np.array_split(rng.permutation(m), self.steps)
        contrasts = rng.choice(m, (self.steps, self.plan.objective.drawn))
        return [np.concatenate(pairs) for pairs in zip(batches, contrasts, strict=True)]

    def _step(self, rows: np.ndarray, following: np.ndarray | None = None) -> None:
        """Learn from the pairs `rows`; while a GPU computes, draw the pairs of the next step."""
        state, schedule = self.progress, self.schedule
        ahead, self._ahead = self._ahead, None
        arguments = ahead[1] if ahead and ahead[0] is rows else None
        rate = schedule.learning_rate * schedule.decay ** (state.epoch + state.step / self.steps)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.zero_grad(set_to_none=True)
        with seeded(schedule.seed, state.epoch, state.step, device=self.device):
            arguments = arguments or move_tensors(self.draw(rows), self.device)
            owners = upload(self.plan.owners[rows], self.device)
            loss = self.plan.objective(self.module(*arguments), owners) + self._penalty()
        loss.backward()
        for name in self.trained.keys() - self.learning:
            self.trained[name].grad = None
        norm = nn.utils.clip_grad_norm_(self.trained.values(), schedule.clip)
        self._read_loss()  # of the step before, while a GPU computes this one
        self._unread = UnreadLoss(state.epoch, state.step, rows, Arriving(torch.stack([loss.detach(), norm])))
        if self.device.type == "cpu":
            self._read_loss()
        self.optimiser.step()
        self._decay_and_average(rate * schedule.weight_decay)
        self._draw_ahead(following)
        state.step += 1

    def _penalty(self) -> Tensor | float:
        squares = (p.square().sum() for p in self.trained.values())
        weight, regulariser = self.schedule.penalty, getattr(self.module, "regulariser", lambda: sum(squares))
        return weight * regulariser() if weight else 0.0

    def _draw_ahead(self, rows: np.ndarray | None) -> None:
        """Draw the arguments for `rows` of the next step if training runs on a GPU. The module draws from the GPU's
        random numbers, so this does not change them. On the CPU there is nothing to wait for."""
        if rows is not None and self.device.type != "cpu":
            with seeded(self.schedule.seed, self.progress.epoch, self.progress.step + 1):
                self._ahead = rows, move_tensors(self.draw(rows), self.device)

    def _read_loss(self) -> None:
        """Add the unread loss to the progress. Raises as `run`."""
        step, self._unread = self._unread, None
        if step is None:
            return
        loss, gradient = step.values.numpy().tolist()
        for quantity, value in (("loss", loss), ("gradient", gradient)):
            if not math.isfinite(value):
                ids = ", ".join(map(str, self.plan.pair_ids[step.rows][:5]))
                raise JointspaceError(
                    f"the {quantity} is {value} in epoch {step.epoch}, batch {step.step} (sentences {ids}, ...);"
                    " lower the learning rate or check these sentences' features; the last checkpoint is kept"
                )
        self.progress.losses += loss

    @torch.no_grad()
    def _decay_and_average(self, share: float) -> None:
        for name in self.learning if share else ():
            parameter, anchor = self.trained[name], self.plan.anchors.get(name)
            parameter.mul_(1 - share) if anchor is None else parameter.lerp_(anchor, share)
        averages = list(self.average.values())
        trained: list[Tensor] = [*self.trained.values()]
        lerp_all = torch._foreach_lerp_  # pyright: ignore[reportPrivateImportUsage]  # it has no public name
        lerp_all(averages, trained, 1 - self.schedule.averaging)

    def _finish_epoch(self) -> None:
        self._read_loss()
        state = self.progress
        rate = self.schedule.learning_rate * self.schedule.decay**state.epoch
        entry = {"epoch": state.epoch, "loss": state.losses / self.steps, "learning_rate": rate}
        if self.schedule.patience:
            entry["dev"] = self._judge_average()
        if not self.schedule.patience or state.best_epoch < 0 or entry["dev"] > state.history[state.best_epoch]["dev"]:
            state.best_epoch = state.epoch
            self.best = {name: tensor.clone() for name, tensor in {**self.average, **self.extra_state}.items()}
        state.history.append(entry)
        state.epoch, state.step, state.losses = state.epoch + 1, 0, 0.0

    def _judge_average(self) -> float:
        """Compute the dev score of the averages, and leave the parameters as they are."""
        self.module.eval()
        now = {name: p.detach().clone() for name, p in self.trained.items()}
        self._put(self.average)
        with torch.inference_mode():
            score = self.judge()
        self._put(now)
        return score

    @torch.no_grad()
    def _put(self, values: Mapping[str, Tensor]) -> None:
        for name, tensor in values.items():
            self.state[name].copy_(tensor)

    def checkpoint(self) -> Checkpoint:
        """Return the state of the training. Raises as `run`."""
        self._read_loss()
        groups = {"now": self.state, "average": self.average, "best": self.best}
        tensors = {f"{group}/{name}": t.detach() for group, named in groups.items() for name, t in named.items()}
        moments = self.optimiser.state_dict()["state"]
        tensors |= {f"moment/{i}/{key}": value for i, state in moments.items() for key, value in state.items()}
        return Checkpoint({name: t.cpu().numpy().copy() for name, t in tensors.items()}, asdict(self.progress))

    def resume(self, checkpoint: Checkpoint) -> None:
        """Resume from `checkpoint`, from any device. Raises IntegrityError if it is of another model."""
        groups: dict[str, dict[str, Tensor]] = {"now": {}, "average": {}, "best": {}, "moment": {}}
        for path, array in checkpoint.tensors.items():
            group, _, name = path.partition("/")
            groups[group][name] = torch.from_numpy(array.copy())
        if {n: t.shape for n, t in groups["now"].items()} != {n: t.shape for n, t in self.state.items()}:
            raise IntegrityError("the checkpoint is of another model; remove it and train from the beginning")
        self._put(groups["now"])
        for ours, kept in ((self.average, groups["average"]), (self.best, groups["best"])):
            ours.update({name: tensor.to(ours[name].device) for name, tensor in kept.items()})
        moments: dict[int, dict[str, Tensor]] = {}
        for path, tensor in groups["moment"].items():
            index, _, key = path.partition("/")
            moments.setdefault(int(index), {})[key] = tensor
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": moments})
        self.progress = Progress(**checkpoint.progress)
