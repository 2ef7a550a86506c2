"""The benchmark of a GPU: where there is none, and with no more libraries than a machine with one may have."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
ABSENT = (
    "faiss", "snakemake", "dask", "distributed", "yaml", "safetensors", "tqdm", "simplemma", "nltk",
    "matplotlib", "fastapi",
)  # fmt: skip
WITHOUT = f"""
import runpy, sys

sys.modules.update(dict.fromkeys({ABSENT}))
sys.argv, sys.path[:0] = sys.argv[1:], [{str(ROOT)!r}, {str(ROOT / "benchmarks")!r}]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(*options: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", WITHOUT, ROOT / "benchmarks/gpu.py", *options]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_it_says_so_in_one_sentence() -> None:
    result = run()
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr == "There is no CUDA device here that torch can use; run this on a machine with a GPU.\n"


@pytest.mark.slow
def test_it_tells_what_a_device_does() -> None:
    small = {"images": 4, "batch": 2, "blocks": 1, "steps": 2, "trained": 60, "vectors": 3000, "queries": 64}
    small |= {"decoders": 2, "lists": 16}
    options = [part for name, value in small.items() for part in (f"--{name}", value)]
    result = run("--device", "cpu", "--networks", "squeezenet1_1", "--pairs", 1, *options)
    assert result.returncode == 0, result.stderr
    lines = {line["name"]: line for line in map(json.loads, result.stdout.splitlines())}
    assert list(lines)[0] == "device" and len(lines) == 10
    assert all(lines[f"training {name}"]["seconds_per_step"] > 0 for name in ("lstm", "dvsa"))
    assert lines["exact search over the bare products"]["right"]
