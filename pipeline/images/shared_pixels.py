"""Pixels that worker processes write where this process reads them, in place of pickles that travel twice."""

import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import cache, partial
from typing import Any

import numpy as np

from pipeline.workers import Failure, ahead, isolated_map


def shared_map(
    function: Callable[[Any], np.ndarray], items: Iterable[Any], processes: int, shape: tuple[int, ...]
) -> Iterator[np.ndarray | Failure]:
    """As `isolated_map`, of a function whose results are uint8 of one `shape`; on Linux they come by memory that the
    processes share. That is not /dev/shm, of which a container has little, but a file in memory without a name."""
    if not processes or not hasattr(os, "memfd_create"):
        yield from isolated_map(function, items, processes)
        return
    slots, size = ahead(processes), int(np.prod(shape))
    file = os.memfd_create("pixels")
    try:
        os.ftruncate(file, slots * size)
        with mmap.mmap(file, slots * size) as memory:
            write = partial(_write, function, f"/proc/{os.getpid()}/fd/{file}", shape)
            placed = ((number % slots, item) for number, item in enumerate(items))
            with closing(isolated_map(write, placed, processes)) as outcomes:
                for number, outcome in enumerate(outcomes):
                    at = number % slots * size
                    yield outcome or np.frombuffer(memory[at : at + size], np.uint8).reshape(shape)
    finally:
        os.close(file)


def _write(function: Callable[[Any], np.ndarray], place: str, shape: tuple[int, ...], placed: tuple[int, Any]) -> None:
    """In a worker process: the result of an item into its slot."""
    slot, item = placed
    pixels, size = function(item), int(np.prod(shape))
    if pixels.shape != shape or pixels.dtype != np.uint8:
        raise TypeError(f"{pixels.dtype} of {pixels.shape} where uint8 of {shape} was to be")
    _attach(place)[slot * size : (slot + 1) * size] = pixels.tobytes()


@cache
def _attach(place: str) -> mmap.mmap:
    with open(place, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)
