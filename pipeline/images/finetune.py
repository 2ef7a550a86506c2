"""A network trained to tell what regions show, as the CNN of R-CNN is (Girshick et al. 2014, section 2.3)."""

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
from pipeline.images.classifier import Classifier
from pipeline.images.networks import NetworkEncoder
from pipeline.images.sampling import RegionSample

WARM_UP = 0.1
"""Share of the iterations in which the learning rate rises to its highest."""
LENGTH = 5
"""Root mean square length that a pretrained network's features are brought to, about that of one that begins untrained:
with ImageNet's weights it is 505 for SqueezeNet's, and steps that suit the one tear the other apart."""


@dataclass(frozen=True)
class FinetuneSchedule:
    """Gradient descent with momentum for `iterations` steps; `learning_rate` is the highest, that of the body is
    `body_rate` times as high. `clip` is the greatest norm of the gradient."""

    iterations: int
    learning_rate: float
    body_rate: float
    momentum: float
    weight_decay: float
    clip: float

    def rate(self, iteration: int) -> float:
        """Rises in a line, then falls to zero by half a cosine."""
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

    f is the encoder's layer, whose weights are learned along with W and b. Where they are `pretrained`, W learns from
    features brought to the length LENGTH, and batch normalisations keep the statistics that they have. Random numbers
    follow from the seed and the number of the iteration, so that `tensors` and `iteration` are all that training goes
    on from.
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
        self.schedule, self.device, self.dtype, self.seed = schedule, device, dtype, seed
        self.pretrained = pretrained
        groups = [
            {"params": list(body.parameters()), "share": schedule.body_rate},
            {"params": list(self.head.parameters()), "share": 1},
        ]
        self.optimiser = torch.optim.SGD(
            groups, momentum=schedule.momentum, weight_decay=schedule.weight_decay, nesterov=True
        )
        self.iteration = 0

    def learn(self, batches: Iterable[RegionSample]) -> Iterator[float]:
        """The loss of each batch, after a step down its gradient. Raises JointspaceError when the loss or the gradient
        is not finite, before it changes a weight."""
        for batch in batches:
            if self.pretrained and self.iteration == 0:
                self._measure(batch)
            self._prepare()
            loss = self._step(batch)
            self.iteration += 1
            yield loss

    def _prepare(self) -> None:
        self.network.train()
        for module in self.network.modules() if self.pretrained else ():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()

    def _measure(self, batch: RegionSample) -> None:
        """Set the head's scale by the features of `batch`."""
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
                f"training came apart at iteration {self.iteration} (loss {loss.item()}, gradient {norm.item()}); lower"
                " finetune.learning_rate; the last checkpoint is kept"
            )
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

    def encoder(self, weights: Mapping[str, Any]) -> NetworkEncoder:
        """The encoder as it is now, on the CPU; `weights` says where it comes from."""
        body = copy.deepcopy(self.network[0].body).to("cpu", memory_format=torch.contiguous_format).eval()
        return NetworkEncoder(self.spec, body, self.node, weights)

    def classifier(self) -> Classifier:
        """The classifier as it is now."""
        weight, bias = self.head.scale * self.head.weight, self.head.bias
        return Classifier(*(tensor.detach().cpu().numpy().copy() for tensor in (weight, bias)))
