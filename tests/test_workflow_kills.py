"""The tiny demo killed again and again, and on workers of a Dask cluster: the same bytes."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from random import Random

import pytest
import yaml
from warm import environment
from workflow import (
    RESULTS,
    TINY,
    command,
    faults_of,
    result_files,
    run_tiny,
    snakemake,
)

KILLS, SHARDS = 5, 4


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_tiny(tmp_path_factory.mktemp("run") / "a b'c")


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bytes(run: Path, tmp_path: Path) -> None:
    """Its lives end at random shares of its files; every second time its jobs live on when snakemake is killed."""
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    rng, quiet = Random(6), {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    count = int((run / "count").read_text())
    for number, files in enumerate(sorted(rng.sample(range(int(0.9 * count)), KILLS))):
        whole = command("all", "--cores", "2", "--configfile", "tiny.yaml")
        process = subprocess.Popen(whole, cwd=tmp_path, env=environment(), start_new_session=True, **quiet)
        while len(result_files(tmp_path)) < files and process.poll() is None:
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 2))
        assert process.poll() is None, "the run must be killed while it is under way"
        os.kill(process.pid, signal.SIGKILL)
        if number % 2 == 0:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        wait_for_orphans(process.pid)
        snakemake(tmp_path, "--unlock", "--configfile", "tiny.yaml")
        assert {fault.reason.split(":")[0] for fault in faults_of(tmp_path)} <= {"uncommitted", "missing", "mixed"}
    snakemake(tmp_path, "all", "--configfile", "tiny.yaml")
    assert not faults_of(tmp_path)
    ours, theirs = (result_files(folder) for folder in (tmp_path, run))
    assert len(ours) == count
    different = [name for name, path in ours.items() if path.read_bytes() != theirs[name].read_bytes()]
    assert different == ["manifest/manifest.json"]  # which names the folder that it lies in


@pytest.mark.slow
def test_two_workers_of_a_cluster_of_which_one_is_killed_make_the_same_bytes(run: Path, tmp_path: Path) -> None:
    """Every job over shards on a Dask cluster of its own; a worker dies when the first shard of features is there."""
    pytest.importorskip("distributed")
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({**TINY, "scheduler": "local", "cluster": {"workers": 2}}))
    with (tmp_path / "output").open("w") as output:
        whole = command("all", "--cores", "2", "--configfile", "tiny.yaml")
        process = subprocess.Popen(whole, cwd=tmp_path, env=environment(), stdout=output, stderr=output)
        kept = kill_a_worker(process, "extract", tmp_path / RESULTS / "features/squeezenet-untrained")
        assert process.wait(timeout=900) == 0, (tmp_path / "output").read_text()[-6000:]
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "a whole shard was made again"
    assert "Restarting worker" in (tmp_path / "output").read_text() and not faults_of(tmp_path)
    ours, theirs = (result_files(folder) for folder in (tmp_path, run))
    different = [name for name, path in ours.items() if path.read_bytes() != theirs[name].read_bytes()]
    assert ours.keys() == theirs.keys()
    assert sorted(different) == ["config.yaml", "manifest/manifest.json"]  # which name the scheduler and the folder


def kill_a_worker(process: subprocess.Popen, stage: str, folder: Path) -> dict[Path, int]:
    """Kill a worker of the command `stage` as soon as `folder` has a shard; which shards it had then, and their times.

    One at least is missing then, which a worker is making.
    """
    import psutil

    while not (kept := {path: path.stat().st_mtime_ns for path in folder.glob("shard-*.h5.json")}):
        assert process.poll() is None, "the run ends too early"
        time.sleep(0.02)
    assert len(kept) < SHARDS, "too late"
    (job,) = (one for one in psutil.Process(process.pid).children(recursive=True) if stage in one.cmdline())
    workers = [one for one in job.children() if any("spawn_main" in word for word in one.cmdline())]
    assert len(workers) == 2
    workers[0].kill()
    return kept


def wait_for_orphans(group: int) -> None:
    """Until no process of a process group is left."""
    deadline = time.monotonic() + 120
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.1)
        pytest.fail("the jobs of a killed snakemake do not end")
