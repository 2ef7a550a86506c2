"""Compares two functions on a noisy machine: they run in turn in one process, and the median of the ratios counts."""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

_tiny = False


def parse_options(parser: argparse.ArgumentParser, module: dict[str, Any], **tiny: Any) -> argparse.Namespace:
    """Return the options of a benchmark.

    `--tiny` shows within seconds that the benchmark runs, and measures nothing. The options, and the constants of the
    `module` (its globals), then have the values in `tiny`, and each comparison takes one pair.
    """
    global _tiny
    parser.add_argument(
        "--tiny", action="store_true", help="Check within seconds that the benchmark runs. The figures are not valid."
    )
    options = parser.parse_args()
    _tiny = options.tiny
    if options.tiny:
        module.update({name: value for name, value in tiny.items() if name.isupper()})
        vars(options).update({name: value for name, value in tiny.items() if not name.isupper()})
    return options


def compare(
    name: str,
    ours: Callable[[], Any],
    reference: Callable[[], Any],
    pairs: int = 7,
    threads: int | None = None,
    warm_up: bool = True,
) -> dict[str, Any]:
    """Time the functions `ours` and `reference` in turn, `pairs` times, after one call of each as a `warm_up`.

    The result has the median seconds of both, and `ratio`, the median of reference / ours for each pair of calls. A
    ratio above 1 means that `ours` is faster. `cpu_over_wall` is the number of CPU seconds divided by the number of
    wall seconds of all calls. If `threads` is given, the result is marked as `void` when cpu_over_wall is below 0.9 x
    threads, because other programs then used the machine.
    """
    if _tiny:
        pairs = 1
    elif warm_up:
        ours()
        reference()
    timed: list[tuple[float, float]] = []
    wall = time.perf_counter()
    cpu = _cpu_seconds()
    for _ in range(pairs):
        timed.append((_seconds(ours), _seconds(reference)))
    wall = time.perf_counter() - wall
    cpu = _cpu_seconds() - cpu
    result: dict[str, Any] = {
        "name": name,
        "ours": statistics.median(a for a, _ in timed),
        "reference": statistics.median(b for _, b in timed),
        "ratio": statistics.median(b / a for a, b in timed),
        "pairs": pairs,
        "cpu_over_wall": cpu / wall,
    }
    if threads:
        result["void"] = result["cpu_over_wall"] < 0.9 * min(threads, os.cpu_count() or 1)
    return result


def report(result: dict[str, Any]) -> None:
    """Print one comparison as a JSON line."""
    print(json.dumps({key: round(value, 5) if isinstance(value, float) else value for key, value in result.items()}))


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


def _seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
