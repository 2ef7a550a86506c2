"""The kinds of image encoder, told apart by the architecture in their settings: `standard`, or else a network's name.

A network that was trained in another way is still a network.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from pipeline.images.encoders import Encoder
from pipeline.images.extraction import Extractor, Plan, choose_plan, find_device

if TYPE_CHECKING:
    from pipeline.images.standard import StandardEncoder

STANDARD = "standard"


class Work(NamedTuple):
    """An encoder's work: `describe` the pixels of one picture where they are decoded (None: leave them as they are),
    and extract the features of many at once."""

    describe: Callable[[np.ndarray], np.ndarray] | None
    extractor: Extractor


def restore(settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "Encoder | StandardEncoder":
    """The encoder whose `settings()` and `tensors()` these are."""
    if settings["architecture"] != STANDARD:
        return Encoder.from_parts(settings, tensors)
    from pipeline.images.standard import StandardEncoder  # OpenCV, which networks do without

    return StandardEncoder.from_parts(settings, tensors)


def divide(encoder: "Encoder | StandardEncoder", device: str, precision: str, batch_size: int) -> Work:
    """How to run `encoder`; for the other arguments see `choose_plan`. Standard encoders always compute in float32."""
    if isinstance(encoder, Encoder):
        return Work(None, Extractor(encoder, choose_plan(encoder, device, precision, batch_size)))
    plan = Plan(find_device(device), torch.float32, batch_size)
    return Work(encoder.describer, Extractor(encoder.projection, plan))
