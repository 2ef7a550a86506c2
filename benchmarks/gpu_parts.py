"""The parts of gpu_all.sh, which runs each in a process of its own, and the lines that they write.

A line of DIR/gpu.jsonl is one result: its part and name, the card, `seconds`, `peak_gib` of the card's memory and,
where the operations are known, `floor`, the seconds that the ceilings of this very machine allow, and `of_floor`, the
share that was reached. Instead of values there may be an `error`, or why it was `skipped`. With `--tiny` everything is
small and the figures mean nothing.
"""

import argparse
import importlib
import json
import re
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.compute import runtime

ROOT = Path(__file__).parents[1]
MODULES_TO_CARRY = (
    "annotated_types", "duckdb", "faiss", "filelock", "nltk", "pydantic", "pydantic_core", "safetensors", "tqdm",
    "typing_extensions", "typing_inspection", "yaml",
)  # fmt: skip
"""Modules that a machine with torch may lack. Their wheels can be carried to it (docs/gpu-design.md)."""
DEVICE_TESTS = re.compile(r"mark\.gpu|[(,] ?(other_|on_)?device\b[,:)]")
TABLE_LINES = 50


class Part(NamedTuple):
    """`seconds` is the time limit; `tiny` says whether a processor can run the part, too."""

    module: str
    seconds: int
    tiny: bool = True


PARTS = {
    "versions": Part("gpu_parts", 20),
    "ceilings": Part("gpu_parts", 20),
    "tests": Part("gpu_parts", 65),
    "parity_pixels": Part("gpu_pixels", 30),
    "parity_products": Part("gpu_products", 38),
    "end_to_end": Part("gpu_pixels", 85),
    "pieces": Part("gpu_pixels", 35),
    "forward": Part("gpu_pixels", 30),
    "moments": Part("gpu_products", 20),
    "search": Part("gpu_products", 25),
    "training": Part("gpu_products", 35),
    "full_memory": Part("gpu_pixels", 20, tiny=False),
    "compiled": Part("gpu_pixels", 47, tiny=False),
}
"""The parts, the most valuable first in case the rest is lost. The limits add up to the usual budget of 470 seconds."""


class Bench:
    """The tools of a part: the `device`, the sizes, the clock, and the file of results."""

    def __init__(self, part: str, options: argparse.Namespace) -> None:
        import torch

        self.part = part
        self.tiny = options.tiny
        self.path = options.output / "gpu.jsonl"
        self.device = torch.device(options.device)
        self.on_gpu = self.device.type == "cuda"
        self.card = torch.cuda.get_device_name(self.device) if self.on_gpu else "processor"

    def size(self, full: int, tiny: int) -> int:
        return tiny if self.tiny else full

    def seconds(self, work: Callable[[], Any], times: int = 5) -> float:
        """Median seconds of `work` and of what it starts on the device, after one call that does not count."""
        import torch

        taken = []
        for _ in range(1 + self.size(times, 1)):
            start = time.perf_counter()
            work()
            if self.on_gpu:
                torch.cuda.synchronize(self.device)
            taken.append(time.perf_counter() - start)
        return statistics.median(taken[1:])

    def floor(self, product: str, operations: float) -> float | None:
        """Seconds of so many `operations` at the rate of a `product` that the part `ceilings` has measured here."""
        rates = [line["per_s"] for line in read_lines(self.path) if line["name"] == product and "per_s" in line]
        return operations / rates[-1] if rates else None

    def measure(self, name: str, function: Callable[..., dict[str, Any]], *arguments: Any) -> None:
        """Write the line of `function(*arguments)`, whatever happens in it."""
        import torch

        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
        values = guarded(function, *arguments)
        if values.get("floor") and values.get("seconds"):
            values["of_floor"] = values["floor"] / values["seconds"]
        peak = torch.cuda.max_memory_allocated(self.device) / 2**30 if self.on_gpu else None
        append(self.path, {"part": self.part, "name": name, "card": self.card, "peak_gib": peak, **values})

    def parity(self, name: str, work: Callable[[Any], Any]) -> None:
        """Write how far the arrays of `work(device)` (n, dim) are from the processor's."""
        import torch

        self.measure(name, lambda: agreement(*map(work, (self.device, torch.device("cpu")))))


