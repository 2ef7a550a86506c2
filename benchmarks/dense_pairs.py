"""Fits normalized CCA to a million pairs of dense vectors that are computed while they are read.

    python benchmarks/dense_pairs.py [--pairs 1000000] [--dim 768]

The output is one JSON line with the seconds for the moments, for the fit, and for making the rows. `ours` is the time
for the moments and the fit, without making the rows. `reference` is the time of the bare products X'X, X'Y and Y'Y of
the same number of blocks in the BLAS. `ratio` is `reference` divided by `ours`.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from interleave import parse_options

from pipeline.compute import runtime  # noqa: E402
from pipeline.models.linear.accumulation import MomentsAccumulator  # noqa: E402
from pipeline.models.linear.cca import CCASolver  # noqa: E402
from pipeline.models.linear.moments import BLOCK_ROWS  # noqa: E402

HIDDEN = 64
DIMENSIONS = 128
RIDGES = (0.01, 0.1, 1.0)


class CausedPairs:
    """A source of synthetic pairs. Both vectors of a pair are linear maps of the same HIDDEN random values, with added
    noise. The noise is drawn once, and shifted for each block of pairs.
    """

    def __init__(self, dim: int) -> None:
        self._rng = np.random.default_rng(0)
        self._mixing = [self._rng.standard_normal((HIDDEN, dim), np.float32) for _ in range(2)]
        self._noise = self._rng.standard_normal((BLOCK_ROWS, dim), np.float32)

    def draw(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw `count` pairs, at most BLOCK_ROWS. Return x and y, each (count, dim) in float32."""
        hidden = self._rng.standard_normal((count, HIDDEN), np.float32)
        steps = self._rng.integers(self._noise.shape[1], size=2)
        noise = (np.roll(self._noise[:count], step, axis=1) for step in steps)
        return tuple(hidden @ one + 3 * other for one, other in zip(self._mixing, noise, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=768)
    given = parse_options(parser, globals(), pairs=2000, dim=32, HIDDEN=4, DIMENSIONS=8)
    pairs = CausedPairs(given.dim)
    seconds, cpu_seconds = ({name: 0.0 for name in ("rows", "moments", "products", "fit")} for _ in range(2))

    def timed(name: str, work: Callable[[], Any], times: int = 1) -> Any:
        wall = time.perf_counter()
        busy = time.process_time()
        made = work()
        seconds[name] += times * (time.perf_counter() - wall)
        cpu_seconds[name] += times * (time.process_time() - busy)
        return made

    accumulator = MomentsAccumulator(given.dim, given.dim, runtime.threads())
    for start in range(0, given.pairs, BLOCK_ROWS):
        count = min(BLOCK_ROWS, given.pairs - start)
        x, y = timed("rows", lambda count=count: pairs.draw(count))
        timed("moments", lambda x=x, y=y: accumulator.add(x, y, np.arange(len(x))))
        if start % (8 * BLOCK_ROWS) == 0:  # The bare products are timed on every eighth block.
            timed("products", lambda x=x, y=y: (x.T @ x, x.T @ y, y.T @ y), times=8)
    solver = timed("fit", lambda: CCASolver(accumulator.result()))
    found = timed("fit", lambda: [solver.solve(ridge, ridge, DIMENSIONS) for ridge in RIDGES])
    wall = sum(seconds.values())
    ours = seconds["moments"] + seconds["fit"]
    told = {
        "name": "moments and fit of dense pairs, compared with bare products", "ours": ours,
        "reference": seconds["products"], "ratio": seconds["products"] / ours, "pairs": given.pairs,
        "dim": given.dim, "seconds": seconds, "cpu_seconds": cpu_seconds,
        "correlations": np.round(found[0].values[[0, HIDDEN - 1, HIDDEN]], 3).tolist(),
        "cpu_over_wall": sum(cpu_seconds.values()) / wall,
    }  # fmt: skip
    print(json.dumps(told))


if __name__ == "__main__":
    main()
