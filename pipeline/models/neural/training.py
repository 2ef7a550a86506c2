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
"""Number of epochs after which the sums of the optimiser `adagrad` are reset (Socher et al. 2014, section 5)."""

Output = TypeVar("Output", contravariant=True)


@dataclass(frozen=True)
class TrainingSchedule:
    """The settings that control the optimiser and the end of a training.

    - `optimiser` is adam, sgd, momentum, rmsprop or adagrad. AdaGrad's sums of squared gradients are reset to 1, their
      initial value, every ADAGRAD_RESET epochs (Socher et al. 2014, section 5).
    - `learning_rate` is multiplied by `decay` per epoch, gradually over the steps of an epoch.
    - `weight_decay`, times the learning rate, is the share by which each step moves a trained parameter towards its
      anchor (see TrainingPlan), independently of the gradient.
    - `penalty` is the weight of the regulariser in the loss (see TrainingPlan).
    - `clip` is the largest allowed norm of the gradient of all parameters together. A longer gradient is scaled down to
      this norm.
    - `averaging` is the weight of the former value in the running average of a parameter: after each step, the average
      is `averaging` times its former value, plus 1 - `averaging` times the parameter. The averages are scored on dev
      and kept, not the parameters themselves.
    - `batch_size` is the number of pairs in a batch.
    - Training ends after `epochs` epochs, or after `patience` epochs without a better dev score. If the plan has
      groups, patience counts from the first epoch of the last group. With a patience of 0, nothing is scored, and the
      averages after the last epoch are kept.
    - `seed` decides all random numbers.
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
        """Return the optimiser of `parameters`, which are on `device`, with the initial learning rate."""
        on_cpu = device.type == "cpu"
        # A fused optimiser updates all parameters in one pass. If `fused` is None, torch decides whether to do so.
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
    """The state of a training.

    `step` batches of the current `epoch` are finished, and the sum of their losses is `losses`. `history` has an entry
    for each finished epoch. `best_epoch` is the epoch with the best dev score, or the last finished epoch if none is
    scored. `best_epoch` is -1 before the first epoch is finished.
    """

    epoch: int = 0
    step: int = 0
    losses: float = 0.0
    best_epoch: int = -1
    history: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Checkpoint:
    """The state from which a training resumes: `tensors` by name, and the `progress` as JSON values. The names of
    tensors begin with `now/`, `average/`, `best/` or, for the optimiser, `moment/`."""

    tensors: Mapping[str, np.ndarray]
    progress: Mapping[str, Any]


@contextmanager
def seeded(*numbers: int, device: torch.device = CPU) -> Iterator[None]:
    """Seed torch's generators of random numbers on the CPU and on `device` within the block. `numbers` are whole
    numbers that together are the seed.

    After the block, the generators continue from the state that they had before it.
    """
    with drawn_from(int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]), device):
        yield


def clip_elements(network: nn.Module, limit: float) -> None:
    """Make `network` clip each entry of the gradients of its trained parameters to [-limit, limit] from now on."""
    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda gradient: gradient.clamp(-limit, limit))


class UnreadLoss(NamedTuple):
    """The result of a training step on the pairs `rows` that has not been checked yet. `values` (2,) are the loss and
    the norm of the gradient, in this order. The copy of these values from a GPU may not be finished."""

    epoch: int
    step: int
    rows: np.ndarray
    values: Arriving


class LossFunction(Protocol[Output]):
    """A loss that is computed from the output of a module for a batch.

    The last `drawn` pairs of a batch are contrastive pairs, which were drawn for this loss.
    """

    @property
    def drawn(self) -> int: ...

    def __call__(self, output: Output, owners: Tensor, /) -> Tensor:
        """Compute the loss, a scalar, from the `output` of the module for a batch. `owners` (n,) are the images of the
        batch's pairs."""
        ...


class TrainedModel(JointModel, Protocol):
    """A model that the training loop can train.

    The epoch that is kept has the least mean rank on dev if `by_mean_rank` is true, and otherwise the greatest sum of
    recalls.
    """

    @property
    def by_mean_rank(self) -> bool: ...


