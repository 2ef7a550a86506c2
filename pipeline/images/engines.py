"""Encoders computed on a processor by another library than torch."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np
import torch
from torch import nn

from pipeline import runtime
from pipeline.errors import UsageError, brief
from pipeline.specs.engines import ENGINES, EngineSpec
from pipeline.specs.places import find

BLOCK = 2
"""Images that a thread computes at once. Their activations stay in its cache: of 1, 2, 4, 8 and 16 the fastest for
MobileNetV2, ResNet-50 and SqueezeNet where it was measured."""

log = logging.getLogger(__name__)


class EngineEncoder:
    """`encoder(pixels)` computes features (n, dim) float32 of pixels (n, height, width, 3) uint8 in blocks, each on one
    thread: where all threads share each layer, every layer waits for the slowest of them."""

    def __init__(self, encoder: nn.Module, engine: EngineSpec, precision: str) -> None:
        """`encoder` is float32, on the processor. Raises UsageError where `engine` is not installed."""
        self._encoder, self._precision, self._name = encoder, precision, engine.name
        self._compile = engine.load()
        self._compiled: dict[tuple[int, ...], Callable[[np.ndarray], np.ndarray]] = {}

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(runtime.threads())

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """Raises UsageError where the engine cannot compute the encoder."""
        count = len(pixels)
        filled = torch.cat([pixels, pixels.new_zeros(-count % BLOCK, *pixels.shape[1:])])
        blocks = filled.numpy().reshape(-1, BLOCK, *pixels.shape[1:])
        compute = self._for_shape(blocks.shape[1:])
        return torch.from_numpy(np.concatenate(list(self._threads.map(compute, blocks)))[:count])

    def _for_shape(self, shape: tuple[int, ...]) -> Callable[[np.ndarray], np.ndarray]:
        if shape not in self._compiled:
            begun = time.perf_counter()
            try:
                with torch.inference_mode(False), torch.no_grad():
                    program = torch.export.export(self._encoder, (torch.zeros(shape, dtype=torch.uint8),))
                self._compiled[shape] = self._compile(program, self._precision, runtime.threads())
            except Exception as error:  # the libraries have no class of exceptions in common
                raise UsageError(
                    f"{self._name} cannot compute the encoder in {self._precision} ({brief(error)}); set extract.engine"
                    " to auto"
                ) from error
            log.debug("%s: compiled for %s in %.1f s", self._name, shape, time.perf_counter() - begun)
        return self._compiled[shape]


def engine_encoder(encoder: nn.Module, engine: str, precision: str) -> EngineEncoder:
    """Raises UsageError for an `engine` that is unknown or not installed."""
    return EngineEncoder(encoder, find("engine", engine, ENGINES), precision)
