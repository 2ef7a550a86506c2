"""Threads and BLAS kernels, decided once, before the first numeric import.

OpenBLAS takes Haswell kernels on AVX-512 machines that it does not know; naming a core type that uses
AVX-512 made single-precision products 1.9 times faster where this was measured. Both settings are
environment variables which the libraries read while they load, so this module imports none of them.
"""

import os
import sys
from pathlib import Path

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def configure(count: int | None = None) -> None:
    """Set the number of threads (None: leave the libraries' own choice) and the OpenBLAS core type.

    A core type that the user has put into the environment stays. Raises RuntimeError when numpy is loaded already,
    since the settings would then be ignored in silence.
    """
    if "numpy" in sys.modules:
        raise RuntimeError("runtime.configure must be called before numpy is imported")
    if count:
        for variable in THREAD_VARIABLES:
            os.environ[variable] = str(count)
    if "avx512f" in cpu_flags():
        os.environ.setdefault("OPENBLAS_CORETYPE", "SKYLAKEX")


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
