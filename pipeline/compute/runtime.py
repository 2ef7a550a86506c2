"""Threads, BLAS kernels and the allocator, decided once, before the first numeric import.

OpenBLAS takes Haswell kernels on AVX-512 machines that it does not know; naming a core type that uses
AVX-512 made single-precision products 1.9 times faster where this was measured. Threads of OpenMP and of
OpenBLAS spin while they wait for one another, and so take the processor from the thread that they wait for, or
from the sparse product that comes next; asleep they do not. These settings are environment variables which the
libraries read while they load, so this module imports none of them.

The GNU C library hands large freed blocks back to the system, which must zero every page of the next one:
half the time of a network's forward pass. The process keeps them instead.
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
"""Freed memory that the process keeps for its next arrays; a single larger block still goes back to the system."""


def configure(count: int | None = None) -> None:
    """Set the number of threads (None: leave the libraries' own choice), how they wait, BLAS kernels and allocator.

    A core type or wait policy that the user has put into the environment stays; an empty core type leaves the choice to
    OpenBLAS. Raises RuntimeError when numpy is loaded already, since the settings would then be ignored in silence.
    """
    if "numpy" in sys.modules:
        raise RuntimeError("runtime.configure must be called before numpy is imported")
    if count:
        for variable in THREAD_VARIABLES:
            os.environ[variable] = str(count)
    if os.environ.get("OPENBLAS_CORETYPE") == "":
        del os.environ[
            "OPENBLAS_CORETYPE"
        ]  # OpenBLAS would take the empty name for one it does not know, and its slowest
    elif "avx512f" in cpu_flags():
        os.environ.setdefault("OPENBLAS_CORETYPE", "SKYLAKEX")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    keep_freed_memory(KEPT_BYTES)


def keep_freed_memory(largest: int) -> None:
    """Have malloc keep freed blocks of up to `largest` bytes. Does nothing where the C library is not GNU's."""
    mmap_threshold, trim_threshold = -3, -1  # of malloc.h
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(mmap_threshold, largest)
        mallopt(trim_threshold, largest)


@contextmanager
def without_collection() -> Iterator[None]:
    """Within, Python does not look for garbage: of importing much there is none, and looking is a sixth of the time."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def threads() -> int:
    """The number of threads that `configure` or the user has set; all cores otherwise."""
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)


def cpu_flags() -> frozenset[str]:
    """What the processor can do, in Linux's names (avx512f, avx512_bf16, ...); empty where there is no Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())
