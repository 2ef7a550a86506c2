"""Encoders computed on a processor by another library than torch."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np
import torch
from torch import nn
from torch.export import ExportedProgram

from pipeline import runtime
from pipeline.errors import UsageError, brief
from pipeline.specs.engines import ENGINES, EngineSpec
from pipeline.specs.places import find

BLOCKS = (2, 8)
"""Images that a thread may compute at once. Of few the activations stay in its cache, which is best for convolutions;
of more each weight is used more often, which is best for transformers."""
RUNS = 2
"""How often each is timed."""

log = logging.getLogger(__name__)

Compute = Callable[[np.ndarray], np.ndarray]


def full_batch() -> int:
    """Images that give every thread something to do."""
    return BLOCKS[-1] * runtime.threads()


def export_program(encoder: nn.Module, shape: tuple[int, ...]) -> ExportedProgram:
    """What `encoder` computes of pixels of a `shape`, uint8."""
    with torch.inference_mode(False), torch.no_grad():
        return torch.export.export(encoder, (torch.zeros(shape, dtype=torch.uint8),))


class EngineEncoder:
    """`encoder(pixels)` computes features (n, dim) float32 of pixels (n, height, width, 3) uint8 in blocks, each on one
    thread: where all threads share each layer, every layer waits for the slowest of them."""

    def __init__(self, encoder: nn.Module, engine: EngineSpec, precision: str) -> None:
        """`encoder` is float32, on the processor. Raises UsageError where `engine` is not installed."""
        self._encoder, self._precision, self._name = encoder, precision, engine.name
        self._compile = engine.load()
        self._compiled: dict[tuple[int, ...], tuple[int, Compute]] = {}

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(runtime.threads())

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """Raises UsageError where the engine cannot compute the encoder."""
        return torch.from_numpy(self._run(pixels.numpy(), *self._for_shape(tuple(pixels.shape[1:]))))

    def _run(self, pixels: np.ndarray, block: int, compute: Compute) -> np.ndarray:
        shape = pixels.shape[1:]
        filled = np.concatenate([pixels, np.zeros((-len(pixels) % block, *shape), np.uint8)])
        return np.concatenate(list(self._threads.map(compute, filled.reshape(-1, block, *shape))))[: len(pixels)]

    def _for_shape(self, shape: tuple[int, ...]) -> tuple[int, Compute]:
        """What computes pictures of a `shape`, and the size of its blocks: the faster of BLOCKS."""
        if shape not in self._compiled:
            pixels, tried = np.zeros((full_batch(), *shape), np.uint8), {}
            for block in BLOCKS:
                compute, seconds = self._built((block, *shape)), []
                for _ in range(RUNS):
                    begun = time.perf_counter()
                    self._run(pixels, block, compute)
                    seconds.append(time.perf_counter() - begun)
                tried[min(seconds)] = block, compute
            self._compiled[shape] = tried[min(tried)]
            log.debug("%s computes %d images of %s at once", self._name, self._compiled[shape][0], shape)
        return self._compiled[shape]

    def _built(self, shape: tuple[int, ...]) -> Compute:
        try:
            return self._compile(export_program(self._encoder, shape), self._precision, runtime.threads())
        except Exception as error:  # the libraries have no class of exceptions in common
            raise UsageError(
                f"{self._name} cannot compute the encoder in {self._precision} ({brief(error)}); set extract.engine to"
                " auto"
            ) from error


def engine_encoder(encoder: nn.Module, engine: str, precision: str) -> EngineEncoder:
    """Raises UsageError for an `engine` that is unknown or not installed."""
    return EngineEncoder(encoder, find("engine", engine, ENGINES), precision)