@dataclass(frozen=True)
class TrainingPlan:
    """The module to train, its loss, and the functions that provide batches and scores.

    Training minimises the `objective` of the output of `module` for a batch. If the output is scores (n, n), the pairs
    are on the diagonal. The schedule's penalty is the weight of the module's method `regulariser()` in the loss, or of
    the sum of all squared parameters if the module lacks this method.
    """

    module: nn.Module
    draw: Callable[[np.ndarray], tuple]
    """Function from the row numbers (n,) of the pairs of a batch to the arguments of the module, a tuple."""
    owners: np.ndarray
    """The image of each of the m pairs (m,)."""
    pair_ids: np.ndarray
    """The name of each pair in error messages (m,)."""
    objective: LossFunction
    schedule: TrainingSchedule
    judge: Callable[[], float]
    """Function that computes the score on dev. A higher score is better."""
    anchors: Mapping[str, Tensor] = field(default_factory=dict)
    """The values towards which weight decay pulls parameters, by name. Weight decay pulls other parameters towards
    zero."""
    groups: Sequence[Collection[str]] = ()
    """Sets of names of parameters. The sets are trained one after another, each for an equal share of the epochs.
    Without sets, all parameters are trained in each epoch."""
    extra_state: Mapping[str, Tensor] = field(default_factory=dict)
    """Tensors by name that the module or `before_epoch` changes in place. The tensors are stored in checkpoints, and
    restored with the parameters of the best epoch."""
    before_epoch: Callable[[int], None] = lambda epoch: None
    """Function that is called with the number of each epoch, from 0, before the epoch begins. It is not called for an
    epoch within which a training resumes."""
    precision: torch.dtype = torch.float32
    """The dtype of the module's most expensive matrix products."""
    finish: Callable[[], TrainedModel] | None = None
    """Function that returns the trained model. It may be None if the caller uses the trained module itself and does not
    call `Training.finish`."""


