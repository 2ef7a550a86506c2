"""Finetuning a network to classify regions, as in R-CNN (Girshick et al. 2014, section 2.3)."""

import numpy as np
import torch
from torch import nn

from pipeline.images.descent import DescentSchedule, NetworkTraining
from pipeline.images.networks import NetworkEncoder
from pipeline.images.region_features import Classifier
from pipeline.images.sampling import RegionSample

MOMENTUM = 0.9
WEIGHT_DECAY = 0.0005
LENGTH = 5
"""Root mean square length that a pretrained network's features are scaled to, about that of an untrained network. With
ImageNet's weights SqueezeNet's is 505, and training diverges at learning rates that suit an untrained one."""


class Head(nn.Linear):
    """W (scale x) + b; `scale` is 1 until it is measured."""

    def __init__(self, dim: int, classes: int, seed: int) -> None:
        super().__init__(dim, classes)
        nn.init.normal_(self.weight, std=0.01, generator=torch.Generator().manual_seed(seed))
        nn.init.zeros_(self.bias)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.scale * x)


class Finetuning(NetworkTraining):
    """Minimises the cross-entropy of softmax(W f(x) + b) with the class of region x, by gradient descent with
    Nesterov's momentum; class 0 is the background.

    f is the encoder's layer, trained together with W and b. If it is `pretrained`, its features are scaled to the
    length LENGTH, and batch norms keep their statistics.
    """

    section = "finetune"

    def __init__(
        self, encoder: NetworkEncoder, classes: int, schedule: DescentSchedule, device: torch.device,
        dtype: torch.dtype, seed: int, pretrained: bool,
    ) -> None:  # fmt: skip
        head = Head(encoder.dim, 1 + classes, seed)
        super().__init__(encoder, head, schedule, device, dtype, seed, frozen_norms=pretrained)
        self.pretrained = pretrained
        self.optimiser = torch.optim.SGD(self.groups(), momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True)

    def _scale_head(self, batch: RegionSample) -> None:
        self.network.eval()
        with torch.inference_mode():
            features = self.features(batch.pixels)
        length = features.square().sum(dim=1).mean().sqrt().item()
        self.head.scale.fill_(LENGTH / max(length, np.finfo(np.float32).tiny))
        self._start_learning()

    def _descend(self, batch: RegionSample) -> torch.Tensor:
        if self.pretrained and self.iteration == 0:
            self._scale_head(batch)
        classes = torch.from_numpy(batch.classes).to(self.device, non_blocking=True)
        with self.mixed():
            logits = self.head(self.features(batch.pixels))
        loss = nn.functional.cross_entropy(logits.float(), classes)
        loss.backward()
        return loss

    def classifier(self) -> Classifier:
        """The current classifier."""
        weight, bias = self.head.scale * self.head.weight, self.head.bias
        return Classifier(*(tensor.detach().cpu().numpy().copy() for tensor in (weight, bias)))
