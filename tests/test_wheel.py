"""Tests of the wheel and of the source distribution. The wheel is installed into a new environment that does not have
the clone on its path.
"""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
TINY = {
    "name": "tiny",
    "demo": {"train": 60, "dev": 20, "test": 20, "weak": 40},
    "models": ["ncca"],
}


def call(folder: Path, *words: object) -> str:
    """Run a command in `folder` and return its output. The command does not see the PYTHONPATH of these tests. The test
    fails if the command fails.
    """
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    done = subprocess.run(list(map(str, words)), cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel and the source distribution from the tracked files, and return the folder with both files."""
    folder = tmp_path_factory.mktemp("built")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "source" / name).write_bytes((ROOT / name).read_bytes())
    call(folder, sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", folder / "source")
    return folder / "dist"


@pytest.fixture(scope="module")
def installed(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a new environment, and return the folder of its programs.

    A .pth file lets the environment find the libraries of the environment of these tests. An editable installation of
    jointspace there is not found, because Python does not read the .pth files of a folder that was added by a .pth
    file.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    (site,) = folder.glob("lib/python*/site-packages")
    call(folder, python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", *distributions.glob("*.whl"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


@pytest.mark.slow
def test_a_wheel_runs_the_commands_and_a_tiny_run_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    where = call(tmp_path, installed / "python", "-c", "import pipeline, stages; print(pipeline.__file__)")
    assert Path(where.strip()).is_relative_to(installed.parent)
    assert "jointspace stage --help" in call(tmp_path, installed / "jointspace", "--help")
    assert "torch" in call(tmp_path, installed / "jointspace", "doctor")
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    call(tmp_path, installed / "jointspace", "--quiet", "run", "tiny.yaml", "--cores", 2)
    found = call(tmp_path, installed / "jointspace", "search", "a red bus in the desert")
    assert "scene-" in found and (tmp_path / "results/tiny/report/index.html").stat().st_size > 10_000


@pytest.mark.slow
def test_the_source_distribution_has_the_files_that_a_build_needs(distributions: Path) -> None:
    (archive,) = distributions.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    assert {"Snakefile", "setup.cfg", "README.md", "LICENSE", "config/default.yaml", "stages/rules/common.smk"} <= names
