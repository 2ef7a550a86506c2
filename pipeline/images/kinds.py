"""The kinds of image encoder, told apart by the architecture in their settings: `standard`, `pooled`, or a network.

A network that was trained in another way is still a network.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from pipeline.device import find_device
from pipeline.errors import MALFORMED, IntegrityError, UsageError, brief
from pipeline.images.encoders import Encoder
from pipeline.images.extraction import Extractor, Plan, choose_plan
from pipeline.images.pooled_regions import PooledEncoder
from pipeline.images.preprocess import prepare

if TYPE_CHECKING:
    from pipeline.images.standard import StandardEncoder

STANDARD = "standard"
POOLED = "pooled"


class Work(NamedTuple):
    """An encoder's work: `describe` the pixels of one picture where they are decoded (None: leave them as they are),
    and extract the features of many at once."""

    describe: Callable[[np.ndarray], np.ndarray] | None
    extractor: Extractor


def restore(
    settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> "Encoder | StandardEncoder | PooledEncoder":
    """The encoder whose `settings()` and `tensors()` these are. IntegrityError where they are of another form."""
    try:
        return _restore(settings, tensors)
    except MALFORMED as error:
        raise IntegrityError(
            f"the stored encoder has another form than this version reads ({brief(error)}); run prepare-encoder again"
        ) from error


def _restore(
    settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> "Encoder | StandardEncoder | PooledEncoder":
    if settings["architecture"] == POOLED:
        return PooledEncoder.from_parts(settings, tensors)
    if settings["architecture"] != STANDARD:
        return Encoder.from_parts(settings, tensors)
    from pipeline.images.standard import StandardEncoder  # OpenCV, which networks do without

    return StandardEncoder.from_parts(settings, tensors)


def encode_images(encoder: "Encoder | StandardEncoder | PooledEncoder", images: Sequence[Image.Image]) -> np.ndarray:
    """(n, dim) float32 of some RGB images, on the CPU."""
    if isinstance(encoder, PooledEncoder):
        return encoder.encode(images)
    pixels = np.stack([prepare(image, encoder.spec.preprocessing) for image in images])
    with torch.inference_mode():
        return encoder(torch.from_numpy(pixels)).numpy()


def divide(encoder: "Encoder | StandardEncoder | PooledEncoder", device: str, precision: str, batch_size: int) -> Work:
    """How to run `encoder`; for the other arguments see `choose_plan`. Standard encoders always compute in float32.

    Raises UsageError for an encoder that pools regions, which are extracted first.
    """
    if isinstance(encoder, PooledEncoder):
        raise UsageError("an encoder of pooled regions takes them, and not images; extract-regions and pool-regions do")
    if isinstance(encoder, Encoder):
        return Work(None, Extractor(encoder, choose_plan(encoder, device, precision, batch_size)))
    plan = Plan(find_device(device), torch.float32, batch_size)
    return Work(encoder.describer, Extractor(encoder.projection, plan))
