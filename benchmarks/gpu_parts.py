"""The parts of gpu_all.sh, the processes that run them, and the lines that they write.

Each line of DIR/gpu.jsonl is one result: the `part`, a `name`, a `variant`, a `value` in a `unit`, the `precision`, the
`device`, and `peak_gib`, the peak of the GPU's memory. `floor` is the best value in the same unit that the ceilings of
this machine allow, and `of_floor` is the share of the floor that was reached. A line without a value has an `error`, or
the reason why the measurement was `skipped`. Other lines mark when a part has `begun` and `ended`. With `--tiny`, all
sizes are small, and the figures mean nothing.
"""

import argparse
import importlib
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.compute import runtime

if __name__ == "__main__":
    runtime.configure()

import numpy as np  # noqa: E402  after the runtime is configured
import torch  # noqa: E402
import torchvision  # noqa: E402
from gpu_verdict import PROCESSES, read_lines  # noqa: E402

ROOT = Path(__file__).parents[1]
USED = ("pydantic", "duckdb", "faiss", "nltk", "timm", "cv2", "xdist", "simplemma")
"""Libraries without which some parts or tests are left out."""
DEVICE_TESTS = re.compile(r"mark\.gpu|[(,] ?(other_|on_)?device\b[,:)]")
PYTEST_RAN = (0, 1, 2)
"""Exit codes of pytest after which its counts are valid: 0 if all tests passed, 1 if some failed, and 2 if some were
not collected.
"""
running_tests: list[subprocess.Popen] = []


class Bench:
    """The device and the file of results of one part of gpu_all.sh, with functions that choose sizes, measure times and
    write lines.
    """

    def __init__(self, part: str, options: argparse.Namespace) -> None:
        self.part = part
        self.tiny = options.tiny
        self.path = options.output / "gpu.jsonl"
        self.device = torch.device(options.device)
        self.on_gpu = self.device.type == "cuda"
        if self.on_gpu:
            torch.cuda.init()

    def size(self, full: Any, tiny: Any) -> Any:
        return tiny if self.tiny else full

    def seconds(self, work: Callable[[], Any], times: int = 5) -> float:
        """Call `work` once without timing it, and then `times` times (once with --tiny). Return the median seconds of
        these timed calls. Each call is timed until the device has finished.
        """
        taken = []
        for _ in range(1 + self.size(times, 1)):
            start = time.perf_counter()
            work()
            if self.on_gpu:
                torch.cuda.synchronize(self.device)
            taken.append(time.perf_counter() - start)
        return statistics.median(taken[1:])

    def ceiling(self, variant: str) -> float:
        """Return the operations or bytes per second that the part `ceilings` has measured for `variant`, or NaN if
        there is no such measurement.
        """
        lines = [line for line in read_lines(self.path) if line["name"] == "ceiling" and line["variant"] == variant]
        return lines[0].get("per_s", math.nan) if lines else math.nan

    def measure(self, name: str, variant: str, unit: str, precision: str, work: Callable, *arguments: Any) -> None:
        """Call `work(*arguments)`, and write a line with the dictionary that `work` returns. The dictionary has the
        `value` in `unit`, perhaps the `floor`, and further values.

        If `work` fails or its value is not finite, the line has an `error` instead. After an error of CUDA, this
        process ends.
        """
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
        line = {"part": self.part, "name": name, "variant": variant, "unit": unit, "precision": precision}
        line |= guarded(work, *arguments)
        if not line.keys() & {"error", "skipped"} and not math.isfinite(line.get("value", math.nan)):
            line["error"] = f"the value is {line.pop('value', None)}, not a number"
        if line.get("floor") and line.get("value"):
            share = line["value"] / line["floor"]
            line["of_floor"] = share if unit.endswith("/s") else 1 / share
        line["device"] = torch.cuda.get_device_name(self.device) if self.on_gpu else "CPU"
        line["peak_gib"] = torch.cuda.max_memory_allocated(self.device) / 2**30 if self.on_gpu else None
        append(self.path, line)
        if "CUDA error" in line.get("error", ""):
            os._exit(1)  # This process cannot use the GPU any more. A new process runs the parts that are left.


