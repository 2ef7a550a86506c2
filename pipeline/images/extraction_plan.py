"""The precision and the batch size that suit an encoder and its device."""

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from pipeline.device import LARGEST_BATCH, find_device, full_float32, grow_batch
from pipeline.images.extraction import ExtractionPlan, Extractor
from pipeline.precision import fast_at_bfloat16

if TYPE_CHECKING:
    from pipeline.images.image_encoder import ImageEncoder

BFLOAT16_COSINE = 0.9997
"""Least cosine between a probe's features in bfloat16 and float32 for which `auto` chooses bfloat16. Photographs were
up to three times as far off as probes in our measurements, which makes it 0.999 for them."""
PROBES = 8
"""Images on which precisions have to agree."""
MOST_ELEMENTS, WIDEST = 2**31 - 1, 64
"""Of an activation of a batch, since kernels of CUDA and cuDNN have counted more by integers that overflow; and of one
for a pixel of an image, as in VGG's first map."""

log = logging.getLogger(__name__)


def choose_plan(encoder: "ImageEncoder", device: str, precision: str, batch_size: int) -> ExtractionPlan:
    """A plan for an ImageEncoder, `device` (auto, cpu, cuda, cuda:N) and `precision` (auto, float32, bfloat16).

    `auto` is bfloat16 if it is fast on the device and accurate enough for the encoder. Raises UsageError for a missing
    device.
    """
    chosen = find_device(device)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    if precision == "auto" and fast_at_bfloat16(chosen):
        cosine = bfloat16_cosine(encoder, chosen)
        dtype = torch.bfloat16 if cosine >= BFLOAT16_COSINE else torch.float32
        log.info("cosine of bfloat16 to float32 features %.5f: computing in %s", cosine, dtype)
    return ExtractionPlan(chosen, dtype, batch_size)


def bfloat16_cosine(encoder: "ImageEncoder", device: torch.device) -> float:
    """The least cosine, over generated images, between an encoder's features in bfloat16 and in float32."""
    probes = make_probes(encoder.preprocessing.side)
    plans = (ExtractionPlan(device, dtype, batch_size=1) for dtype in (torch.float32, torch.bfloat16))
    features = [torch.from_numpy(Extractor(encoder, plan)(probes)) for plan in plans]
    return torch.nn.functional.cosine_similarity(*features).min().item()


def make_probes(side: int) -> np.ndarray:
    """(PROBES, side, side, 3) uint8: noise at every scale, stronger at coarser scales, as in photographs."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.zeros(PROBES, 3, side, side)
    cells = 2
    while cells <= side:
        noise = torch.randn(PROBES, 3, cells, cells, generator=generator)
        pixels += torch.nn.functional.interpolate(noise, size=(side, side), mode="bilinear")
        cells *= 2
    return (pixels * 25 + 128).clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()


def grow(extractor: Extractor) -> None:
    """On a GPU, let an extractor of pixels take as many images at once as `grow_batch` finds worth it."""
    plan, side = extractor.plan, extractor.view.preprocessing.side
    if plan.device.type != "cuda":
        return
    probes = torch.from_numpy(make_probes(side)).to(plan.device)

    def describe(images: int) -> np.ndarray:
        return extractor.encode(probes.repeat(-(-images // PROBES), 1, 1, 1)[:images]).cpu().numpy()

    with torch.inference_mode(), full_float32():
        most = min(LARGEST_BATCH, MOST_ELEMENTS // (WIDEST * side**2))
        extractor.plan = replace(plan, batch_size=grow_batch(describe, min(plan.batch_size, most), most))
    log.info("%d images at once", extractor.plan.batch_size)
