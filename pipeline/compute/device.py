"""Devices for tensors: the choice of a CPU or GPU, copies of tensors to a device, batch sizes that fit in the memory of
a GPU, and locks by which the jobs of a user share GPUs."""

import getpass
import logging
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
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
"""Prefixes of the names of files that a CUDA driver creates in DEVICE_FOLDER.

`nvidia` is for separate GPUs, `nvhost-gpu` and `nvgpu` are for boards with an integrated GPU, and `dxg` is for WSL.
"""

CPU_BATCH_IMAGES = 32
"""Number of images in one forward pass on a CPU, unless the configuration sets another number."""
GPU_BATCH_IMAGES = 256
"""Number of images in one forward pass on a GPU, unless the configuration sets another number. For encoders that take
pixels, `grow_batch` may increase this number."""
MAX_BATCH_IMAGES = 2048
"""Largest number of images in one forward pass on a GPU that `grow_batch` tries during the extraction of features."""
MIN_SPEEDUP = 1.05
"""Smallest speed-up with which `grow_batch` accepts a doubled batch. The speed-up is the number of rows per second with
the doubled batch, divided by the number of rows per second with the batch before."""
MIN_COSINE = 0.999
"""Minimum cosine between an image's features from a larger batch and from the first, smallest batch. If one image has a
smaller cosine, `grow_batch` does not use the larger batch."""

log = logging.getLogger(__name__)


def find_device(name: str) -> "torch.device":
    """Return the device `name` (auto, cpu, cuda, cuda:N). auto is the current CUDA device, or the CPU if torch sees no
    CUDA device.

    Raises UsageError if torch cannot use the device, for example because it does not exist.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"device {name} cannot be used on this machine ({reason}). Set device to auto, which uses a GPU if"
            " possible."
        ) from error
    return device


def find_gpu(name: str) -> "torch.device | None":
    """Return the CUDA device `name` (auto, cpu, cuda, cuda:N), or None for the CPU.

    torch, whose import takes 1.5 s, is not imported if the name is cpu, or if it is auto and the machine cannot have a
    GPU. Raises UsageError if torch cannot use the device.
    """
    if name == "cpu" or (name == "auto" and "torch" not in sys.modules and not may_have_gpu()):
        return None
    device = find_device(name)
    return None if device.type == "cpu" else device


def may_have_gpu() -> bool:
    """Return whether torch might see a CUDA device, judging by CUDA_VISIBLE_DEVICES and the driver's files.

    If CUDA_VISIBLE_DEVICES hides all GPUs, the result is false. Otherwise, the result is true on Windows, and on Linux
    if the driver has created one of the DRIVER_FILES. It is false on other systems.
    """
    visible = os.environ.get(VISIBLE_DEVICES)
    if visible is not None and (not visible.strip() or visible.strip().startswith("-")):
        return False
    if not sys.platform.startswith("linux"):
        return sys.platform == "win32"
    return any(name.startswith(DRIVER_FILES) for name in os.listdir(DEVICE_FOLDER))


def visible_names() -> list[str]:
    """Return the names of the GPUs in CUDA_VISIBLE_DEVICES, without importing torch.

    If the variable is not set, the names are the numbers from 0 on, one for each file `nvidiaN` of the driver.
    """
    named = os.environ.get(VISIBLE_DEVICES)
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    gpu_files = [file for file in os.listdir(DEVICE_FOLDER) if re.fullmatch(r"nvidia\d+", file)]
    return [str(number) for number in range(len(gpu_files))]


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that this process can use, or an empty list. torch is imported only if the machine
    might have a GPU."""
    if not may_have_gpu():
        return []
    import torch

    return visible_names()[: torch.cuda.device_count()]


