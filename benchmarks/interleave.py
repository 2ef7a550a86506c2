"""Functions that compare two implementations on a busy machine.

Both implementations run in turn in one process, and the result is the median of the ratios of their times.
"""

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_tiny = False
MIN_CPU_SECONDS = 1e-6
"""Shortest measurable time in CPU seconds. `compare` divides by this time if the first function needs less."""


def parse_options(parser: argparse.ArgumentParser, module: dict[str, Any], **tiny: Any) -> argparse.Namespace:
    """Add the option `--tiny` to `parser`, parse the command line, and return the options of a benchmark.

    With `--tiny`, the options and the constants of `module` (the globals of the benchmark) have the values in `tiny`,
    and each comparison takes one pair. The benchmark then only shows within seconds that it runs. Its figures are not
    valid.
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
    """Time two functions in turn, `pairs` times. If `warm_up` is true, call each function once before that.

    The result has the `name` and the median wall seconds of both functions, as `ours` and `reference`. `ratio` is the
    time of `reference` divided by the time of `ours`, as the median over the pairs. If `ratio` is above 1, the first
    function is faster. `ours_cpu`, `reference_cpu` and `ratio_cpu` are measured in CPU seconds, which are comparable on
    a busy machine as well. `cpu_over_wall` is the number of CPU seconds of all calls divided by the number of wall
    seconds, and `processor` describes the CPU.

    If `threads` is given, the result has the flag `void`. The flag is true if `cpu_over_wall` is below 0.9 times the
    smaller of `threads` and the number of CPUs, because other programs then used the machine.
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
        "ratio_cpu": statistics.median(b / max(a, MIN_CPU_SECONDS) for _, a, _, b in timed),
        "cpu_over_wall": (ours_cpu + reference_cpu) / (ours_wall + reference_wall),
        "processor": describe_processor(),
    }
    if threads:
        result["void"] = result["cpu_over_wall"] < 0.9 * min(threads, os.cpu_count() or 1)
    return result


def scale_reference(result: dict[str, Any], factor: float) -> dict[str, Any]:
    """Return a copy of `result`, the result of `compare`. In the copy, the wall seconds and CPU seconds of the
    reference and both ratios are multiplied by `factor`.

    A caller needs this function if its reference did only 1 / `factor` of the work.
    """
    keys = ("reference", "ratio", "reference_cpu", "ratio_cpu")
    return {**result, **{key: factor * result[key] for key in keys}}


def report(result: dict[str, Any]) -> None:
    """Print `result`, such as the result of `compare`, as a line of JSON. Numbers are rounded to five decimals."""
    print(json.dumps({key: round(value, 5) if isinstance(value, float) else value for key, value in result.items()}))


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _seconds(function: Callable[[], Any]) -> tuple[float, float]:
    """Call `function`, and return the wall seconds and the CPU seconds of the call."""
    start = time.perf_counter()
    cpu = _cpu_seconds()
    function()
    return time.perf_counter() - start, _cpu_seconds() - cpu


def describe_processor() -> str:
    """Return the name of the CPU, its family and model, and the widest of a few vector instructions, as Linux lists
    them. On other systems, `None` stands for the name, the family and the model.
    """
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    about = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    wide = [name for name in ("avx2", "avx512f", "avx512_bf16") if name in about.get("flags", "").split()]
    family = f"family {about.get('cpu family')}, model {about.get('model')}"
    return f"{about.get('model name')}, {family}, {' '.join(wide[-1:])}"
