"""Settings of threads, BLAS kernels and the memory allocator, which a process makes once, before it imports NumPy.

OpenBLAS uses Haswell kernels on AVX-512 CPUs that it does not recognise. In a measurement, the choice of a core type
with AVX-512 made single-precision products 1.9 times faster. The threads of OpenMP and OpenBLAS wait for each other in
a busy loop. This loop takes CPU time from the threads that still compute, or from the next sparse product. The settings
let waiting threads sleep instead. The settings are environment variables, which the libraries read when they are
loaded. Therefore this module must not import a numeric library.

The GNU C library returns large freed blocks of memory to the system, and the system fills each new block with zeros.
That takes half the time of a network's forward pass. The process therefore keeps freed blocks.
"""

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
DECODERS_VARIABLE = "JOINTSPACE_DECODERS"
"""Name of the environment variable with the number of decoding processes that this process may start. It is set if a
job has one process for each GPU."""
KEPT_BYTES = 1 << 30
"""Maximum size in bytes of a freed block of memory that the process keeps for its next arrays. Larger blocks are
returned to the system."""


def configure(count: int | None = None) -> None:
    """Set the number of threads of numeric libraries, the wait policy of threads, the BLAS kernels and the memory
    allocator.

    The number of threads is `count`. If `count` is None, it is the number that the user has set in the environment, or
    else the choice of the libraries. Values that the user has set in the environment for the core type
    (OPENBLAS_CORETYPE) or the wait policy are kept. An empty OPENBLAS_CORETYPE leaves the choice to OpenBLAS. Raises
    RuntimeError if NumPy is loaded already, because the settings would then have no effect.
    """
    if "numpy" in sys.modules:
        raise RuntimeError(
            "runtime.configure was called after NumPy was imported, so the settings would have no effect. Call"
            " runtime.configure before NumPy is imported."
        )
    if count:
        for variable in THREAD_VARIABLES:
            os.environ[variable] = str(count)
    if os.environ.get("OPENBLAS_CORETYPE") == "":
        # The variable is deleted, because OpenBLAS uses its slowest kernels if the name is empty.
        del os.environ["OPENBLAS_CORETYPE"]
    elif "avx512f" in cpu_flags():
        os.environ.setdefault("OPENBLAS_CORETYPE", "SKYLAKEX")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    keep_freed_memory(KEPT_BYTES)


def keep_freed_memory(largest: int) -> None:
    """Make malloc keep freed blocks of up to `largest` bytes. This has no effect if the C library is not GNU's."""
    mmap_threshold = -3  # M_MMAP_THRESHOLD in malloc.h
    trim_threshold = -1  # M_TRIM_THRESHOLD in malloc.h
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(mmap_threshold, largest)
        mallopt(trim_threshold, largest)


def return_freed_memory() -> None:
    """Return the freed blocks of memory of this process to the system.

    The caller has finished a step that needed much more memory than the next steps. The call has no effect if the C
    library is not GNU's.
    """
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


@contextmanager
def without_collection() -> Iterator[None]:
    """Disable Python's cyclic garbage collection within the `with` block. After the block, the collection is enabled if
    it was enabled before the block.

    Large imports leave no garbage, and the search for garbage takes a sixth of their time.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def threads() -> int:
    """Return the number of threads that `configure` or the user has set in OMP_NUM_THREADS, or else the number of
    cores."""
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)


def cpu_flags() -> frozenset[str]:
    """Return the names that Linux lists for the features of the first CPU, such as avx512f.

    The set is empty on other systems, and on CPUs for which Linux lists no `flags`, such as ARM.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())
