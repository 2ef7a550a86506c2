"""Training a network and what stands on it by gradient descent, so that a killed training goes on exactly."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from pipeline.device import drawn_from, full_float32
from pipeline.errors import JointspaceError
from pipeline.images.networks import NetworkEncoder

WARM_UP = 0.1
"""Share of the iterations in which the learning rate rises to its maximum."""


@dataclass(frozen=True)
class DescentSchedule:
    """`iterations` steps; `learning_rate` is the maximum, `body_rate` a factor for the network itself, `clip` the
    greatest norm of the gradient."""

    iterations: int
    learning_rate: float
    body_rate: float
    clip: float

    def rate(self, iteration: int) -> float:
        """Linear warm-up, then a half cosine to zero."""
        warm = max(1, round(WARM_UP * self.iterations))
        if iteration < warm:
            return self.learning_rate * (iteration + 1) / warm
        return self.learning_rate * (1 + math.cos(math.pi * (iteration - warm) / (self.iterations - warm))) / 2


class NetworkTraining(ABC):
    """An encoder's network, `network[0]`, and the `head` on it, `network[1]`.

    Batch norms keep their statistics where `frozen_norms`. Random numbers depend only on the seed and the iteration, so
    that training can resume from `tensors` and `iteration`; `section` is the key of the configuration that an error
    names.
    """

    section: str

    def __init__(
        self, encoder: NetworkEncoder, head: nn.Module, schedule: DescentSchedule, device: torch.device,
        dtype: torch.dtype, seed: int, frozen_norms: bool,
    ) -> None:  # fmt: skip
        self.dim, self.spec, self.node = encoder.dim, encoder.spec, encoder.node
        body = NetworkEncoder(replace(encoder.spec, flip=False), copy.deepcopy(encoder.body), encoder.node, {})
        self.head = head
        self.network = nn.ModuleList([body, head]).to(device, memory_format=torch.channels_last)
        self.schedule, self.device, self.dtype, self.seed = schedule, device, dtype, seed
        self.frozen_norms, self.iteration = frozen_norms, 0

    def groups(self) -> list[dict[str, Any]]:
        """The parameters that learn, for an optimiser, each group with the `share` of the rate that it learns at."""
        parts = zip(self.network, (self.schedule.body_rate, 1), strict=True)
        return [{"params": [p for p in part.parameters() if p.requires_grad], "share": share} for part, share in parts]

    @abstractmethod
    def _descend(self, batch: Any) -> torch.Tensor:
        """The loss of a batch, whose gradient is then in the parameters."""

    def learn(self, batches: Iterable[Any]) -> Iterator[float]:
        """The loss of each batch, after a gradient step. Raises JointspaceError, before the step, if the loss or the
        gradient is not finite."""
        for batch in batches:
            self._start_learning()
            loss = self._step(batch)
            self.iteration += 1
            yield loss

    def _start_learning(self) -> None:
        self.network.train()
        for module in self.network.modules() if self.frozen_norms else ():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()

    def _step(self, batch: Any) -> float:
        for group in self.optimiser.param_groups:
            group["lr"] = group["share"] * self.schedule.rate(self.iteration)
        self.optimiser.zero_grad()
        with full_float32(), drawn_from((self.seed << 32) + self.iteration, self.device):
            loss = self._descend(batch)
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self.schedule.clip)
        if not (torch.isfinite(loss) and torch.isfinite(norm)):
            raise JointspaceError(
                f"training diverged at iteration {self.iteration} (loss {loss.item()}, gradient {norm.item()}); lower"
                f" {self.section}.learning_rate; the last checkpoint is kept"
            )
        self.optimiser.step()
        return loss.item()

    def mixed(self) -> torch.autocast:
        """Within, products are of the dtype of the training."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16)

    def features(self, pixels: np.ndarray) -> torch.Tensor:
        """(n, dim) of pixels (n, side, side, 3) uint8."""
        with self.mixed():
            return self.network[0](torch.from_numpy(pixels).to(self.device, non_blocking=True)).float()

    def tensors(self) -> dict[str, np.ndarray]:
        """Weights and what the optimiser remembers, for `restore`."""
        state = {f"weights.{name}": tensor for name, tensor in self.network.state_dict().items()}
        for name, parameter in self.network.named_parameters():
            kept = self.optimiser.state.get(parameter, {})
            state |= {f"{key}.{name}": value for key, value in kept.items() if isinstance(value, torch.Tensor)}
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in state.items()}

    def restore(self, tensors: Mapping[str, np.ndarray], iteration: int) -> None:
        """Resume from what `tensors` returned after that many iterations."""
        state = self.network.state_dict()
        self.network.load_state_dict(
            {name: torch.from_numpy(tensors[f"weights.{name}"]).reshape(t.shape) for name, t in state.items()}
        )
        for name, parameter in self.network.named_parameters():
            for key in {one.partition(".")[0] for one in tensors if one.endswith(f".{name}")} - {"weights"}:
                value = torch.from_numpy(tensors[f"{key}.{name}"])
                # Where an optimiser counts its steps, it does so on the processor.
                kept = value.reshape(()) if key == "step" else value.to(self.device)
                self.optimiser.state[parameter][key] = kept.clone()
        self.iteration = iteration

    def encoder(self, weights: Mapping[str, Any]) -> NetworkEncoder:
        """The current encoder, on the CPU; `weights` says where its weights come from."""
        body = copy.deepcopy(self.network[0].body).to("cpu", memory_format=torch.contiguous_format).eval()
        return NetworkEncoder(self.spec, body, self.node, weights)
