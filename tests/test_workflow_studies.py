"""What a finished run of the tiny demo is asked for beside: the papers' tables, a sweep, Snakemake's report."""

import base64
import json
import re
import zipfile
from pathlib import Path

import pytest
from made_up import run_command
from workflow import RESULTS, run_tiny, snakemake


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_tiny(tmp_path_factory.mktemp("run") / "a b'c")


@pytest.mark.slow
def test_snakemake_reports_on_a_run(run: Path) -> None:
    snakemake(run, "all", "--report", "report.zip", "--configfile", "tiny.yaml")
    with zipfile.ZipFile(run / "report.zip") as archive:
        texts = {Path(name).name: archive.read(name).decode() for name in archive.namelist()}
    assert "ncca" in texts["summary.md"] and "What it has cost" in texts["index.html"]
    snakemake(run, "all", "--report", "report.html", "--configfile", "tiny.yaml")
    page = (run / "report.html").read_text()
    for caption in ("what the best model finds", "median and mean rank of every model"):
        assert caption in texts["report.html"] and caption in page
    embedded = [base64.b64decode(data).decode() for data in re.findall('"data_uri": "[^,]*;base64,([^"]+)"', page)]
    assert sorted(embedded) == sorted([texts["summary.md"], texts["index.html"]])
    assert not re.search(r"<(?:script|img|iframe)[^>]* src=.https?:|<link[^>]* href=.https?:", page)  # nothing to fetch


@pytest.mark.slow  # faults/test_studies.py runs the same commands, and reads the numbers
def test_the_tables_of_gong_et_al(run: Path) -> None:
    """By their own target; nothing is measured again that has not changed."""
    assert "recall@1" not in snakemake(run, "tabulate", "--configfile", "tiny.yaml").stdout
    study = run / RESULTS / "study"
    assert "## Table 6." in (study / "tables.md").read_text()
    run_command("verify", run / RESULTS)
    before = {path: path.stat().st_mtime_ns for path in (study / "cells").iterdir()}
    (study / "study.json").unlink()
    snakemake(run, "tabulate", "--configfile", "tiny.yaml")
    assert {path: path.stat().st_mtime_ns for path in (study / "cells").iterdir()} == before


@pytest.mark.slow  # which takes the moments of the tables
def test_a_sweep_needs_no_features_of_training_images(run: Path) -> None:
    run_command("sweep", "ncca", "--run", run / RESULTS)
    swept = run / RESULTS / "sweeps/ncca"
    found = json.loads((swept / "sweep.json").read_text())
    assert [cell["target_folds"] for cell in found["cells"]] == [1, 2, 3, 4, 5]
    lines = (swept / "sweep.csv").read_text().splitlines()
    assert len(lines) == found["combinations"] + 1
    assert (swept / "sweep.svg").read_text().lstrip().startswith("<?xml")