def guarded(function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """The values of `function(*arguments)`; else its error, or what cannot be imported here."""
    try:
        return function(*arguments) or {}
    except ImportError as error:
        return {"skipped": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def agreement(found: Any, expected: Any) -> dict[str, float]:
    """The relative difference of two arrays (n, dim), and the least and median cosine of their rows."""
    found = found.astype(float)
    expected = expected.astype(float)
    difference = ((found - expected) ** 2).sum() ** 0.5 / (expected**2).sum() ** 0.5
    cosines = sorted((found * expected).sum(1) / ((found**2).sum(1) * (expected**2).sum(1)) ** 0.5)
    cosine = {"least_cosine": float(cosines[0]), "median_cosine": float(cosines[len(cosines) // 2])}
    return {"difference": float(difference), **cosine}


def append(path: Path, line: dict[str, Any]) -> None:
    rounded = {key: float(f"{value:.5g}") if isinstance(value, float) else value for key, value in line.items()}
    with path.open("a") as file:
        file.write(json.dumps(rounded) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def versions(bench: Bench) -> None:
    def describe() -> dict[str, Any]:
        import numpy
        import torch
        import torchvision

        values: dict[str, Any] = {module.__name__: module.__version__ for module in (torch, torchvision, numpy)}
        if bench.on_gpu:
            card = torch.cuda.get_device_properties(bench.device)
            values |= {"gib": card.total_memory / 2**30, "cudnn": torch.backends.cudnn.version()}
        missing = [name for name in MODULES_TO_CARRY if find_spec(name) is None]
        return {**values, "python": sys.version.split()[0], "cores": runtime.threads(), "missing": missing}

    bench.measure("versions", describe)


def ceilings(bench: Bench) -> None:
    """Measure the best rates of this machine, with which all other parts are compared."""
    import torch

    side = bench.size(8192, 64)
    count = bench.size(2000, 10)
    here = torch.randint(255, (bench.size(1 << 28, 1 << 20),), dtype=torch.uint8)
    there = here.to(bench.device).repeat(4)
    one = torch.zeros(1, device=bench.device)

    def product(kind: torch.dtype, precision: str) -> dict[str, Any]:
        left, right = (torch.randn(side, side, device=bench.device).to(kind) for _ in range(2))
        torch.set_float32_matmul_precision(precision)
        seconds = bench.seconds(lambda: left @ right)
        return {"seconds": seconds, "per_s": 2 * side**3 / seconds}

    def copy(source: torch.Tensor, passes: int, pinned: bool = False) -> dict[str, Any]:
        """Time a copy to the device. Bytes read and bytes written both count if they are in one memory."""
        target = torch.empty_like(source, device=bench.device)
        source = source.pin_memory() if pinned else source
        seconds = bench.seconds(lambda: target.copy_(source, non_blocking=True))
        return {"seconds": seconds, "per_s": passes * source.nbytes / seconds}

    def launches() -> dict[str, Any]:
        return {"seconds": bench.seconds(lambda: [one.add_(1) for _ in range(count)]) / count}

    for name, kind in (("bf16", torch.bfloat16), ("fp32", torch.float32), ("fp64", torch.float64)):
        bench.measure(name, product, kind, "highest")
    bench.measure("tf32", product, torch.float32, "high")
    bench.measure("copy", copy, there, 2)
    bench.measure("pageable to the device", copy, here, 1)
    bench.measure("pinned to the device", copy, here, 1, bench.on_gpu)
    bench.measure("launch", launches)


def tests(bench: Bench) -> None:
    """pytest -m gpu on the files that have such tests; without a GPU two of them are only collected."""

    def run() -> dict[str, Any]:
        files = [path for path in (ROOT / "tests").rglob("test_*.py") if DEVICE_TESTS.search(path.read_text())]
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-rfE", "--tb=short"]
        for module, option in (("xdist", "-n6"), ("pytest_timeout", "--timeout=40")):
            command += [option] if bench.on_gpu and find_spec(module) else []
        command += sorted(files) if bench.on_gpu else ["--collect-only", *sorted(files)[:2]]
        output = bench.path.with_name("tests.txt")
        with output.open("w") as file:
            subprocess.run([*command, "--continue-on-collection-errors"], cwd=ROOT, stdout=file, stderr=file)
        said = re.findall(r"(\d+)(?:/\d+)? (passed|failed|skipped|tests? collected)", output.read_text())
        red = re.findall(r"^(?:FAILED|ERROR) (\S+)", output.read_text(), re.MULTILINE)  # ERROR: not even collected
        return {"files": len(files), **{outcome: int(count) for count, outcome in said}, "red": red[:10]}

    bench.measure("pytest -m gpu", run)


def table(path: Path) -> None:
    """At most TABLE_LINES lines; what failed or was skipped first, so that it is not cut off."""
    lines = [line for line in read_lines(path) if line["name"] != "ended" or line["rc"]]
    lines.sort(key=lambda line: not line.keys() & {"error", "skipped", "rc"})
    print("card:", next((line["card"] for line in lines if "card" in line), "none"))
    for line in lines[: TABLE_LINES - 2]:
        values = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in line.items()}
        part = values.pop("part")
        name = values.pop("name")
        shown = (f"{key} {value}" for key, value in values.items() if key != "card" and value is not None)
        print(f"{part} | {name} | {', '.join(shown)}"[:200])
    if len(lines) > TABLE_LINES - 2:
        print(f"{len(lines) - TABLE_LINES + 2} more in {path.name}")


def list_parts(options: argparse.Namespace) -> int:
    """The chosen parts that run here, each with its time limit."""
    if options.device != "cpu":
        import torch

        if not torch.cuda.is_available():
            print("There is no CUDA device here that torch can use; run this on a machine with a GPU.", file=sys.stderr)
            return 1
    for name in options.parts or PARTS:
        if PARTS[name].tiny or options.device != "cpu":
            print(name, PARTS[name].seconds)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("list", "run", "table"))
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"there is no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if options.task == "list":
        return list_parts(options)
    if options.task == "table":
        table(options.output / "gpu.jsonl")
    for name in options.parts:
        run(name, options)
    return 0


def run(name: str, options: argparse.Namespace) -> None:
    runtime.configure()
    failed = guarded(lambda: getattr(importlib.import_module(PARTS[name].module), name)(Bench(name, options)))
    if failed:
        append(options.output / "gpu.jsonl", {"part": name, "name": "all of it", **failed})


if __name__ == "__main__":
    sys.exit(main())
