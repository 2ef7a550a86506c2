"""The benchmark of a GPU on a processor, and with no more libraries than a machine with a GPU may have."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from gpu_parts import PARTS, TABLE_LINES  # noqa: E402

ABSENT = (
    "snakemake", "dask", "distributed", "simplemma", "matplotlib", "fastapi", "starlette", "uvicorn",
    "prometheus_client", "spacy", "skimage",
)  # fmt: skip
"""Modules that a machine with torch may lack; those of CARRIED come with the wheels."""


@pytest.mark.slow
def test_it_runs_whole_on_a_processor_without_many_libraries(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({ABSENT}))\n")
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path)}
    command = ["bash", str(ROOT / "benchmarks/gpu_all.sh"), "--output", str(tmp_path / "out"), "--device", "cpu"]
    result = subprocess.run([*command, "--tiny"], capture_output=True, text=True, timeout=900, cwd=tmp_path, env=env)
    lines = [json.loads(line) for line in (tmp_path / "out/gpu.jsonl").read_text().splitlines()]
    log = (tmp_path / "out/log.txt").read_text()
    assert result.returncode == 0, result.stderr
    assert not [line for line in lines if line.keys() & {"error", "skipped"} or line.get("rc")], log[-5000:]
    assert {line["part"] for line in lines} == {name for name, part in PARTS.items() if part.tiny}
    for line in lines:
        if line["part"].startswith("parity") and line["name"] != "ended":
            assert line["least_cosine"] > 0.999, line
    named = {line["name"]: line for line in lines}
    assert named["pytest -m gpu"]["files"] > 5 and "tests collected" in (tmp_path / "out/tests.txt").read_text()
    assert named["features"]["least_cosine"] > 0.999 and len(named["extract"]["shards"]) == 3
    assert named["exact search, k = 10"]["floor"] > 0 and named["lstm"]["ms_a_step"] > 0
    table = (tmp_path / "out/table.txt").read_text()
    assert table == result.stdout and len(table.splitlines()) <= TABLE_LINES
