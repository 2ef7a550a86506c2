"""What becomes of a run whose job, or whose snakemake, ends before its time."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from interrupting import heed
from test_locks import ENVIRONMENT, WAITING, evaluation, snakemake, wait_until_signed

SNAKEFILE = """
rule all:
    input: "a.json", "b.json"

rule summarise:
    output: "{name}.json", "{name}.md"
    shell: "PYTHON summarise {wildcards.name}.pipe --output {wildcards.name}.json"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workflow of two jobs, each of which waits for what is written into its pipe."""
    for name in "ab":
        os.mkfifo(tmp_path / f"{name}.pipe")
    (tmp_path / "Snakefile").write_text(SNAKEFILE.replace("PYTHON", f"{WAITING[0]} {WAITING[1]}"))
    return tmp_path


def begin(folder: Path, *arguments: str) -> tuple[subprocess.Popen, dict[str, int]]:
    """A snakemake whose two jobs have begun, and their processes."""
    process = subprocess.Popen(
        [*snakemake(folder, *arguments), "--cores", "2"], env=ENVIRONMENT, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, preexec_fn=heed,
    )  # fmt: skip
    locks = {name: folder / f".{name}.json.lock" for name in "ab"}
    for lock in locks.values():
        wait_until_signed(lock)
    return process, {name: json.loads(lock.read_text())["pid"] for name, lock in locks.items()}


def feed(folder: Path, names: str) -> None:
    for name in names:
        (folder / f"{name}.pipe").write_bytes(evaluation())


def fill(folder: Path) -> None:
    """Put files in the place of the pipes: nobody waits any more."""
    for name in "ab":
        (folder / f"{name}.pipe").unlink()
    feed(folder, "ab")


def again(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(snakemake(folder, *arguments), env=ENVIRONMENT, capture_output=True, text=True)


def check_whole(folder: Path) -> None:
    values = [json.loads((folder / f"{name}.json").read_text()) for name in "ab"]
    assert values[0] == values[1] and values[0][0]["model"] == "m"
    assert not list(folder.glob(".*.tmp.*"))


@pytest.mark.slow
def test_a_killed_job_costs_itself(folder: Path) -> None:
    process, jobs = begin(folder, "--keep-going")
    os.kill(jobs["a"], signal.SIGKILL)
    feed(folder, "b")
    said = process.communicate()[0]
    assert process.returncode == 1 and "Error in rule summarise" in said
    assert (folder / "b.json").exists() and not (folder / "a.json").exists()
    before = (folder / "b.json").stat().st_mtime_ns
    fill(folder)
    assert again(folder).returncode == 0
    check_whole(folder)
    assert (folder / "b.json").stat().st_mtime_ns == before
