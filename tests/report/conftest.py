"""Fixtures for the tests of the report: a run with the results that the report shows, and a copy of this run."""

import shutil
from pathlib import Path

import pytest
from synthetic_run import make_run, make_stage, write_config


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("run"))
    chosen = {"splits": ["train", "test"], "protocols": ["all-sentences"]}
    write_config(folder, {"models": ["ncca"], "evaluate": chosen})
    make_stage("build_index", folder, "ncca")
    for split in chosen["splits"]:
        make_stage("evaluate", folder, "ncca", split, "all-sentences")
    make_stage("summarise", folder)
    return folder


@pytest.fixture
def own(run: Path, tmp_path: Path) -> Path:
    """Return a copy of the run, which a test can change."""
    return shutil.copytree(run, tmp_path / "run")
