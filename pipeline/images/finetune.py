"""A network trained to tell what regions show, as the CNN of R-CNN is (Girshick et al. 2014, section 2.3)."""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from pipeline.errors import JointspaceError
from pipeline.images.classifier import Classifier
from pipeline.images.encoders import Encoder, feature_dim
from pipeline.images.sampling import Sample

WARM_UP = 0.1
"""Share of the iterations in which the learning rate rises to its highest."""


@dataclass(frozen=True)
class Schedule:
    """Gradient descent with momentum for `iterations` steps; `learning_rate` is the highest."""

    iterations: int
    learning_rate: float
    momentum: float
    weight_decay: float

    def rate(self, iteration: int) -> float:
        """Rises in a line, then falls to zero by half a cosine."""
        warm = max(1, round(WARM_UP * self.iterations))
        if iteration < warm:
            return self.learning_rate * (iteration + 1) / warm
        return self.learning_rate * (1 + math.cos(math.pi * (iteration - warm) / (self.iterations - warm))) / 2


class Finetuning:
    """Minimises the cross-entropy of softmax(W f(x) + b) with the class of region x; class 0 is the background.

    f is the encoder's layer, whose weights are learned along with W and b. Random numbers follow from the seed and
    the number of the iteration, so that `tensors` and `iteration` are all that training goes on from.
    """

    def __init__(
        self, encoder: Encoder, classes: int, schedule: Schedule, device: torch.device, dtype: torch.dtype, seed: int
    ) -> None:
        self.dim = feature_dim(encoder)
        self.spec, self.node = encoder.spec, encoder.node
        plain = Encoder(replace(encoder.spec, flip=False), copy.deepcopy(encoder.body), encoder.node, {})
        self.head = nn.Linear(self.dim, 1 + classes)
        nn.init.normal_(self.head.weight, std=0.01, generator=torch.Generator().manual_seed(seed))
        nn.init.zeros_(self.head.bias)
        self.network = nn.Sequential(plain, self.head).to(device, memory_format=torch.channels_last)
        self.schedule, self.device, self.dtype, self.seed = schedule, device, dtype, seed
        self.optimiser = torch.optim.SGD(
            self.network.parameters(), momentum=schedule.momentum, weight_decay=schedule.weight_decay, nesterov=True
        )
        self.iteration = 0

    def learn(self, batches: Iterable[Sample]) -> Iterator[float]:
        """The loss of each batch, after a step down its gradient. Raises JointspaceError when it is not finite."""
        self.network.train()
        for batch in batches:
            loss = self._step(batch)
            if not math.isfinite(loss):
                raise JointspaceError(
                    f"training came apart at iteration {self.iteration} (loss {loss}); lower finetune.learning_rate"
                )
            self.iteration += 1
            yield loss

    def _step(self, batch: Sample) -> float:
        for group in self.optimiser.param_groups:
            group["lr"] = self.schedule.rate(self.iteration)
        pixels = torch.from_numpy(batch.pixels).to(self.device, non_blocking=True)
        classes = torch.from_numpy(batch.classes).to(self.device, non_blocking=True)
        with torch.random.fork_rng():
            torch.manual_seed((self.seed << 32) + self.iteration)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
                logits = self.network(pixels)
            loss = nn.functional.cross_entropy(logits.float(), classes)
            self.optimiser.zero_grad()
            loss.backward()
        self.optimiser.step()
        return loss.item()

    def tensors(self) -> dict[str, np.ndarray]:
        """Weights and momenta, to go on from."""
        state = {f"weights.{name}": tensor for name, tensor in self.network.state_dict().items()}
        for name, parameter in self.network.named_parameters():
            if (momentum := self.optimiser.state[parameter].get("momentum_buffer")) is not None:
                state[f"momentum.{name}"] = momentum
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in state.items()}

    def restore(self, tensors: Mapping[str, np.ndarray], iteration: int) -> None:
        """Go on from what `tensors` returned after that many iterations."""
        state = self.network.state_dict()
        given = {name: torch.from_numpy(tensors[f"weights.{name}"]).reshape(t.shape) for name, t in state.items()}
        self.network.load_state_dict(given)
        for name, parameter in self.network.named_parameters():
            if f"momentum.{name}" in tensors:
                momentum = torch.from_numpy(tensors[f"momentum.{name}"]).to(self.device)
                self.optimiser.state[parameter]["momentum_buffer"] = momentum.clone()
        self.iteration = iteration

    def encoder(self, weights: Mapping[str, Any]) -> Encoder:
        """The encoder as it is now, on the CPU; `weights` says where it comes from."""
        body = copy.deepcopy(self.network[0].body).to("cpu", memory_format=torch.contiguous_format).eval()
        return Encoder(self.spec, body, self.node, weights)

    def classifier(self) -> Classifier:
        """The classifier as it is now."""
        weight, bias = (tensor.detach().cpu().numpy().copy() for tensor in (self.head.weight, self.head.bias))
        return Classifier(weight, bias)
