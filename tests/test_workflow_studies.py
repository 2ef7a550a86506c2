"""What a finished run of the tiny demo is asked for beside: the papers' tables, a sweep, Snakemake's report."""

import base64
import re
import zipfile
from pathlib import Path

import pytest
from workflow import run_tiny, snakemake


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
