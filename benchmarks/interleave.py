"""Comparing two callables fairly on a noisy machine: interleaved pairs in one process, the median of their ratios."""

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

_tiny = False
SHORTEST = 0.01
"""CPU seconds. The operating system does not measure less."""


def parse_options(parser: argparse.ArgumentParser, module: dict[str, Any], **tiny: Any) -> argparse.Namespace:
    """Return the options of a benchmark.

    `--tiny` shows within seconds that the benchmark runs, and measures nothing. The options, and the constants of the
    `module` (its globals), then have the values in `tiny`, and each comparison takes one pair.
    """
    global _tiny
    parser.add_argument("--tiny", action="store_true", help="Show in seconds that it runs; its figures mean nothing.")
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
    """Time `ours` and `reference` in turn, `pairs` times, after one `warm_up` each.

    `ours` and `reference` are median seconds, `ratio` the median of reference / ours pair by pair (above 1 means
    ours is faster), `cpu_over_wall` CPU seconds over wall seconds of all runs. `ours_cpu`, `reference_cpu` and
    `ratio_cpu` are the same in CPU seconds, which mean something on a busy machine as well. With `threads` given, the
    result is marked `void` when cpu_over_wall stays below 0.9 x threads: others were using the machine.
    """
    if _tiny:
        pairs = 1
    elif warm_up:
        ours()
        reference()
    timed: list[tuple[float, float, float, float]] = []
    for _ in range(pairs):
        timed.append((*_seconds(ours), *_seconds(reference)))
    ours_wall, ours_cpu, reference_wall, reference_cpu = (sum(column) for column in zip(*timed, strict=True))
    result: dict[str, Any] = {
        "name": name,
        "ours": statistics.median(a for a, _, _, _ in timed),
        "reference": statistics.median(b for _, _, b, _ in timed),
        "ratio": statistics.median(b / a for a, _, b, _ in timed),
        "pairs": pairs,
        "ours_cpu": statistics.median(a for _, a, _, _ in timed),
        "reference_cpu": statistics.median(b for _, _, _, b in timed),
        "ratio_cpu": statistics.median(b / max(a, SHORTEST) for _, a, _, b in timed),
        "cpu_over_wall": (ours_cpu + reference_cpu) / (ours_wall + reference_wall),
        "processor": describe_processor(),
    }
    if threads:
        result["void"] = result["cpu_over_wall"] < 0.9 * min(threads, os.cpu_count() or 1)
    return result


def report(result: dict[str, Any]) -> None:
    """Print one comparison as one JSON line."""
    print(json.dumps({key: round(value, 5) if isinstance(value, float) else value for key, value in result.items()}))


def _processor_seconds() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


def _seconds(function: Callable[[], Any]) -> tuple[float, float]:
    """Return the wall seconds and the CPU seconds of a call."""
    start, cpu = time.perf_counter(), _processor_seconds()
    function()
    return time.perf_counter() - start, _processor_seconds() - cpu


def describe_processor() -> str:
    """Return the name of the CPU, its family and model, and the widest of its vector instructions."""
    lines = subprocess.run(["lscpu"], capture_output=True, text=True).stdout.splitlines()
    about = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
    wide = [name for name in ("avx2", "avx512f", "avx512_bf16") if name in about.get("Flags", "").split()]
    family = f"family {about.get('CPU family')}, model {about.get('Model')}"
    return f"{about.get('Model name')}, {family}, {' '.join(wide[-1:])}"
