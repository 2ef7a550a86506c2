"""Jobs of one machine that share its GPUs: who sees which."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_cluster import ROOT, profile_of, run_by

from pipeline import cards, device
from pipeline.errors import UsageError

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


def test_what_a_queue_chose_needs_no_lock(holders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two submissions may both call their card 0."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(cards, "_lock", lambda name: pytest.fail("locked"))
    cards.take(1)
    assert cards.visible_names() == ["0"]
    cards.take(0)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "" and cards.visible_names() == []


def test_cards_are_counted_by_the_files_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    monkeypatch.setattr(device, "DEVICES", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert cards.visible_names() == ["0", "1"]


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs").mkdir()
    monkeypatch.setattr(cards.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(cards.getpass, "getuser", lambda: "me")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    place = tmp_path / "jointspace-cards-me"
    place.symlink_to(tmp_path / "theirs")
    with pytest.raises(UsageError, match="is not a folder of yours; remove it"):
        cards.take(1)
    place.unlink()
    place.write_text("precious")
    with pytest.raises(UsageError, match="is not a folder of yours"):
        cards.take(1)
    assert place.read_text() == "precious" and not list((tmp_path / "theirs").iterdir())


JOBS = """
import sys
rule all:
    input: expand("job-{n}", n=range(4))
rule one:
    output: "job-{n}"
    resources: gpu=1
    shell: "{sys.executable} job.py {resources.gpu} {output}"
"""
JOB = f"""
import sys, time, pathlib
sys.path.insert(0, {str(ROOT)!r})
from pipeline import cards, device
cards.take(int(sys.argv[1]))
pathlib.Path(f"started-{{sys.argv[2]}}").touch()
end = time.monotonic() + 120
while len(list(pathlib.Path().glob("started-*"))) < 4:
    assert time.monotonic() < end, "the others wait for this one"
    time.sleep(0.05)
pathlib.Path(sys.argv[2]).write_text(" ".join(cards.visible_names()))
"""


def test_the_profile_of_one_machine_runs_a_job_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four jobs that end only when all of them have started, on four cards."""
    (tmp_path / "job.py").write_text(JOB)
    profile = profile_of("gpu")
    profile |= {"resources": ["gpu=4", "mem_mb=64000"], "cores": 4}
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    run_by(tmp_path, profile, JOBS)
    assert sorted((tmp_path / f"job-{number}").read_text() for number in range(4)) == ["0", "1", "2", "3"]
