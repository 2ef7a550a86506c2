"""The device on which tensors are computed, a CPU or a CUDA device, and the number of rows that fit in its memory."""

import getpass
import logging
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from pipeline.compute.workers import private_folder
from pipeline.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from filelock import FileLock
    from torch import Tensor

Result = TypeVar("Result")
Value = TypeVar("Value")

DEVICE_FOLDER = "/dev"
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
DRIVER_FILES = ("nvidia", "nvhost-gpu", "nvgpu", "dxg")
"""Beginnings of the names of files that a CUDA driver makes in DEVICE_FOLDER: for cards, for boards with a built-in
GPU, and for WSL."""

CPU_BATCH_IMAGES = 32
"""Number of images in one forward pass on a CPU, unless the configuration gives one."""
GPU_BATCH_IMAGES = 256
"""Number of images in one forward pass on a GPU, unless the configuration gives one."""
MAX_BATCH_IMAGES = 2048
"""Largest number of images in one forward pass that a GPU is tried with."""
MIN_SPEEDUP = 1.05
"""Speedup that twice as many images at once must reach."""
MIN_COSINE = 0.999
"""Least cosine of an image's features in a larger batch to its features in a smaller batch."""

log = logging.getLogger(__name__)


def find_device(name: str) -> "torch.device":
    """Return the device `name` (auto, cpu, cuda, cuda:N). auto is the first CUDA device, or the CPU if there is none.

    Raises UsageError if the device does not exist.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"device {name} cannot be used here ({reason}); choose auto") from error
    return device


def find_gpu(name: str) -> "torch.device | None":
    """Return the CUDA device `name`, or None for the CPU. Does not import torch (1.5 s) if there cannot be a GPU."""
    if name == "cpu" or (name == "auto" and "torch" not in sys.modules and not may_have_gpu()):
        return None
    device = find_device(name)
    return None if device.type == "cpu" else device


def may_have_gpu() -> bool:
    """Return whether torch might see a CUDA device, judging by the driver's files and CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get(VISIBLE_DEVICES)
    if visible is not None and (not visible.strip() or visible.strip().startswith("-")):
        return False
    if not sys.platform.startswith("linux"):
        return sys.platform == "win32"
    return any(name.startswith(DRIVER_FILES) for name in os.listdir(DEVICE_FOLDER))


def visible_names() -> list[str]:
    """Return the names of the GPUs in CUDA_VISIBLE_DEVICES, or by the driver's files. Does not ask torch."""
    named = os.environ.get(VISIBLE_DEVICES)
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    cards = [file for file in os.listdir(DEVICE_FOLDER) if re.fullmatch(r"nvidia\d+", file)]
    return [str(number) for number in range(len(cards))]


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that this process can use. Asks torch only if there might be a GPU."""
    if not may_have_gpu():
        return []
    import torch

    return visible_names()[: torch.cuda.device_count()]


def upload(values: "np.ndarray | Tensor", device: "torch.device") -> "Tensor":
    """Return `values` on `device`. The copy to a GPU goes on while the CPU continues."""
    import torch

    tensor = torch.as_tensor(values)
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class Arriving:
    """A tensor on its way to the CPU. It is copied while the GPU computes what comes next, for which `.cpu()` waits."""

    def __init__(self, tensor: "Tensor") -> None:
        import torch

        self._here = tensor
        self._copied: torch.cuda.Event | None = None
        if tensor.device.type == "cuda":
            self._here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._here.copy_(tensor, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(tensor.device))

    def numpy(self) -> "np.ndarray":
        """Return the values, after they have arrived."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._here.cpu().numpy()


def place(value: Value, device: "torch.device") -> Value:
    """Return `value` with all its tensors on `device`, also tensors in tuples, lists and dataclasses, but no arrays."""
    return value if device.type == "cpu" else _place_parts(value, device)


def _place_parts(value: object, device: "torch.device") -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return upload(value, device)
    if isinstance(value, list | tuple):
        parts = [_place_parts(part, device) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: _place_parts(getattr(value, each.name), device) for each in fields(value)})
    return value


@contextmanager
def drawn_from(seed: int, device: "torch.device") -> Iterator[None]:
    """Make torch's random numbers within the block follow from `seed` alone, also on `device`.

    The state of the generators outside the block does not change.
    """
    import torch

    gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if gpu else []):
        torch.default_generator.manual_seed(seed)
        if gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def full_float32() -> Iterator[None]:
    """Make a GPU multiply and convolve float32 within the block without rounding to the 10 bits of TF32.

    Rounding to 1 part in 2000 loses the small eigenvalues of a covariance, makes exact search inexact, and changes the
    third digit of features in comparison with the CPU.
    """
    import torch

    before, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32 = convolutions


