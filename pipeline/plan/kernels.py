"""Which of OpenBLAS's kernels multiply fastest on this processor, by trials of a third of a second of one core."""

import os
import subprocess
import sys

CORE_TYPES = ("SKYLAKEX", "HASWELL")
"""With AVX-512, and without."""
ROUNDS = 3
"""Trials of each, in turns, of which the best counts: other work makes a trial slower, never faster."""
TRIAL = """
import time
import numpy

x = numpy.random.default_rng(0).standard_normal((512, 4096), numpy.float32)
x.T @ x  # a rank-k update
best, end = float("inf"), time.perf_counter() + 0.3
while (start := time.perf_counter()) < end:
    x.T @ x
    best = min(best, time.perf_counter() - start)
print(x.shape[0] * x.shape[1] ** 2 / best)
"""


def try_kernels() -> dict[str, float]:
    """Core type -> operations a second of a rank-k update in single precision, as `moments` are summed by. Each trial
    has a process of its own, since OpenBLAS chooses its kernels as it is loaded."""
    rates = dict.fromkeys(CORE_TYPES, 0.0)
    for _ in range(ROUNDS):
        for name in CORE_TYPES:
            environment = {**os.environ, "OPENBLAS_CORETYPE": name, "OPENBLAS_NUM_THREADS": "1"}
            done = subprocess.run([sys.executable, "-P", "-c", TRIAL], env=environment, capture_output=True, text=True)
            rates[name] = max(rates[name], float(done.stdout) if done.returncode == 0 else 0.0)
    return rates
