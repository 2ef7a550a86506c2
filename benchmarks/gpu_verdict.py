"""Writes the last output of gpu_all.sh: a table of the results, and sentences about the decisions that follow from the
results.

    python benchmarks/gpu_verdict.py DIR/gpu.jsonl
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

PROCESSES = {
    "checks": {
        "versions": ("gpu_parts", 20), "ceilings": ("gpu_parts", 30), "photos": ("gpu_pixels", 60),
        "tests": ("gpu_parts", 80),
    },
    "pixels": {"extraction": ("gpu_pixels", 230), "decoders": ("gpu_pixels", 130)},
    "networks": {
        "accumulation": ("gpu_networks", 30), "exact_search": ("gpu_networks", 45), "forward": ("gpu_networks", 170),
        "detector": ("gpu_networks", 40),
    },
}  # fmt: skip
"""Mapping from a process to its parts in their order. A part is a function, with the name of its module and its time
limit in seconds.
"""
TABLE_LINES = 50
LINE_CHARACTERS = 260
LEAST_BUSY = 0.8
"""Least load of the GPU, from 0 to 1, at which the GPU is taken as the limit of the speed of extraction."""
PRESENT = "the decoder of extract"
TRANSPORT = "nothing decoded"
NO_RATES = ("cosine to now", "resize")
LEAST_COSINE = 0.999
"""Least median cosine, between the features from another decoder and the features from the decoder of `extract`, at
which the other decoder is usable.
"""
BESIDE = (
    "of_floor", "bound", "cosine", "pixel_levels", "decode", "forward", "busy", "main_us", "failed",
    "not_run", "error", "skipped", "missing", "Model name", "Thread(s) per core", "torch",
)  # fmt: skip
"""Keys of a line whose values the table shows in brackets after the value of the line."""


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def show(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def table(lines: list[dict[str, Any]]) -> list[str]:
    """Return a table of the results `lines`, with at most TABLE_LINES lines of at most LINE_CHARACTERS characters:
    first the failures, then one line for each name with all its variants.
    """
    ended = {line["part"] for line in lines if line["name"] == "ended"}
    begun = {line["part"] for line in lines}
    failed = [f"{part}: the budget left no time" for parts in PROCESSES.values() for part in parts if part not in begun]
    groups: dict[str, list[str]] = {}
    for line in lines:
        beside = ", ".join(f"{key} {show(line[key])}" for key in BESIDE if line.get(key) not in (None, [], ""))
        if line.keys() & {"error", "skipped"}:
            failed.append(f"{line['part']}: {line['name']} {line.get('variant', '')}: {beside}")
        elif line["name"] == "begun" and line["part"] not in ended:
            failed.append(f"{line['part']}: its process died, or it took more than {line['limit']:.0f} s")
        elif "value" in line:
            words = [line["variant"], show(line["value"]), line["unit"], f"({beside})" if beside else ""]
            words.insert(1, f"[{line['precision']}]" if line["precision"] not in ("", line["variant"]) else "")
            groups.setdefault(line["name"], []).append(" ".join(filter(None, words)))
    rows = [*failed, *(f"{name}: {'; '.join(parts)}" for name, parts in groups.items())]
    return [row[:LINE_CHARACTERS] for row in rows[:TABLE_LINES]]


def conclude(lines: list[dict[str, Any]]) -> list[str]:
    """Return sentences about the decisions that follow from `lines`, the results in gpu.jsonl. The first sentence is
    about the tests. Each other sentence begins with `Not decided` if a number that it needs is missing.
    """
    found = {(line["name"], line.get("variant")): line for line in lines if "value" in line}

    def get(name: str, variant: str, key: str = "value") -> float:
        return found.get((name, variant), {}).get(key, math.nan)

    def best(name: str) -> tuple[float, str]:
        """Return the highest rate in the lines with this name, and the variant that has the rate. Variants in NO_RATES
        are left out. If there is no rate, return NaN and `nan`.
        """
        rates = [(line["value"], key[1]) for key, line in found.items() if key[0] == name and key[1] not in NO_RATES]
        return max(rates, default=(math.nan, "nan"))

    tests = found.get(("pytest -m gpu", ""), {"failed": [], "not_run": []})
    passed = f"{tests['value']:.0f} GPU tests pass" if "value" in tests else "the GPU tests have no result"
    wrong = [*tests["failed"], *(line["name"] for line in found.values() if line.get("agrees") is False)]
    agreeing = sum(line.get("agrees") is True for line in found.values())
    checks = f"{agreeing} comparisons with the CPU agree, and {passed}; wrong: {', '.join(wrong) or 'none'}"
    checks += f"; could not run: {', '.join(tests['not_run']) or 'none'}."
    said: list[str] = []
    for network in ("resnet50", "vit_l_16"):
        key = f"extract {network}", "shards 3 to 12"
        waits, computes, busy = (get(*key, share) for share in ("decode", "forward", "busy"))
        limit = "the main process" if busy < LEAST_BUSY else "the GPU" if busy >= LEAST_BUSY else "nan"
        limit = "decoding" if waits > computes else limit
        load = "an unknown share" if math.isnan(busy) else f"{busy:.0%}"
        shares = f"waits for decoders for {waits:.0%} of the time, and keeps the GPU busy for {load} of it"
        said.append(f"Extraction by {network} makes {get(*key):,.0f} images/s, {shares}: {limit} limits it.")
    kinds = [name for name, variant in found if variant == "cosine to now" and get(name, variant) >= LEAST_COSINE]
    present = best(PRESENT)[0]
    rate, kind = max(((best(kind)[0], kind) for kind in kinds if best(kind)[0] > 0), default=(math.nan, "nan"))
    said.append(f"The fastest CPU decoder that agrees is {kind}: {rate / present:.2f} times as fast as now.")
    there = 1 / (1 / best("nvJPEG")[0] + 1 / get("nvJPEG", "resize"))
    cosine = get("nvJPEG", "resize", "cosine")
    worth = "use it" if there > 2 * rate and cosine >= LEAST_COSINE else "do not use it"
    gain = f"{there / rate:.2f} times that decoder, at a cosine of {cosine:.4f}"
    said.append(f"nvJPEG makes {there:,.0f} images/s with its resize, {gain}: {worth}.")
    said.append(f"The main process receives at most {best(TRANSPORT)[0]:,.0f} images/s.")
    for network in ("resnet50", "vit_l_16"):
        name = f"forward {network}"
        share = f"{get(name, 'as extract', 'of_floor'):.2f} of the floor"
        rate, variant = best(name)
        gain = f"{variant} is the fastest, {rate / get(name, 'as extract'):.2f} times"
        said.append(f"The forward pass of {network} runs at {share}, and {gain}.")
    base = get("detector", "float32")
    gains = [f"{get('detector', name) / base:.2f} times as fast in {name}" for name in ("tf32", "bfloat16")]
    said.append(f"The detector is {' and '.join(gains)} as in float32.")
    key = "moments of a shard", "5 captions per photo"
    sums = get(*key)
    storing = get(key[0], "storing")
    limit = "storing limits it" if storing > sums else "the sums limit it"
    share = f"{sums:.0f} ms per shard ({get(*key, 'of_floor'):.2f} of the floor)"
    said.append(f"Accumulation takes {share} and {storing:.0f} ms to store the result: {limit}.")
    shares = [f"{get('exact search', f'k = {k}', 'of_floor'):.2f} for {k} neighbours" for k in (10, 100)]
    said.append(f"Of the floor, exact search reaches {' and '.join(shares)}.")
    return [
        checks,
        *(one if "nan" not in one else f"Not decided: {one.rpartition(':')[0] or one.rstrip('.')}." for one in said),
    ]


if __name__ == "__main__":
    results = read_lines(Path(sys.argv[1]))
    print("\n".join([*table(results), "", *conclude(results)]))
