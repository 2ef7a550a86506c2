"""Every benchmark except the benchmarks in WITHOUT_TINY runs with the option --tiny, in sizes that are too small for a
measurement, and writes a result.
"""

import json
import sys
from pathlib import Path

import forked_programs
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from interleave import compare, scale_reference  # noqa: E402

WITHOUT_TINY = {
    "gpu_parts.py": "tests/test_gpu_benchmark.py runs it",
    "gpu_verdict.py": "tests/test_gpu_benchmark.py runs it",
    "migrate.py": "it needs a run that has the features of two encoders",
    "million_moments.py": "dense_pairs.py and moments.py compute the same from memory",
    "pascal_page.py": "it makes a collection and measures nothing",
    "pixels.py": "a whole workflow",
    "text_search.py": "it needs an index with captions, and tests/index/test_text_index.py tests the search",
}
COMPARISON = {"name", "ours", "reference", "ratio", "pairs", "cpu_over_wall"}
LINE_KEYS = {
    "audit.py": "power",
    "build_memory.py": "mebibytes",
    "cold_search.py": "cpu_seconds_ratio",
    "epochs.py": "seconds_per_step",
    "hieroglyphs.py": "signs",
    "hubness.py": "recall_sum",
    "languages.py": "share",
    "likely_matches.py": "coverage",
    "listing.py": "form",
    "million.py": "peak_gib",
    "serve.py": "requests_per_second",
    "short_codes.py": "kept",
    "suggest.py": "sum",
    "tuning_queries.py": "recall_of_captions",
    "vectors.py": "share",
}
"""Benchmark that does not compare two functions -> a key that at least one JSON line of its output has."""
SLOW = {
    "chooser.py", "cold_search.py", "dask_workers.py", "decoding.py", "epochs.py", "index.py", "million.py",
    "moments.py", "sae.py", "serve.py",
}  # fmt: skip
"""Benchmarks that take more than three CPU seconds even with --tiny. Their tests have the mark `slow`."""
SCRIPTS = [path.name for path in sorted((ROOT / "benchmarks").glob("*.py")) if "__main__" in path.read_text()]


def test_the_lists_name_benchmarks_that_exist() -> None:
    assert WITHOUT_TINY.keys() | LINE_KEYS.keys() | SLOW <= set(SCRIPTS)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in SCRIPTS if name not in WITHOUT_TINY],
)
def test_each_benchmark_runs_and_prints_a_result(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOINTSPACE_DATA", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    result = forked_programs.python(tmp_path, ROOT / "benchmarks" / name, "--tiny")
    assert result.returncode == 0, result.stderr[-3000:]
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert not any(line.get("errors") for line in lines), result.stdout
    if name in LINE_KEYS:
        assert any(LINE_KEYS[name] in line for line in lines), result.stdout
    else:
        assert any(line.keys() >= COMPARISON and line["ratio"] > 0 for line in lines), result.stdout


def test_scaling_the_reference_multiplies_wall_seconds_cpu_seconds_and_ratios() -> None:
    result = compare("two sums", lambda: sum(range(1000)), lambda: sum(range(10)), pairs=2)
    scaled = scale_reference(result, 100)
    multiplied = {"reference", "ratio", "reference_cpu", "ratio_cpu"}
    assert scaled == {key: value * 100 if key in multiplied else value for key, value in result.items()}
