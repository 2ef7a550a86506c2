"""Compares the moments of 4,096 dense and 3,000 sparse dimensions with the bare rank-k update, and with np.cov.

    python benchmarks/moments.py [--rows 8192]

The ratio of the first line is the speed of the moments, divided by the speed of a loop that only computes the symmetric
rank-k update of the dense view, over the same blocks in memory.
"""

import argparse

from interleave import compare, parse_options, report

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen
from pairs import DIM_X, DIM_Y, make_pairs  # noqa: E402
from scipy.linalg.blas import ssyrk  # noqa: E402
from threadpoolctl import threadpool_info  # noqa: E402

from pipeline.models.linear.accumulation import MomentsAccumulator  # noqa: E402
from pipeline.models.linear.moments import BLOCK_ROWS  # noqa: E402

MALLOC_THRESHOLD = 32 << 20
"""Largest block in bytes that malloc keeps when the block is freed, in a process without the settings of jointspace.
np.cov is measured with this value.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2 * BLOCK_ROWS)
    rows = parse_options(parser, globals(), rows=1024).rows
    x, y = make_pairs(rows)
    owners = np.arange(BLOCK_ROWS)
    blocks = [slice(start, start + BLOCK_ROWS) for start in range(0, rows, BLOCK_ROWS)]

    def ours() -> None:
        accumulator = MomentsAccumulator(DIM_X, DIM_Y, runtime.threads())
        for block in blocks:
            accumulator.add(x[block], y[block], owners[: len(x[block])])
        accumulator.result()

    def covariance() -> None:
        runtime.keep_freed_memory(MALLOC_THRESHOLD)
        np.cov(np.hstack([x, y.toarray()]), rowvar=False, dtype=np.float64)
        runtime.keep_freed_memory(runtime.KEPT_BYTES)

    def rank_k() -> None:
        total = np.zeros((DIM_X, DIM_X), np.float32, order="F")
        for block in blocks:
            total = ssyrk(1.0, x[block].T, beta=1.0, c=total, overwrite_c=1)

    report({**compare("moments over bare rank-k", ours, rank_k, 7, runtime.threads()), "rows": rows, **kernels()})
    report({**compare("moments over np.cov", ours, covariance, 3, runtime.threads()), "rows": rows, **kernels()})


def kernels() -> dict[str, str]:
    """Return the types of CPU for which the OpenBLAS libraries of this process have chosen their kernels, as the text
    `kernels`.
    """
    return {"kernels": ", ".join(sorted({one["architecture"] for one in threadpool_info() if "architecture" in one}))}


if __name__ == "__main__":
    main()
