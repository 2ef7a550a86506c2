"""Jobs of one machine that share its GPUs: who sees which."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_cluster import ROOT

HOLD = "import sys; from pipeline import cards; cards.take(int(sys.argv[1])); print(*cards.visible_names(), flush=True)"
WAIT = "; sys.stdin.read()"


@pytest.fixture
def holders(tmp_path: Path) -> Iterator:
    """Starts processes that take GPUs of four and hold them until they are told to end."""
    started = []
    environment = {**os.environ, "TMPDIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0,1,GPU-a/b,3"}

    def hold(count: int) -> subprocess.Popen:
        command = [sys.executable, "-c", HOLD + WAIT, str(count)]
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield hold
    for process in started:
        process.kill()
        process.communicate()


def seen(process: subprocess.Popen) -> list[str]:
    return process.stdout.readline().split()


def test_each_job_has_a_card_of_its_own(holders) -> None:
    jobs = [holders(1) for _ in range(4)]
    assert sorted(name for job in jobs for name in seen(job)) == sorted(["0", "1", "GPU-a/b", "3"])
    late = holders(2)
    time.sleep(0.5)
    assert late.poll() is None
    jobs[0].kill()  # which frees its lock too, but is one of two
    jobs[0].wait()
    jobs[1].communicate("")
    assert len(set(seen(late))) == 2