def guarded(function: Callable, *arguments: Any) -> dict[str, Any]:
    """Call `function(*arguments)`, and return its dictionary, or {} if it returns None. If the function fails, return
    {"error": message}, or {"skipped": message} if a module cannot be imported.
    """
    try:
        return function(*arguments) or {}
    except ImportError as error:
        return {"skipped": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def agreement(found: np.ndarray, expected: np.ndarray, allowed: float = 1e-4) -> dict[str, Any]:
    """Compare two arrays (n, dim). Return the `difference` of the arrays relative to the length of `expected`, whether
    this difference is at most `allowed` (`agrees`), and the median `cosine` of the rows of both arrays.
    """
    found = found.astype(float)
    expected = expected.astype(float)
    difference = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
    cosines = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    return {"difference": difference, "agrees": difference <= allowed, "cosine": float(np.median(cosines))}


def append(path: Path, line: dict[str, Any]) -> None:
    """Append `line` as one line of JSON to the file of results `path`, without keys whose value is NaN. The file is
    created if it is missing."""
    with path.open("a") as file:
        file.write(json.dumps({key: value for key, value in line.items() if value == value}) + "\n")


def versions(bench: Bench) -> None:
    lscpu = subprocess.run(["lscpu"], capture_output=True, text=True).stdout
    machine = dict(re.findall(r"^(Model name|Thread.s. per core): +(.+)$", lscpu, re.MULTILINE))
    libraries = {module.__name__: module.__version__ for module in (torch, torchvision, np)}
    missing = [name for name in USED if find_spec(name) is None]
    known = {**machine, **libraries, "python": sys.version.split()[0], "missing": missing}
    bench.measure("machine", "", "CPU threads", "", lambda: {"value": runtime.threads(), **known})


def ceilings(bench: Bench) -> None:
    """Measure the highest rates of matrix products and of memory on this machine, from which the other parts compute
    their floors. Then start the tests.
    """
    side = bench.size(8192, 64)
    here = torch.randint(255, (bench.size(1 << 28, 1 << 20),), dtype=torch.uint8)
    here = here.pin_memory() if bench.on_gpu else here

    there = here.to(bench.device).repeat(4)

    def rate(amount: float, scale: float, work: Callable[[], Any]) -> dict[str, Any]:
        per_s = amount / bench.seconds(work)
        return {"value": per_s / scale, "per_s": per_s}

    for name in ("bfloat16", "float32", "float64", "tf32"):
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        matrix = torch.randn(side, side, device=bench.device).to(getattr(torch, name, torch.float32))
        bench.measure("ceiling", name, "TFLOP/s", name, rate, 2 * side**3, 1e12, lambda matrix=matrix: matrix @ matrix)
    target = torch.empty_like(there)
    bench.measure("ceiling", "memory", "GB/s", "uint8", rate, 2 * there.nbytes, 1e9, lambda: target.copy_(there))
    upload = partial(there[: len(here)].copy_, here, non_blocking=True)
    bench.measure("ceiling", "to the device", "GB/s", "uint8", rate, here.nbytes, 1e9, upload)
    start_tests(bench)


def start_tests(bench: Bench) -> None:
    """Start the GPU tests on the second half of the cores, and keep this process on the first half. Without a GPU, only
    let pytest collect the tests of two files.
    """
    files = sorted(path for path in (ROOT / "tests").rglob("test_*.py") if DEVICE_TESTS.search(path.read_text()))
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-rfE", "--tb=short"]
    command += ["-n8"] if bench.on_gpu and find_spec("xdist") else []
    command += ["--continue-on-collection-errors", *(files if bench.on_gpu else ["--collect-only", *files[:2]])]
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2 if bench.on_gpu else 0
    with bench.path.with_name("tests.txt").open("w") as file:
        os.sched_setaffinity(0, cores[half:])
        running_tests.append(subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file))
        os.sched_setaffinity(0, cores[: half or None])


def tests(bench: Bench) -> None:
    """Wait until the GPU tests have ended. Write a line with the number of tests that passed, and with up to ten names
    each of tests that failed and of tests that could not run. If no tests are running, start them first.

    The GPU tests compare results on the GPU with results on the CPU.
    """

    def outcome() -> dict[str, Any]:
        if not running_tests:
            start_tests(bench)
        if (code := running_tests[0].wait()) not in PYTEST_RAN:
            raise RuntimeError(f"pytest ended with the exit code {code}. Read tests.txt next to gpu.jsonl")
        said = bench.path.with_name("tests.txt").read_text()
        passed = re.search(r"(\d+) passed", said)
        failed, not_run = (re.findall(rf"^{word} (\S+)", said, re.MULTILINE)[:10] for word in ("FAILED", "ERROR"))
        return {"value": int(passed[1]) if passed else 0, "failed": failed, "not_run": not_run}

    bench.measure("pytest -m gpu", "", "passed", "", outcome)


def run(name: str, module: str, options: argparse.Namespace, seconds: float) -> None:
    """Run the part `name`, a function of the module `module`, and write a line before and after it. If the part fails,
    the second line has the error. If the part takes more than `seconds`, kill this process and all processes that it
    has started.
    """
    bench = Bench(name, options)
    append(bench.path, {"part": name, "name": "begun", "at": time.strftime("%T"), "limit": seconds})
    print("===", name, flush=True)
    watch = threading.Timer(seconds, os.killpg, (os.getpgrp(), signal.SIGKILL))
    watch.start()
    failed = guarded(lambda: getattr(importlib.import_module(module), name)(bench))
    watch.cancel()
    append(bench.path, {"part": name, "name": "ended", "at": time.strftime("%T"), **failed})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("process", choices=PROCESSES)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=470, help="how long this process may run")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    begun = {line["part"] for line in read_lines(options.output / "gpu.jsonl")}
    for name, (module, limit) in PROCESSES[options.process].items():
        if name not in begun and time.monotonic() < end:
            run(name, module, options, min(limit, end - time.monotonic()))


if __name__ == "__main__":
    main()
