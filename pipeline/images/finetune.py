"""Finetuning a network to classify regions, as in R-CNN (Girshick et al. 2014, section 2.3)."""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from pipeline.device import drawn_from
from pipeline.errors import JointspaceError
from pipeline.images.networks import NetworkEncoder
from pipeline.images.region_features import Classifier
from pipeline.images.sampling import RegionSample

WARM_UP = 0.1
"""Share of the iterations in which the learning rate rises to its maximum."""
LENGTH = 5
"""Root mean square length that a pretrained network's features are scaled to, about that of an untrained network. With
ImageNet's weights SqueezeNet's is 505, and training diverges at learning rates that suit an untrained one."""


@dataclass(frozen=True)
class FinetuneSchedule:
    """Gradient descent with momentum for `iterations` steps; `learning_rate` is the maximum, `body_rate` a factor for
    the body, `clip` the greatest norm of the gradient."""

    iterations: int
    learning_rate: float
    body_rate: float
    momentum: float
    weight_decay: float
    clip: float

    def rate(self, iteration: int) -> float:
        """Linear warm-up, then a half cosine to zero."""
        warm = max(1, round(WARM_UP * self.iterations))
        if iteration < warm:
            return self.learning_rate * (iteration + 1) / warm
        return self.learning_rate * (1 + math.cos(math.pi * (iteration - warm) / (self.iterations - warm))) / 2


class Head(nn.Linear):
    """W (scale x) + b; `scale` is 1 until it is measured."""

    def __init__(self, dim: int, classes: int, seed: int) -> None:
        super().__init__(dim, classes)
        nn.init.normal_(self.weight, std=0.01, generator=torch.Generator().manual_seed(seed))
        nn.init.zeros_(self.bias)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.scale * x)


class Finetuning:
    """Minimises the cross-entropy of softmax(W f(x) + b) with the class of region x; class 0 is the background.

    f is the encoder's layer, trained together with W and b. If it is `pretrained`, its features are scaled to the
    length LENGTH, and batch norms keep their statistics. Random numbers depend only on the seed and the iteration, so
    training can resume from `tensors` and `iteration`.
    """

    def __init__(
        self, encoder: NetworkEncoder, classes: int, schedule: FinetuneSchedule, device: torch.device,
        dtype: torch.dtype, seed: int, pretrained: bool,
    ) -> None:  # fmt: skip
        self.dim = encoder.dim
        self.spec, self.node = encoder.spec, encoder.node
        body = NetworkEncoder(replace(encoder.spec, flip=False), copy.deepcopy(encoder.body), encoder.node, {})
        self.head = Head(self.dim, 1 + classes, seed)
        self.network = nn.Sequential(body, self.head).to(device, memory_format=torch.channels_last)
        self.schedule, self.device, self.dtype, self.seed, self.pretrained = schedule, device, dtype, seed, pretrained
        groups = [
            {"params": list(body.parameters()), "share": schedule.body_rate},
            {"params": list(self.head.parameters()), "share": 1},
        ]
        self.optimiser = torch.optim.SGD(
            groups, momentum=schedule.momentum, weight_decay=schedule.weight_decay, nesterov=True
        )
        self.iteration = 0

    def learn(self, batches: Iterable[RegionSample]) -> Iterator[float]:
        """The loss of each batch, after a gradient step. Raises JointspaceError, before the step, if the loss or the
        gradient is not finite."""
        for batch in batches:
            if self.pretrained and self.iteration == 0:
                self._scale_head(batch)
            self.network.train()
            for module in self.network.modules() if self.pretrained else ():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
            loss = self._step(batch)
            self.iteration += 1
            yield loss

    def _scale_head(self, batch: RegionSample) -> None:
        self.network.eval()
        with torch.inference_mode():
            features = self.network[0](torch.from_numpy(batch.pixels).to(self.device)).float()
        length = features.square().sum(dim=1).mean().sqrt().item()
        self.head.scale.fill_(LENGTH / max(length, np.finfo(np.float32).tiny))

    def _step(self, batch: RegionSample) -> float:
        for group in self.optimiser.param_groups:
            group["lr"] = group["share"] * self.schedule.rate(self.iteration)
        pixels = torch.from_numpy(batch.pixels).to(self.device, non_blocking=True)
        classes = torch.from_numpy(batch.classes).to(self.device, non_blocking=True)
        with drawn_from((self.seed << 32) + self.iteration, self.device):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
                logits = self.network(pixels)
            loss = nn.functional.cross_entropy(logits.float(), classes)
            self.optimiser.zero_grad()
            loss.backward()
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self.schedule.clip)
        if not (torch.isfinite(loss) and torch.isfinite(norm)):
            raise JointspaceError(
                f"training diverged at iteration {self.iteration} (loss {loss.item()}, gradient {norm.item()}); lower"
                " finetune.learning_rate; the last checkpoint is kept"
            )
        self.optimiser.step()
        return loss.item()

    def tensors(self) -> dict[str, np.ndarray]:
        """Weights and momenta, for `restore`."""
        state = {f"weights.{name}": tensor for name, tensor in self.network.state_dict().items()}
        for name, parameter in self.network.named_parameters():
            if (momentum := self.optimiser.state[parameter].get("momentum_buffer")) is not None:
                state[f"momentum.{name}"] = momentum
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in state.items()}

    def restore(self, tensors: Mapping[str, np.ndarray], iteration: int) -> None:
        """Resume from what `tensors` returned after that many iterations."""
        state = self.network.state_dict()
        self.network.load_state_dict(
            {name: torch.from_numpy(tensors[f"weights.{name}"]).reshape(t.shape) for name, t in state.items()}
        )
        for name, parameter in self.network.named_parameters():
            if f"momentum.{name}" in tensors:
                momentum = torch.from_numpy(tensors[f"momentum.{name}"]).to(self.device)
                self.optimiser.state[parameter]["momentum_buffer"] = momentum.clone()
        self.iteration = iteration

    def encoder(self, weights: Mapping[str, Any]) -> NetworkEncoder:
        """The current encoder, on the CPU; `weights` says where its weights come from."""
        body = copy.deepcopy(self.network[0].body).to("cpu", memory_format=torch.contiguous_format).eval()
        return NetworkEncoder(self.spec, body, self.node, weights)

    def classifier(self) -> Classifier:
        """The current classifier."""
        weight, bias = self.head.scale * self.head.weight, self.head.bias
        return Classifier(*(tensor.detach().cpu().numpy().copy() for tensor in (weight, bias)))
