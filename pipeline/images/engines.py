"""Encoders computed on a processor by another library than torch."""

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from pipeline import runtime
from pipeline.errors import UsageError, brief
from pipeline.specs.engines import ENGINES, EngineSpec
from pipeline.specs.places import find

BLOCKS = (2, 8)
"""Images that a thread may compute at once. Of few the activations stay in its cache, which is best for convolutions;
of more each weight is used more often, which is best for transformers."""
RUNS = 2
"""How often each is timed."""
EXAMPLE = (1, 256, 288, 3)
"""A shape by which networks of pictures of any size are exported."""

log = logging.getLogger(__name__)

Compute = Callable[[np.ndarray], np.ndarray]


def full_batch() -> int:
    """Images that give every thread something to do."""
    return BLOCKS[-1] * runtime.threads()


def export_program(encoder: nn.Module, shape: tuple[int, ...], any_size: bool = False) -> ExportedProgram:
    """What `encoder` computes of pixels of a `shape`, uint8; with `any_size`, of any height and width."""
    sizes = ({1: Dim.DYNAMIC, 2: Dim.DYNAMIC},) if any_size else None
    with torch.inference_mode(False), torch.no_grad():
        return torch.export.export(encoder, (torch.zeros(shape, dtype=torch.uint8),), dynamic_shapes=sizes)


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
        with refused(self._name, self._precision):
            return self._compile(export_program(self._encoder, shape), self._precision, runtime.threads())


class EngineMaps:
    """`engine_maps.maps(pixels)` computes maps (n, channels, rows, columns) float32 of pixels (n, height, width, 3)
    uint8 of any size, each image on one thread; called, it gives the mean of each map, (n, channels)."""

    def __init__(self, encoder: nn.Module, engine: EngineSpec, precision: str) -> None:
        """`encoder` maps such pixels to such maps, in float32, on the processor. Raises UsageError where `engine` is
        not installed or cannot compute it."""
        compiled = engine.load()
        with refused(engine.name, precision):
            program = export_program(encoder, EXAMPLE, any_size=True)
            self._compute = compiled(program, precision, runtime.threads())

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(runtime.threads())

    def maps(self, pixels: torch.Tensor) -> torch.Tensor:
        pictures = np.ascontiguousarray(pixels.numpy())
        return torch.from_numpy(
            np.concatenate(list(self._threads.map(self._compute, np.split(pictures, len(pictures)))))
        )

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.maps(pixels).mean((2, 3))


@contextmanager
def refused(engine: str, precision: str) -> Iterator[None]:
    """What the library `engine` raises becomes a UsageError; the libraries have no class of exceptions in common."""
    try:
        yield
    except Exception as error:
        raise UsageError(
            f"{engine} cannot compute the encoder in {precision} ({brief(error)}); set extract.engine to auto"
        ) from error


def engine_encoder(encoder: nn.Module, engine: str, precision: str) -> Callable[..., torch.Tensor]:
    """`encoder` by an `engine`. Raises UsageError for one that is unknown, not installed, or cannot compute it."""
    spec = find("engine", engine, ENGINES)
    on_engine = getattr(encoder, "on_engine", None)
    return on_engine(spec, precision) if on_engine else EngineEncoder(encoder, spec, precision)
