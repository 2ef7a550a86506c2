"""Settings of threads, BLAS kernels and the allocator, which are made once before the first numeric import.

OpenBLAS uses Haswell kernels on AVX-512 CPUs that it does not know. A core type that uses AVX-512 made single-precision
products 1.9 times faster in a measurement. Threads of OpenMP and of OpenBLAS spin while they wait for each other, and
take the CPU from the thread that they wait for, or from the next sparse product. Sleeping threads do not. These
settings are environment variables, which the libraries read when they are loaded, so this module imports no numeric
library.

The GNU C library returns large freed blocks to the system, which must zero every page of the next block. That takes
half the time of a network's forward pass. The process therefore keeps the blocks.
"""

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
KEPT_BYTES = 1 << 30
"""Size of the largest freed block that the process keeps for its next arrays."""


def configure(count: int | None = None) -> None:
    """Set the number of threads (None: the libraries choose), the way in which they wait, BLAS kernels and allocator.

    A core type or wait policy in the user's environment is kept. An empty core type leaves the choice to OpenBLAS.
    Raises RuntimeError if numpy is loaded already, because the settings would then have no effect.
    """
    if "numpy" in sys.modules:
        raise RuntimeError("runtime.configure must be called before numpy is imported")
    if count:
        for variable in THREAD_VARIABLES:
            os.environ[variable] = str(count)
    if os.environ.get("OPENBLAS_CORETYPE") == "":
        # OpenBLAS does not know the empty name, and would use its slowest kernels.
        del os.environ["OPENBLAS_CORETYPE"]
    elif "avx512f" in cpu_flags():
        os.environ.setdefault("OPENBLAS_CORETYPE", "SKYLAKEX")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    keep_freed_memory(KEPT_BYTES)


def keep_freed_memory(largest: int) -> None:
    """Make malloc keep freed blocks of up to `largest` bytes. Does nothing with another C library than GNU's."""
    mmap_threshold = -3  # M_MMAP_THRESHOLD in malloc.h
    trim_threshold = -1  # M_TRIM_THRESHOLD in malloc.h
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(mmap_threshold, largest)
        mallopt(trim_threshold, largest)


@contextmanager
def without_collection() -> Iterator[None]:
    """Switch Python's garbage collection off within the block. Large imports leave no garbage, and looking for it takes
    a sixth of their time."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def threads() -> int:
    """Return the number of threads that `configure` or the user has set, or else the number of cores."""
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)


def cpu_flags() -> frozenset[str]:
    """Return the features of the CPU by Linux's names (avx512f, avx512_bf16, ...), or nothing without Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())
