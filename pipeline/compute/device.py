"""Where tensors are computed, on the processor or on a CUDA device, and how many rows at once its memory takes."""

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

DEVICES = "/dev"
VISIBLE = "CUDA_VISIBLE_DEVICES"
DRIVER_FILES = ("nvidia", "nvhost-gpu", "nvgpu", "dxg")
"""How the files begin that a driver of CUDA devices makes there: of cards, of boards with one built in, of WSL."""

BATCH, GPU_BATCH, LARGEST_BATCH = 32, 256, 2048
"""Images in one forward pass, on a processor and on a GPU, where nobody says how many; how far these are doubled."""
WORTH, SAME = 1.05, 0.999
"""How much faster twice as many images at once have to be; the least cosine of their features to those of fewer."""

log = logging.getLogger(__name__)


def find_device(name: str) -> "torch.device":
    """The device `name` (auto, cpu, cuda, cuda:N); auto is the first CUDA device, or the processor where there is none.

    Raises UsageError for one that is not there.
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
    """The same, None for the processor. Without a GPU torch, which takes 1.5 s to import, is not asked for one."""
    if name == "cpu" or (name == "auto" and "torch" not in sys.modules and not may_have_gpu()):
        return None
    device = find_device(name)
    return None if device.type == "cpu" else device


def may_have_gpu() -> bool:
    """Whether torch might see a CUDA device, by the driver's files and what CUDA_VISIBLE_DEVICES leaves visible."""
    visible = os.environ.get(VISIBLE)
    if visible is not None and (not visible.strip() or visible.strip().startswith("-")):
        return False
    if not sys.platform.startswith("linux"):
        return sys.platform == "win32"
    return any(name.startswith(DRIVER_FILES) for name in os.listdir(DEVICES))


def visible_names() -> list[str]:
    """What CUDA_VISIBLE_DEVICES calls each GPU, by the driver's files where it is not set; torch is not asked."""
    named = os.environ.get(VISIBLE)
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    return [str(number) for number in range(sum(bool(re.fullmatch(r"nvidia\d+", one)) for one in os.listdir(DEVICES)))]


def visible_gpus() -> list[str]:
    """The same of each GPU that this process can use; torch is asked only where there might be one."""
    if not may_have_gpu():
        return []
    import torch

    return visible_names()[: torch.cuda.device_count()]


def upload(values: "np.ndarray | Tensor", device: "torch.device") -> "Tensor":
    """`values` on `device`; to a GPU by a copy that goes on beside what the processor does next."""
    import torch

    tensor = torch.as_tensor(values)
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class Arriving:
    """A tensor on its way to the processor: from a GPU it is copied beside what is computed there next, where `.cpu()`
    would wait for all of that too."""

    def __init__(self, tensor: "Tensor") -> None:
        import torch

        self._here, self._copied = tensor, None
        if tensor.device.type == "cuda":
            self._here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._here.copy_(tensor, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(tensor.device))

    def numpy(self) -> "np.ndarray":
        """Its values, once they are here."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._here.cpu().numpy()


def place(value: Any, device: "torch.device") -> Any:
    """`value` with all tensors in it on `device`: those of tuples, lists and dataclasses too, but no arrays."""
    import torch

    if device.type == "cpu":
        return value
    if isinstance(value, torch.Tensor):
        return upload(value, device)
    if isinstance(value, list | tuple):
        parts = [place(part, device) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: place(getattr(value, each.name), device) for each in fields(value)})
    return value


@contextmanager
def drawn_from(seed: int, device: "torch.device") -> Iterator[None]:
    """Within, torch's random numbers, of `device` too, follow from `seed` alone; outside, nothing has changed."""
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
    """Within, a GPU multiplies and convolves float32 as it stands, and not rounded to the 10 bits of TF32.

    Rounded to 1 part in 2000, the small eigenvalues of a covariance are lost, exact search is none, and features differ
    from the processor's in their third digit.
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


FULL = re.compile("out of memory|_ALLOC(ATION)?_FAILED|SPARSE_STATUS_INSUFFICIENT_RESOURCES")
"""What CUDA, cuBLAS, cuDNN, cuSPARSE and torch say when a GPU's memory is full, or too little for a product."""
NO_ENGINE = "unable to find an engine"
"""What torch says of a convolution whose every plan failed, most often for want of memory."""


def memory_is_full(error: RuntimeError, rows: int) -> bool:
    """Whether a GPU had too little memory for `rows` rows. Where torch does not say why, fewer rows are worth a try;
    with a single one left the error speaks for itself."""
    return bool(FULL.search(str(error))) or (rows > 1 and NO_ENGINE in str(error))


def grow_batch(describe: "Callable[[int], np.ndarray]", size: int, most: int) -> int:
    """`size`, doubled for as long as a GPU has memory for it, twice as many rows at once are faster by `WORTH`, and
    each is described as before; at most `most`.

    `describe(n)` are the features (n, dim) of n rows, which begin with those of fewer rows, over and over. The first of
    two calls, in which kernels are chosen, is not timed.
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
        if not ((features * again).sum(axis=1) >= SAME * lengths).all():
            log.warning("%d images at once have other features than %d here; going on with %d", 2 * size, size, size)
            break
        if after < WORTH * before:
            break
        size, before = 2 * size, after
    torch.cuda.empty_cache()
    return size


class OomBatcher:
    """Work on many rows, at most `size` of them at once; fewer from then on when a GPU has no memory for so many."""

    def __init__(self, size: int, what: str) -> None:
        """`what` is one row called."""
        self.size, self.what = size, what

    def map(self, function: Callable[[slice], Result], count: int) -> list[Result]:
        """`function(rows)` for slices that cover `count` rows, in their order.

        It must change nothing before it has all the memory that it needs. Raises UsageError where there is not enough
        for one row.
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
            import torch  # which is not imported where there is no GPU

            # Only here has the error let go of what the failed attempt held.
            torch.cuda.empty_cache()
            self.size = (rows.stop - rows.start) // 2
            log.warning("the GPU's memory is full: going on with %d %ss at once", self.size, self.what)
        return results


_held: "list[FileLock]" = []
"""Locks that end with this process, however it ends."""


def take_gpus(count: int) -> None:
    """Leave `count` of the visible GPUs visible to this process, such that no other process took: wait until there are.

    No GPU is visible after `take_gpus(0)`. If at most `count` are visible, all of them are left to this process
    without a lock, because a queue chose them. CUDA must not have started.
    """
    names = visible_names()
    if count == 0:
        os.environ[VISIBLE] = ""
    elif len(names) > count:
        os.environ[VISIBLE] = ",".join(_wait(names, count))


def _wait(names: list[str], count: int) -> list[str]:
    """The first `count` of `names` whose locks this process has got, all of them at once."""
    folder, announced = _folder(), False
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


def _folder() -> Path:
    """Where this user's jobs lock cards. Raises UsageError if it is a link, or somebody else's."""
    folder = Path(tempfile.gettempdir()) / f"jointspace-cards-{quote(getpass.getuser(), safe='')}"
    return private_folder(folder, "name another by TMPDIR")


def _lock(path: Path) -> "FileLock | None":
    """The lock of a card; None where another process has it."""
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        return None
    return lock
