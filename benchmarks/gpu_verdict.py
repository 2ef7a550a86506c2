"""The last output of gpu_all.sh: a table of the results, then sentences that say what they decide.

python benchmarks/gpu_verdict.py DIR/gpu.jsonl
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

TABLE_LINES = 50
LINE_CHARACTERS = 220
LEAST_COSINE = 0.999
"""Median cosine to the present features from which another decoder may take the place of the present one."""
BESIDE = (
    "of_floor", "bound", "cosine", "pixel_levels", "decode", "forward", "busy", "main_us", "passed",
    "failed", "error", "skipped", "red", "missing", "Model name", "Thread(s) per core", "torch",
)  # fmt: skip
"""Keys that the table shows beside a value."""


def show(value: Any) -> str:
    return (
        f"{value:,.0f}"
        if isinstance(value, float) and value >= 1000
        else f"{value:.4g}"
        if isinstance(value, float)
        else f"{value}"
    )


def table(lines: list[dict[str, Any]]) -> list[str]:
    """Return at most TABLE_LINES lines: first what failed, then one line per name with all its variants."""
    ended = {line["part"] for line in lines if line["name"] == "ended"}
    failed, groups = [], {}
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
    """Return the sentences that say what the figures decide. A missing figure is shown as nan."""
    found = {(line["name"], line.get("variant")): line for line in lines if "value" in line}

    def get(name: str, variant: str, key: str = "value") -> float:
        return found.get((name, variant), {}).get(key, math.nan)

    def best(name: str) -> tuple[float, str]:
        rates = [
            (line["value"], key[1]) for key, line in found.items() if key[0] == name and line["unit"] == "images/s"
        ]
        return max((rate for rate in rates if rate[1] != "resize"), default=(math.nan, "nan"))

    tests = found.get(("pytest -m gpu", ""), {})
    wrong = [*tests.get("red", []), *(line["name"] for line in found.values() if line.get("agrees") is False)]
    agreeing = sum(line.get("agrees") is True for line in found.values())
    said = [f"Of the comparisons with the CPU, {agreeing} agree, and {tests.get('passed', 'nan')} GPU tests pass"]
    said[0] += f", but these are wrong: {', '.join(wrong)}." if wrong else ", and none is wrong."
    for network in ("resnet50", "vit_l_16"):
        key = f"extract {network}", "shards 3 to 12"
        limit = "decoding limits it" if get(*key, "decode") > get(*key, "forward") else "the GPU limits it"
        waits = f"waits for decoders for {get(*key, 'decode'):.0%} of the time"
        busy = f"its GPU is busy for {get(*key, 'busy'):.0%}" if "busy" in found.get(key, {}) else "the load is unknown"
        said.append(f"Extraction by {network} makes {get(*key):,.0f} images/s and {waits}, and {busy}: {limit}.")
    kinds = [name for name, variant in found if variant == "cosine to now" and get(name, variant) >= LEAST_COSINE]
    present = best("Pillow, resized by Pillow")[0]
    rate, kind = max(((best(kind)[0], kind) for kind in kinds), default=(math.nan, "nan"))
    said.append(f"The fastest CPU decoder that agrees is {kind}: {rate / present:.2f} times as fast as now.")
    there = 1 / (1 / best("nvJPEG")[0] + 1 / get("nvJPEG", "resize"))
    worth = "use it" if there > 2 * rate and get("nvJPEG", "resize", "cosine") >= LEAST_COSINE else "do not use it"
    said.append(f"nvJPEG makes {there:,.0f} images/s with its resize, {there / rate:.2f} times that decoder: {worth}.")
    said.append(f"The main process receives at most {best('nothing decoded')[0]:,.0f} images/s.")
    for network in ("resnet50", "vit_l_16"):
        name = f"forward {network}"
        share = f"{get(name, 'as extract', 'of_floor'):.2f} of the floor"
        rate, variant = best(name)
        gain = f"{variant} is the fastest, {rate / get(name, 'as extract'):.2f} times"
        said.append(f"The forward pass of {network} runs at {share}, and {gain}.")
    sums, storing = get("moments of a shard", "5 captions per photo"), get("moments of a shard", "storing")
    share = get("moments of a shard", "5 captions per photo", "of_floor")
    limit = "storing limits it" if storing > sums else "the sums limit it"
    said.append(
        f"A shard's moments take {sums:.0f} ms ({share:.2f} of the floor), storing them {storing:.0f} ms: {limit}."
    )
    shares = [f"{get('exact search', f'k = {k}', 'of_floor'):.2f} for {k} neighbours" for k in (10, 100)]
    said.append(f"Of the floor, exact search reaches {' and '.join(shares)}.")
    return [sentence if "nan" not in sentence else f"Not decided: {sentence}" for sentence in said]


if __name__ == "__main__":
    results = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    print("\n".join([*table(results), "", *conclude(results)]))
