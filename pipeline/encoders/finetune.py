"""Finetunes a network to classify regions, as in R-CNN (Girshick et al. 2014, section 2.3)."""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from pipeline.compute.device import drawn_from, full_float32
from pipeline.encoders.image_encoder import to_channels_last
from pipeline.encoders.material import WeightsOrigin
from pipeline.encoders.networks import CLASSIFIER, NetworkEncoder
from pipeline.encoders.preparation import RegionSample
from pipeline.errors import JointspaceError

WARM_UP = 0.1
"""Share of the iterations in which the learning rate rises to its maximum."""
MOMENTUM = "momentum_buffer"
"""The name under which torch's SGD stores the velocity of a parameter."""
WEIGHT_DECAY = 0.0005


@dataclass(frozen=True)
class DescentSchedule:
    """The settings of gradient descent.

    `iterations` is the number of steps, and `learning_rate` is the largest learning rate. The learning rate of the
    network below the classifier is multiplied by `body_rate`. A gradient with a norm above `clip` is scaled down to
    the norm `clip`.
    """

    iterations: int
    learning_rate: float
    body_rate: float
    clip: float

    def rate(self, iteration: int) -> float:
        """Return the learning rate at an iteration, from 0: a linear warm-up, then a half cosine down to zero.
        `body_rate` is not applied."""
        warm = max(1, round(WARM_UP * self.iterations))
        if iteration < warm:
            return self.learning_rate * (iteration + 1) / warm
        return self.learning_rate * (1 + math.cos(math.pi * (iteration - warm) / (self.iterations - warm))) / 2


FEATURE_LENGTH = 5
"""Root mean square of the lengths to which the features of a pretrained network are scaled. Features of an untrained
network have about this length. With ImageNet weights, features of SqueezeNet have the length 505, and training diverges
at learning rates that suit an untrained network."""


class Head(nn.Linear):
    """A linear classifier of features x (n, dim), W (scale x) + b. `classes` counts the background too.

    `scale` is 1, unless `Finetuning` sets it in the first step, so that the scaled features have the length
    FEATURE_LENGTH.
    """

    scale: torch.Tensor

    def __init__(self, dim: int, classes: int, seed: int) -> None:
        super().__init__(dim, classes)
        nn.init.normal_(self.weight, std=0.01, generator=torch.Generator().manual_seed(seed))
        nn.init.zeros_(self.bias)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(self.scale * input)