MEMORY_FULL = re.compile("out of memory|_ALLOC(ATION)?_FAILED|SPARSE_STATUS_INSUFFICIENT_RESOURCES")
"""Messages of CUDA, cuBLAS, cuDNN, cuSPARSE and torch if a GPU's memory is full, or too small for a product."""
NO_ENGINE = "unable to find an engine"
"""Message of torch for a convolution for which every plan failed, most often for lack of memory."""


def memory_is_full(error: RuntimeError, rows: int) -> bool:
    """Return whether a GPU had too little memory for `rows` rows.

    If torch gives no reason, fewer rows are worth a try, but the error for a single row is not about memory.
    """
    return bool(MEMORY_FULL.search(str(error))) or (rows > 1 and NO_ENGINE in str(error))


def grow_batch(describe: "Callable[[int], np.ndarray]", size: int, most: int) -> int:
    """Double the batch size as long as that helps, up to `most`, and return it.

    It helps if the GPU has memory for twice as many rows, if they are faster by MIN_SPEEDUP, and if their features do
    not change. `describe(n)` returns the features (n, dim) of n rows, which repeat the rows of a smaller batch. The
    first of two calls, in which kernels are chosen, is not timed.
    """
    import numpy as np
    import torch

    def measure(rows: int) -> "tuple[float, np.ndarray]":
        describe(rows)
        start = time.perf_counter()
        features = describe(rows)
        return rows / (time.perf_counter() - start), features

    before, expected = measure(size)
    while 2 * size <= most:
        try:
            after, features = measure(2 * size)
        except RuntimeError as error:
            if not memory_is_full(error, 2 * size):
                raise
            break
        again = np.resize(expected, features.shape)
        lengths = np.linalg.norm(features, axis=1) * np.linalg.norm(again, axis=1)
        if not ((features * again).sum(axis=1) >= MIN_COSINE * lengths).all():
            log.warning("%d images at once have other features than %d here; going on with %d", 2 * size, size, size)
            break
        if after < MIN_SPEEDUP * before:
            break
        size, before = 2 * size, after
    torch.cuda.empty_cache()
    return size


class OomBatcher:
    """Work on many rows in batches of at most `size`, which shrinks when a GPU has no memory for so many rows."""

    def __init__(self, size: int, what: str) -> None:
        """`what` is the word for one row in messages."""
        self.size = size
        self.what = what

    def map(self, function: Callable[[slice], Result], count: int) -> list[Result]:
        """Call `function(rows)` on slices that cover `count` rows, and return its results in order.

        The function must change nothing before it has all the memory that it needs. Raises UsageError if there is not
        enough memory for one row.
        """
        results: list[Result] = []
        start = 0
        while start < count:
            rows = slice(start, min(start + self.size, count))
            try:
                results.append(function(rows))
                start = rows.stop
                continue
            except RuntimeError as error:
                if not memory_is_full(error, rows.stop - rows.start):
                    raise
                if rows.stop - rows.start == 1:
                    raise UsageError(f"the GPU has no memory for even one {self.what}; set device to cpu") from error
            import torch  # only here, because a computer without a GPU does not import torch

            # The memory of the failed attempt is free only after the exception has been dropped.
            torch.cuda.empty_cache()
            self.size = (rows.stop - rows.start) // 2
            log.warning("the GPU's memory is full: going on with %d %ss at once", self.size, self.what)
        return results


_held: "list[FileLock]" = []
"""Locks of GPUs, which end with this process in any case."""


def take_gpus(count: int) -> None:
    """Wait for `count` of the visible GPUs that no other process has taken, and hide all others from this process.

    No GPU is visible after `take_gpus(0)`. If at most `count` are visible, all of them are left to this process
    without a lock, because a queue chose them. CUDA must not have started.
    """
    names = visible_names()
    if count == 0:
        os.environ[VISIBLE_DEVICES] = ""
    elif len(names) > count:
        os.environ[VISIBLE_DEVICES] = ",".join(_wait(names, count))


def _wait(names: list[str], count: int) -> list[str]:
    """Wait until this process can lock `count` of the GPUs `names` at once, and return their names.

    This user's jobs lock GPUs in one folder. Raises UsageError if it belongs to another user.
    """
    folder = Path(tempfile.gettempdir()) / f"jointspace-cards-{quote(getpass.getuser(), safe='')}"
    private_folder(folder, "name another by TMPDIR")
    announced = False
    while True:
        mine: dict[str, FileLock] = {}
        for name in names:
            if len(mine) < count and (lock := _lock(folder / quote(name, safe=""))) is not None:
                mine[name] = lock
        if len(mine) == count:
            _held.extend(mine.values())
            return list(mine)
        for lock in mine.values():
            lock.release()
        if not announced:
            log.info("waiting for %d of %d GPUs: other jobs compute on them", count, len(names))
            announced = True
        time.sleep(random.uniform(0.2, 1))


def _lock(path: Path) -> "FileLock | None":
    """Lock a GPU, or return None if another process has locked it."""
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        return None
    return lock
