"""Tests which show that the benchmark for GPUs runs on a CPU, with no more libraries than a machine with a GPU may
have, and that its verdict follows from its results.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from gpu_parts import Bench  # noqa: E402
from gpu_pixels import measure_rate  # noqa: E402
from gpu_verdict import LINE_CHARACTERS, PRESENT, PROCESSES, TABLE_LINES, conclude, table  # noqa: E402

from pipeline.compute.workers import Failure  # noqa: E402

ABSENT = (
    "snakemake", "dask", "distributed", "simplemma", "matplotlib", "fastapi", "starlette", "uvicorn",
    "prometheus_client", "spacy", "skimage", "timm",
)  # fmt: skip
"""Modules that a machine with torch may lack. Without `timm`, the benchmark skips ViT-L/16 and says so."""
RESULT = {"part", "name", "variant", "value", "unit", "precision", "device"}


@pytest.mark.slow
def test_rehearsal_on_a_cpu_runs_every_part(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({ABSENT}))\n")
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path)}
    command = ["bash", str(ROOT / "benchmarks/gpu_all.sh"), "--output", str(tmp_path / "out"), "--device", "cpu"]
    result = subprocess.run([*command, "--tiny"], capture_output=True, text=True, timeout=900, cwd=tmp_path, env=env)
    lines = [json.loads(line) for line in (tmp_path / "out/gpu.jsonl").read_text().splitlines()]
    log = (tmp_path / "out/log.txt").read_text()
    assert result.returncode == 0, result.stderr
    parts = {part for process in PROCESSES.values() for part in process}
    assert {line["part"] for line in lines if line["name"] == "ended"} == parts, log[-5000:]
    failed = [(line["name"], line.get("error")) for line in lines if line.keys() & {"error", "skipped"}]
    assert failed == [("extract vit_l_16", None)], log[-5000:]
    results = {(line["name"], line["variant"]): line for line in lines if "value" in line}
    assert all(line.keys() >= RESULT for line in results.values())
    assert {key for key, line in results.items() if "of_floor" in line} >= {
        ("exact search", "k = 100"), ("forward vit_l_16", "as extract"), ("moments of a shard", "5 captions per photo"),
    }  # fmt: skip
    assert all(line["agrees"] for line in results.values() if "agrees" in line)
    assert results["extract resnet50", "shards 3 to 12"]["cosine"] > 0.999
    assert results["OpenCV, resized by torch", "2 processes"]["value"] > 0
    # This file needs simplemma, which ABSENT hides from the benchmark.
    assert results["pytest -m gpu", ""]["not_run"] == ["tests/generate/test_language_devices.py"]
    output = (tmp_path / "out/table.txt").read_text()
    rows, sentences = (text.splitlines() for text in output.split("\n\n"))
    assert output == result.stdout and len(rows) <= TABLE_LINES and max(map(len, rows)) <= LINE_CHARACTERS
    assert 5 <= len(sentences) <= 11 and all(sentence.endswith(".") for sentence in sentences)


def line(name: str, variant: str, value: float, unit: str = "images/s", **more: Any) -> dict[str, Any]:
    return {"part": "p", "name": name, "variant": variant, "value": value, "unit": unit, "precision": "", **more}


def test_verdict_names_the_limit_and_the_decoder() -> None:
    now = PRESENT
    torchs = "torchvision, resized by torch"
    lines = [
        line("pytest -m gpu", "", 90, "passed", failed=["tests/test_a.py::test_b"], not_run=[]),
        line("extract resnet50", "shards 3 to 12", 3000.0, decode=0.7, forward=0.3, busy=0.4, agrees=True),
        line("extract vit_l_16", "shards 3 to 12", 2000.0, decode=0.1, forward=0.9, busy=0.95, agrees=False),
        *(line(kind, "cosine to now", value, "") for kind, value in ((now, 1.0), (torchs, 0.9995), ("wrong", 0.9))),
        *(line(kind, "14 processes", rate) for kind, rate in ((now, 3000.0), (torchs, 5100.0), ("wrong", 9000.0))),
        line("nvJPEG", "4 threads", 24000.0), line("nvJPEG", "resize", 24000.0, cosine=0.9995),
        line("detector", "float32", 100.0), line("detector", "tf32", 300.0), line("detector", "bfloat16", 450.0),
        line("moments of a shard", "5 captions per photo", 20.0, "ms", of_floor=0.1),
        line("moments of a shard", "storing", 900.0, "ms"),
    ]  # fmt: skip
    tests, resnet, vit, decoder, nvjpeg, *_, detector, moments, search = conclude(lines)
    assert tests.startswith("1 comparisons") and "tests/test_a.py::test_b, extract vit_l_16" in tests
    assert resnet.endswith("decoding limits it.") and vit.endswith("the GPU limits it.")
    assert torchs in decoder and "1.70 times" in decoder
    assert "12,000 images/s" in nvjpeg and nvjpeg.endswith("use it.") and "do not" not in nvjpeg
    assert detector == "The detector is 3.00 times as fast in tf32 and 4.50 times as fast in bfloat16 as in float32."
    assert moments.endswith("storing limits it.") and search.startswith("Not decided")


def test_an_idle_gpu_without_waiting_means_that_the_main_process_limits() -> None:
    values = {"decode": 0.2, "forward": 0.8, "busy": 0.4}
    said = conclude([line("extract resnet50", "shards 3 to 12", 9000.0, **values)])
    assert said[1].endswith("busy for 40% of it: the main process limits it.") and said[2].startswith("Not decided")


def test_an_unknown_load_of_the_gpu_decides_nothing() -> None:
    said = conclude([line("extract resnet50", "shards 3 to 12", 9000.0, decode=0.2, forward=0.8)])
    assert said[1] == (
        "Not decided: Extraction by resnet50 makes 9,000 images/s, waits for decoders for 20% of the time, and keeps"
        " the GPU busy for an unknown share of it."
    )


def test_a_failed_test_with_nan_in_its_name_is_named() -> None:
    failed = ["tests/test_a.py::test_nan_is_refused[nan]"]
    said = conclude([line("pytest -m gpu", "", 90, "passed", failed=failed, not_run=["tests/test_b.py"])])
    assert said[0] == (
        "0 comparisons with the CPU agree, and 90 GPU tests pass; wrong: tests/test_a.py::test_nan_is_refused[nan];"
        " could not run: tests/test_b.py."
    )
    assert "the GPU tests have no result" in conclude([])[0]


def test_a_decoder_without_a_rate_does_not_hide_the_others() -> None:
    now = PRESENT
    failed = "A decoder"
    lines = [line(kind, "cosine to now", 1.0, "") for kind in (failed, now)]
    assert conclude([*lines, line(now, "14 processes", 3000.0)])[3].startswith("The fastest CPU decoder that agrees is")


def test_a_value_that_is_not_a_number_is_an_error(tmp_path: Path) -> None:
    bench = Bench("a part", argparse.Namespace(tiny=True, output=tmp_path, device="cpu"))
    for value in (float("nan"), float("inf"), 2.0):
        bench.measure("name", "variant", "ms", "", lambda value=value: {"value": value})
    written = [json.loads(text) for text in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert [one.get("value") for one in written] == [None, None, 2.0]
    assert [one.get("error") for one in written] == [
        "the value is nan, not a number", "the value is inf, not a number", None,
    ]  # fmt: skip


def test_decoders_that_end_early_have_no_rate() -> None:
    assert measure_rate(iter(range(12)), 2, 10)["value"] > 0
    with pytest.raises(RuntimeError, match="ended after 9 of 10 images"):
        measure_rate(iter(range(11)), 2, 10)
    failures = iter([1, 2, Failure("broken"), 4])
    assert measure_rate(failures, 1, 3) == {"error": "broken"}


def test_table_names_what_died_and_what_did_not_begin_first() -> None:
    lines = [
        {"part": "versions", "name": "begun", "limit": 20.0}, {"part": "versions", "name": "ended"},
        {"part": "ceilings", "name": "begun", "limit": 30.0}, *(line(f"a{n}", "", 1.0) for n in range(90)),
    ]  # fmt: skip
    rows = table(lines)
    assert len(rows) == TABLE_LINES and "forward: the budget left no time" in rows
    assert "ceilings: its process died, or it took more than 30 s" in rows and not any(
        "versions" in row for row in rows
    )