class Finetuning:
    """A training that finetunes an image encoder f to classify regions.

    The training minimises the cross-entropy of softmax(W f(x) + b) with the class of region x, by gradient descent with
    Nesterov's momentum. Class 0 is the background, which `classes` does not count. The encoder `network[0]` and the
    classifier `head` (W and b) are trained together. If the encoder is `pretrained`, its features are scaled to the
    length FEATURE_LENGTH, and batch norms keep their statistics. Random numbers depend only on the seed and the
    iteration, so that training can resume from `tensors` and `iteration`.
    """

    def __init__(
        self, encoder: NetworkEncoder, classes: int, schedule: DescentSchedule, device: torch.device,
        dtype: torch.dtype, seed: int, pretrained: bool,
    ) -> None:  # fmt: skip
        self.dim = encoder.dim
        self.spec = encoder.spec
        self.node = encoder.node
        self.schedule = schedule
        self.device = device
        self.dtype = dtype
        self.seed = seed
        self.pretrained = pretrained
        self.iteration = 0
        spec = replace(encoder.spec, flip=False)
        self.body = NetworkEncoder(spec, copy.deepcopy(encoder.body), encoder.node, {})
        self.head = Head(encoder.dim, 1 + classes, seed)
        self.network = to_channels_last(nn.ModuleList([self.body, self.head]).to(device))
        groups = [
            {"params": [p for p in part.parameters() if p.requires_grad], "share": share}
            for part, share in zip(self.network, (schedule.body_rate, 1), strict=True)
        ]
        self.optimiser = torch.optim.SGD(groups, momentum=0.9, weight_decay=WEIGHT_DECAY, nesterov=True)

    def learn(self, batches: Iterable[RegionSample]) -> Iterator[float]:
        """Make a gradient step for each batch, and yield the loss of the batch before the step.

        Raises JointspaceError before the step if the loss or the gradient is not finite.
        """
        for batch in batches:
            loss = self._step(batch)
            self.iteration += 1
            yield loss

    def _step(self, batch: RegionSample) -> float:
        self._start_learning()
        for group in self.optimiser.param_groups:
            group["lr"] = group["share"] * self.schedule.rate(self.iteration)
        self.optimiser.zero_grad()
        with full_float32(), drawn_from((self.seed << 32) + self.iteration, self.device):
            if self.pretrained and self.iteration == 0:
                self._scale_head(batch)
            classes = torch.from_numpy(batch.classes).to(self.device, non_blocking=True)
            with self._mixed():
                logits = self.head(self._features(batch.pixels))
            loss = nn.functional.cross_entropy(logits.float(), classes)
            loss.backward()
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self.schedule.clip)
        if not (torch.isfinite(loss) and torch.isfinite(norm)):
            raise JointspaceError(
                f"The training diverged at iteration {self.iteration} (loss {loss.item()}, gradient {norm.item()}). The"
                " last checkpoint is kept. Lower finetune.learning_rate."
            )
        self.optimiser.step()
        return loss.item()

    def _start_learning(self) -> None:
        self.network.train()
        for module in self.network.modules() if self.pretrained else ():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()

    def _scale_head(self, batch: RegionSample) -> None:
        self.network.eval()
        with torch.inference_mode():
            features = self._features(batch.pixels)
        length = features.square().sum(dim=1).mean().sqrt().item()
        self.head.scale.fill_(FEATURE_LENGTH / max(length, float(np.finfo(np.float32).tiny)))
        self._start_learning()

    def _mixed(self) -> torch.autocast:
        """Return a context in which matrix products use the dtype of the training."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16)

    def _features(self, pixels: np.ndarray) -> torch.Tensor:
        """Return the features (n, dim) of pixels (n, side, side, 3) uint8."""
        with self._mixed():
            return self.body(torch.from_numpy(pixels).to(self.device, non_blocking=True)).float()

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the weights of the network and the velocities of the optimiser, by name, for `restore`."""
        state = {f"weights.{name}": tensor for name, tensor in self.network.state_dict().items()}
        for name, parameter in self.network.named_parameters():
            if (velocity := self.optimiser.state[parameter].get(MOMENTUM)) is not None:
                state[f"{MOMENTUM}.{name}"] = velocity
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in state.items()}

    def restore(self, tensors: Mapping[str, np.ndarray], iteration: int) -> None:
        """Set the weights and the momentum to `tensors`, the result of the method `tensors` after `iteration` steps.

        The next step is step `iteration`, counted from 0.
        """
        state = self.network.state_dict()
        self.network.load_state_dict(
            {name: torch.from_numpy(tensors[f"weights.{name}"]).reshape(t.shape) for name, t in state.items()}
        )
        for name, parameter in self.network.named_parameters():
            if (velocity := tensors.get(f"{MOMENTUM}.{name}")) is not None:
                self.optimiser.state[parameter][MOMENTUM] = torch.tensor(velocity, device=self.device)
        self.iteration = iteration

    def encoder(self, weights: WeightsOrigin) -> NetworkEncoder:
        """Return a copy of the current encoder on the CPU. `weights` becomes the origin of the weights in the copy."""
        body = copy.deepcopy(self.body.body).cpu().eval()
        for parameter in (*body.parameters(), *body.buffers()):
            parameter.data = parameter.data.contiguous()
        return NetworkEncoder(self.spec, body, self.node, weights)

    def classifier(self) -> dict[str, np.ndarray]:
        """Return the trained classifier of regions, W (1 + classes, dim) and b (1 + classes,).

        The names of the tensors are `weight` and `bias` after the prefix CLASSIFIER. W includes the scale of the head.
        Row 0 of both is the background.
        """
        weight = self.head.scale * self.head.weight
        bias = self.head.bias
        named = {"weight": weight, "bias": bias}
        return {f"{CLASSIFIER}{name}": tensor.detach().cpu().numpy().copy() for name, tensor in named.items()}
