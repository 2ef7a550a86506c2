"""Encoders of whole images that average, or take the maximum of, the features of their regions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from pipeline.errors import UsageError
from pipeline.images.boxes import NONE
from pipeline.images.encoders import EncoderMaterial, ImageEncoder, Work
from pipeline.images.extraction import ExtractionPlan
from pipeline.images.networks import NetworkEncoder
from pipeline.images.preparation import Cutting
from pipeline.images.regions import RegionExtractor

POOLING = {"mean": np.add, "max": np.maximum}
BATCH = 32
"""Regions encoded at once."""


def pool(features: np.ndarray, offsets: np.ndarray, pooling: str) -> np.ndarray:
    """(n, dim) float32: the mean or max (`pooling`) of region `features` (total, dim); those of image i are the rows
    offsets[i] to offsets[i + 1], at least one."""
    pooled = POOLING[pooling].reduceat(features, offsets[:-1], axis=0)
    return pooled / np.diff(offsets)[:, None].astype(np.float32) if pooling == "mean" else pooled


class PooledEncoder(ImageEncoder):
    """Maps images to features (n, dim) float32, pooled over the regions that the section `regions` defines.

    A query image has no boxes from a file or detector; its regions are then the grid windows that fill up.
    """

    def __init__(self, network: NetworkEncoder, regions: Mapping[str, Any], pooling: str) -> None:
        super().__init__(network.preprocessing)
        self.network, self.regions, self.pooling = network, regions, pooling
        self._cutting = Cutting.from_settings(regions, network.preprocessing)
        plan = ExtractionPlan(torch.device("cpu"), torch.float32, BATCH)
        self._extractor = RegionExtractor(network, plan, self._cutting.view)

    @property
    def dim(self) -> int:
        return self.network.dim

    def encode(self, images: Sequence[Image.Image]) -> np.ndarray:
        """(n, dim) float32 of RGB images."""
        features = self._extractor(self._cutting(image, NONE) for image in images)
        return pool(np.concatenate(features), np.cumsum([0, *map(len, features)]), self.pooling)

    def work(self, device: str, precision: str, batch_size: int) -> Work:
        """Raises UsageError: regions must be extracted first."""
        raise UsageError("an encoder of pooled regions takes regions, not images; extract-regions and pool-regions do")

    def settings(self) -> dict[str, Any]:
        network = self.network.settings()
        return {
            "architecture": "pooled",
            "layer": f"{self.pooling} over regions of {network['architecture']}, {network['layer']}",
            "weights": network["weights"],
            "pooling": self.pooling,
            "regions": dict(self.regions),
            "network": network,
        }

    def tensors(self) -> dict[str, np.ndarray]:
        return self.network.tensors()

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "PooledEncoder":
        return cls(NetworkEncoder.from_parts(settings["network"], tensors), settings["regions"], settings["pooling"])

    @classmethod
    def prepare(cls, entry: Any, material: EncoderMaterial) -> "PooledEncoder":
        """The encoder of a configuration entry, on the network of the encoder `entry.of`."""
        network = material.encoder(entry.of)
        return cls(NetworkEncoder.from_parts(network.settings, network.tensors), material.regions, entry.pooling)
