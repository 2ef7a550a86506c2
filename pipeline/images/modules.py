"""Encoders that are a torch module: their normalisation, precision and mirror images."""

import copy

import torch
from torch import nn

from pipeline.images.encoders import ImageEncoder, Work
from pipeline.images.extraction import Extractor, choose_plan
from pipeline.images.preprocess import Preprocessing


class ModuleEncoder(ImageEncoder):
    """Maps pixels (n, side, side, 3) uint8 to features (n, dim) float32, computed in the dtype of `body`.

    `body` maps normalised images (n, 3, side, side) to features (n, dim), or to maps (n, dim, height, width), whose
    mean is the feature; `flip` averages over mirror images.
    """

    def __init__(self, preprocessing: Preprocessing, body: nn.Module, flip: bool) -> None:
        super().__init__(preprocessing)
        self.body, self.flip = body, flip
        self.dtype = next(body.parameters()).dtype
        for name in ("mean", "std"):
            values = torch.tensor(getattr(preprocessing, name)).reshape(3, 1, 1) * 255
            self.register_buffer(name, values, persistent=False)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        images = self.normalise(pixels)
        features = self._features(images)
        return (features + self._features(images.flip(3))) / 2 if self.flip else features

    def normalise(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels (n, height, width, 3) uint8 to the module's input (n, 3, height, width)."""
        return pixels.permute(0, 3, 1, 2).to(torch.float32).sub_(self.mean).div_(self.std).to(self.dtype)

    def _features(self, images: torch.Tensor) -> torch.Tensor:
        output = self.body(images)
        return output.mean((2, 3), dtype=torch.float32) if output.ndim == 4 else output.float()

    def folded(self) -> nn.Module:
        """A copy of the body that computes the same, in fewer passes where it can."""
        return copy.deepcopy(self.body)

    def optimised(self, device: torch.device, dtype: torch.dtype) -> "ModuleEncoder":
        """A faster copy on `device`, in `dtype`, channels last like the pixels."""
        body = self.folded().to(dtype=dtype, memory_format=torch.channels_last)
        return ModuleEncoder(self.preprocessing, body, self.flip).to(device)

    def work(self, device: str, precision: str, batch_size: int) -> Work:
        """See `choose_plan`."""
        return Work(None, Extractor(self, choose_plan(self, device, precision, batch_size)))
