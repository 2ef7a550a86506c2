"""The benchmark of a million, at twenty thousand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_twenty_thousand_pairs_become_a_searchable_index(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks/million.py"), "--images", "20000", "--dim", "64"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [*command, "--folder", str(tmp_path)], env=environment, capture_output=True, text=True, timeout=900
    )
    assert result.returncode == 0, result.stderr[-4000:]
    total = json.loads(result.stdout.splitlines()[-1])
    assert total["images"] == 20000 and total["peak_gib"] < 3
    stages = [line.split("`")[1] for line in result.stdout.splitlines() if line.startswith("| `")]
    assert {"accumulate", "fit", "embed", "evaluate", "build_index"} <= set(stages)
    for row in ("ncca", "sae"):
        path = tmp_path / f"results/million/evaluation/{row}.test.all-sentences.json"
        assert json.loads(path.read_text())["sentence_to_image"]["recall@10"] > 2  # chance: 1 of 1,000 images