class Training:
    """The training of a plan.

    All random numbers depend only on the seed, the epoch and the number of the batch, so that a checkpoint need not
    store the state of the random number generators.
    """

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
        """Call `finish` of the plan, and return its result, the model with the current parameters of the module. The
        plan must have this function."""
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
        """The names of the parameters that are trained in the current epoch."""
        groups = self.plan.groups or [self.trained.keys()]
        return groups[self.progress.epoch * len(groups) // self.schedule.epochs]

    @property
    def finished(self) -> bool:
        state = self.progress
        schedule = self.schedule
        # Patience begins with the last group, because the other groups may reach their best score in the first epoch.
        patience_start = schedule.epochs - schedule.epochs // max(1, len(self.plan.groups))
        is_stale = schedule.patience and state.epoch >= max(state.best_epoch + 1, patience_start) + schedule.patience
        return state.epoch >= schedule.epochs or bool(is_stale)

    def run(self, after_step: Callable[["Training"], None]) -> list[dict[str, float]]:
        """Train to the end, put the averaged parameters of the best epoch into the module, and switch the module to
        evaluation mode. Call `after_step` after each batch.

        The best epoch has the highest score on dev. Without patience, no epoch is scored, and the last epoch counts as
        the best. Returns the history: for each epoch its number `epoch`, from 0, the mean `loss` of its batches, the
        `learning_rate` of its first batch, and the score `dev` if it was scored. Raises JointspaceError, which names
        the batch, if a loss or gradient is not finite. The error is raised before a checkpoint can contain results of
        this batch, and on a CPU also before a parameter is changed.
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
        """Draw the batches of the current epoch. Each batch is an array with the row numbers of training pairs. The
        contrastive pairs that the objective needs are at the end of the batch."""
        rng = np.random.default_rng([self.schedule.seed, self.progress.epoch])
        m = len(self.plan.owners)
        batches = np.array_split(rng.permutation(m), self.steps)
        contrasts = rng.choice(m, (self.steps, self.plan.objective.drawn))
        return [np.concatenate(pairs) for pairs in zip(batches, contrasts, strict=True)]

    def _step(self, rows: np.ndarray, following: np.ndarray | None = None) -> None:
        """Train on the pairs `rows`. While a GPU computes, prepare the pairs `following` of the next step, if there is
        a next step in the epoch."""
        state = self.progress
        schedule = self.schedule
        ahead = self._ahead
        self._ahead = None
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
        self._read_loss()  # This is the loss of the previous step. A GPU computes the current step meanwhile.
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
        """Prepare the arguments for the pairs `rows` of the next step, if training runs on a GPU.

        The preparation does not change the random numbers of the module, because the module uses the GPU's generator.
        On a CPU the arguments are prepared when the step begins.
        """
        if rows is not None and self.device.type != "cpu":
            with seeded(self.schedule.seed, self.progress.epoch, self.progress.step + 1):
                self._ahead = rows, move_tensors(self.draw(rows), self.device)

    def _read_loss(self) -> None:
        """Add the loss of the last step to `progress.losses`, unless it was already added. On a GPU, the method waits
        for the loss.

        Raises JointspaceError if the loss or the norm of the gradient is not finite.
        """
        step = self._unread
        self._unread = None
        if step is None:
            return
        loss, gradient = step.values.numpy().tolist()
        for quantity, value in (("loss", loss), ("gradient", gradient)):
            if not math.isfinite(value):
                ids = ", ".join(map(str, self.plan.pair_ids[step.rows][:5]))
                raise JointspaceError(
                    f"Training stopped, because the {quantity} is {value} in epoch {step.epoch}, batch {step.step}"
                    f" (sentences {ids}, ...). Epochs and batches are counted from 0. Lower learning_rate, or check the"
                    " features of these sentences and of their images for values that are not finite. Then run the"
                    " command again. The last checkpoint before this batch is kept."
                )
        self.progress.losses += loss

    @torch.no_grad()
    def _decay_and_average(self, share: float) -> None:
        for name in self.learning if share else ():
            parameter = self.trained[name]
            anchor = self.plan.anchors.get(name)
            parameter.mul_(1 - share) if anchor is None else parameter.lerp_(anchor, share)
        averages = list(self.average.values())
        trained: list[Tensor] = [*self.trained.values()]
        lerp_all = torch._foreach_lerp_  # pyright: ignore[reportPrivateImportUsage]  # The function has no public name.
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
        state.epoch = state.epoch + 1
        state.step = 0
        state.losses = 0.0

    def _judge_average(self) -> float:
        """Compute the dev score of the averaged parameters. Afterwards the module has its own parameters again, and
        stays in evaluation mode."""
        self.module.eval()
        current = {name: p.detach().clone() for name, p in self.trained.items()}
        self._put(self.average)
        with torch.inference_mode():
            score = self.judge()
        self._put(current)
        return score

    @torch.no_grad()
    def _put(self, values: Mapping[str, Tensor]) -> None:
        for name, tensor in values.items():
            self.state[name].copy_(tensor)

    def checkpoint(self) -> Checkpoint:
        """Return a copy of the state of the training, as NumPy arrays, from which `resume` continues. Raises
        JointspaceError if the last loss or gradient is not finite."""
        self._read_loss()
        groups = {"now": self.state, "average": self.average, "best": self.best}
        tensors = {f"{group}/{name}": t.detach() for group, named in groups.items() for name, t in named.items()}
        moments = self.optimiser.state_dict()["state"]
        tensors |= {f"moment/{i}/{key}": value for i, state in moments.items() for key, value in state.items()}
        return Checkpoint({name: t.cpu().numpy().copy() for name, t in tensors.items()}, asdict(self.progress))

    def resume(self, checkpoint: Checkpoint) -> None:
        """Take over the state in `checkpoint`, from which `run` then continues. The checkpoint may come from another
        device.

        Raises IntegrityError if the names or shapes of the parameters in the checkpoint differ from the parameters of
        this training.
        """
        groups: dict[str, dict[str, Tensor]] = {"now": {}, "average": {}, "best": {}, "moment": {}}
        for path, array in checkpoint.tensors.items():
            group, _, name = path.partition("/")
            groups[group][name] = torch.from_numpy(array.copy())
        if {n: t.shape for n, t in groups["now"].items()} != {n: t.shape for n, t in self.state.items()}:
            raise IntegrityError(
                "The checkpoint of this training belongs to another model: its arrays have other names or shapes than"
                " the parameters of this model. Delete the folder `checkpoints` of this job, and run the command again"
                " to train from the beginning."
            )
        self._put(groups["now"])
        for own, stored in ((self.average, groups["average"]), (self.best, groups["best"])):
            own.update({name: tensor.to(own[name].device) for name, tensor in stored.items()})
        moments: dict[int, dict[str, Tensor]] = {}
        for path, tensor in groups["moment"].items():
            index, _, key = path.partition("/")
            moments.setdefault(int(index), {})[key] = tensor
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": moments})
        self.progress = Progress(**checkpoint.progress)