def upload(values: "np.ndarray | Tensor", device: "torch.device") -> "Tensor":
    """Return `values` as a tensor on `device`.

    A copy from the CPU to a GPU proceeds while the CPU continues. If `values` are on `device` already, they are not
    copied, and the tensor shares their memory.
    """
    import torch

    tensor = torch.as_tensor(values)
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class Arriving:
    """A tensor that is being copied from a GPU to the CPU. A tensor on the CPU is not copied.

    The copy starts when the object is created, and the CPU continues. `numpy` waits only for the copy. In contrast, a
    later call of `tensor.cpu()` would also wait for all work that was given to the GPU in the meantime.
    """

    def __init__(self, tensor: "Tensor") -> None:
        import torch

        self._here = tensor
        self._copied: torch.cuda.Event | None = None
        if tensor.device.type == "cuda":
            self._here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._here.copy_(tensor, non_blocking=True)
            self._copied = torch.cuda.Event(blocking=True)  # The waiting thread sleeps, so that decoders get its core.
            self._copied.record(torch.cuda.current_stream(tensor.device))

    def numpy(self) -> "np.ndarray":
        """Wait until the copy of the tensor to the CPU is complete, and return its values as a NumPy array of the same
        shape. A tensor that was on the CPU shares its memory with the array."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._here.cpu().numpy()


def move_tensors(value: Value, device: "torch.device") -> Value:
    """Return a copy of `value` with its tensors on `device`, including tensors inside tuples, lists and dataclasses.

    NumPy arrays, and values of other types such as dicts, are kept unchanged. If `device` is the CPU, `value` itself
    is returned.
    """
    return value if device.type == "cpu" else _move(value, device)


def _move(value: object, device: "torch.device") -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return upload(value, device)
    if isinstance(value, list | tuple):
        moved = [_move(entry, device) for entry in value]
        return type(value)(*moved) if hasattr(value, "_fields") else type(value)(moved)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: _move(getattr(value, each.name), device) for each in fields(value)})
    return value


@contextmanager
def drawn_from(seed: int, device: "torch.device") -> Iterator[None]:
    """Seed torch's default random generators of the CPU and of `device` with `seed` at the beginning of a `with` block.

    After the block, the generators continue from the state that they had before it.
    """
    import torch

    gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if gpu else []):
        torch.default_generator.manual_seed(seed)
        if gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def full_float32() -> AbstractContextManager[None]:
    """Return a context in which GPUs multiply and convolve float32 numbers in full precision, instead of in TF32.

    TF32 rounds to 10 bits, or 1 part in 2,000. It loses the small eigenvalues of a covariance, makes exact search
    inexact, and changes the third digit of features in comparison with the CPU. After the `with` block, the previous
    setting applies again.
    """
    return _float32_products("highest")


def tf32() -> AbstractContextManager[None]:
    """Return a context in which GPUs multiply and convolve float32 numbers in TF32, which is several times as fast as
    in full precision. After the `with` block, the previous setting applies again."""
    return _float32_products("high")


@contextmanager
def _float32_products(precision: str) -> Iterator[None]:
    import torch

    before = torch.get_float32_matmul_precision()
    convolutions = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = precision == "high"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32 = convolutions


MEMORY_FULL = re.compile("out of memory|_ALLOC(ATION)?_FAILED|SPARSE_STATUS_INSUFFICIENT_RESOURCES")
"""Pattern in a message of CUDA, cuBLAS, cuDNN, cuSPARSE or torch which says that the memory of a GPU is full, or too
small for a product."""
NO_ENGINE = "unable to find an engine"
"""Part of torch's message if all methods for a convolution failed. The usual cause is a lack of memory."""


def memory_is_full(error: RuntimeError, rows: int) -> bool:
    """Return whether the message of `error` says that a GPU had too little memory for a batch of `rows` rows.

    A message with NO_ENGINE names no cause. If there are several rows, such a message counts as a lack of memory,
    because fewer rows may succeed. For a single row, it does not count.
    """
    return bool(MEMORY_FULL.search(str(error))) or (rows > 1 and NO_ENGINE in str(error))


