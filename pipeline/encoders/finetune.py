"""Finetuning a network to classify regions, as in R-CNN (Girshick et al. 2014, section 2.3)."""

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
"""What torch calls the velocity that SGD keeps of a parameter."""
WEIGHT_DECAY = 0.0005


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


LENGTH = 5
"""Root mean square length that a pretrained network's features are scaled to, about that of an untrained network. With
ImageNet's weights SqueezeNet's is 505, and training diverges at learning rates that suit an untrained one."""


class Head(nn.Linear):
    """W (scale x) + b; `scale` is 1 until it is measured."""

    scale: torch.Tensor

    def __init__(self, dim: int, classes: int, seed: int) -> None:
        super().__init__(dim, classes)
        nn.init.normal_(self.weight, std=0.01, generator=torch.Generator().manual_seed(seed))
        nn.init.zeros_(self.bias)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(self.scale * input)


class Finetuning:
    """Minimises the cross-entropy of softmax(W f(x) + b) with the class of region x, by gradient descent with
    Nesterov's momentum; class 0 is the background.

    f is the encoder's layer, `network[0]`, trained together with W and b, the `head`. If it is `pretrained`, its
    features are scaled to the length LENGTH, and batch norms keep their statistics. Random numbers depend only on the
    seed and the iteration, so that training can resume from `tensors` and `iteration`.
    """

    def __init__(
        self, encoder: NetworkEncoder, classes: int, schedule: DescentSchedule, device: torch.device,
        dtype: torch.dtype, seed: int, pretrained: bool,
    ) -> None:  # fmt: skip
        self.dim, self.spec, self.node = encoder.dim, encoder.spec, encoder.node
        self.schedule, self.device, self.dtype, self.seed = schedule, device, dtype, seed
        self.pretrained, self.iteration = pretrained, 0
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
        """The loss of each batch, after a gradient step. Raises JointspaceError, before the step, if the loss or the
        gradient is not finite."""
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
                f"training diverged at iteration {self.iteration} (loss {loss.item()}, gradient {norm.item()}); lower"
                " finetune.learning_rate; the last checkpoint is kept"
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
        self.head.scale.fill_(LENGTH / max(length, float(np.finfo(np.float32).tiny)))
        self._start_learning()

    def _mixed(self) -> torch.autocast:
        """Within, products are of the dtype of the training."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16)

    def _features(self, pixels: np.ndarray) -> torch.Tensor:
        """(n, dim) of pixels (n, side, side, 3) uint8."""
        with self._mixed():
            return self.body(torch.from_numpy(pixels).to(self.device, non_blocking=True)).float()

    def tensors(self) -> dict[str, np.ndarray]:
        """Weights and what the optimiser remembers, for `restore`."""
        state = {f"weights.{name}": tensor for name, tensor in self.network.state_dict().items()}
        for name, parameter in self.network.named_parameters():
            if (velocity := self.optimiser.state[parameter].get(MOMENTUM)) is not None:
                state[f"{MOMENTUM}.{name}"] = velocity
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in state.items()}

    def restore(self, tensors: Mapping[str, np.ndarray], iteration: int) -> None:
        """Resume from what `tensors` returned after that many iterations."""
        state = self.network.state_dict()
        self.network.load_state_dict(
            {name: torch.from_numpy(tensors[f"weights.{name}"]).reshape(t.shape) for name, t in state.items()}
        )
        for name, parameter in self.network.named_parameters():
            if (velocity := tensors.get(f"{MOMENTUM}.{name}")) is not None:
                self.optimiser.state[parameter][MOMENTUM] = torch.tensor(velocity, device=self.device)
        self.iteration = iteration

    def encoder(self, weights: WeightsOrigin) -> NetworkEncoder:
        """The current encoder, on the CPU; `weights` says where its weights come from."""
        body = copy.deepcopy(self.body.body).cpu().eval()
        for parameter in (*body.parameters(), *body.buffers()):
            parameter.data = parameter.data.contiguous()
        return NetworkEncoder(self.spec, body, self.node, weights)

    def classifier(self) -> dict[str, np.ndarray]:
        """The classifier of features, (1 + classes, dim) and (1 + classes,), as tensors beside the encoder's."""
        weight, bias = self.head.scale * self.head.weight, self.head.bias
        named = {"weight": weight, "bias": bias}
        return {f"{CLASSIFIER}{name}": tensor.detach().cpu().numpy().copy() for name, tensor in named.items()}