def grow_batch(describe: "Callable[[int], np.ndarray]", size: int, most: int) -> int:
    """Double the batch `size` while this makes the GPU faster, up to `most` rows, and return the final size.

    A doubled batch is accepted if it fits in the GPU's memory, if it computes at least MIN_SPEEDUP times as many rows
    per second as the batch before, and if no features change (see MIN_COSINE). `describe(n)` computes the features (n,
    dim) of a batch of n rows. All batches must consist of the first `size` rows, repeated as often as needed, because
    all features are compared with the features of the first batch. Each size is computed twice, and only the second
    call is timed, because kernels are chosen in the first call.
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
            log.warning(
                "On this GPU, the features of an image differ between batches of %d and batches of %d images, so"
                " batches of %d images are used. You need not do anything.",
                2 * size, size, size,
            )  # fmt: skip
            break
        if after < MIN_SPEEDUP * before:
            break
        size = 2 * size
        before = after
    torch.cuda.empty_cache()
    return size


class OomBatcher:
    """A loop over many rows in batches of at most `size` rows. The size shrinks when a GPU's memory is too small."""

    def __init__(self, size: int, row_name: str) -> None:
        """Set the largest number of rows in a batch, `size`. `row_name` is the word for one row in messages, such as
        `image`."""
        self.size = size
        self.row_name = row_name

    def map(self, function: Callable[[slice], Result], count: int) -> list[Result]:
        """Call `function(rows)` for consecutive slices `rows` of the `count` rows, and return the results in order.

        If a call runs out of GPU memory, the call is repeated with half as many rows, and `size` stays at this number
        for all later slices and calls of `map`. The function must therefore not change any state before it has
        allocated all its memory. Raises UsageError if the memory is too small for one row.
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
                    raise UsageError(
                        f"The GPU's memory is too small for a single {self.row_name}. Set device to cpu, or end other"
                        " programs that use the GPU."
                    ) from error
            import torch  # A machine without a GPU never reaches this import.

            # The memory of the failed call is freed only after the `except` block, which drops the exception.
            torch.cuda.empty_cache()
            self.size = (rows.stop - rows.start) // 2
            log.warning(
                "The GPU's memory is full, so the work continues with at most %d %ss at once. If other programs use the"
                " GPU, end them to make the next run faster.",
                self.size, self.row_name,
            )  # fmt: skip
        return results


_held: "list[FileLock]" = []
"""Locks of the GPUs that this process has taken. The system releases them when the process ends."""


def take_gpus(count: int) -> None:
    """Lock `count` of the visible GPUs for this process, and hide all other GPUs by CUDA_VISIBLE_DEVICES.

    The call waits until other processes of this user have released enough GPUs, and must come before CUDA starts. After
    `take_gpus(0)`, no GPU is visible. If at most `count` GPUs are visible, all of them stay visible, and no lock is
    taken, because a job queue has chosen these GPUs. Raises UsageError if the folder of the locks cannot be created, is
    a link, or belongs to another user.
    """
    names = visible_names()
    if count == 0:
        os.environ[VISIBLE_DEVICES] = ""
    elif len(names) > count:
        os.environ[VISIBLE_DEVICES] = ",".join(_wait(names, count))


def _wait(names: list[str], count: int) -> list[str]:
    """Wait until this process can lock `count` of the GPUs `names` at the same time, and return the names of these
    GPUs.

    All jobs of a user lock GPUs by files in the same folder. Raises UsageError if this folder cannot be created, is a
    link, or belongs to another user.
    """
    folder = Path(tempfile.gettempdir()) / f"jointspace-cards-{quote(getpass.getuser(), safe='')}"
    private_folder(folder, "set TMPDIR to another folder")
    is_logged = False
    while True:
        locked: dict[str, FileLock] = {}
        for name in names:
            if len(locked) < count and (lock := _lock(folder / quote(name, safe=""))) is not None:
                locked[name] = lock
        if len(locked) == count:
            _held.extend(locked.values())
            return list(locked)
        for lock in locked.values():
            lock.release()
        if not is_logged:
            log.info(
                "This job waits until %d of %d GPUs are free, because other jobs use too many GPUs. The work continues"
                " when these jobs end.",
                count, len(names),
            )  # fmt: skip
            is_logged = True
        time.sleep(random.uniform(0.2, 1))


def _lock(path: Path) -> "FileLock | None":
    """Lock the file `path`, which stands for a GPU. Return the lock, or None at once if another process has locked
    it."""
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        return None
    return lock
