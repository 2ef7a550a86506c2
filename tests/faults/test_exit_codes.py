"""Exit codes: 0 done, 1 failed, 2 wrong use, 3 done with rejects above the limit; one sentence for each."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import warm


def test_1_failed(run: Path) -> None:
    os.truncate(run / "models/ncca/model.safetensors", 9)
    result = warm.jointspace(run, "--quiet", "verify", run)
    assert result.returncode == 1 and result.stderr.startswith("jointspace: 1 files of")
    assert "model.safetensors: truncated" in result.stdout


def test_2_wrong_use(tmp_path: Path) -> None:
    result = warm.jointspace(tmp_path, "serch", "a dog")
    assert result.returncode == 2 and "unknown command serch; did you mean search?" in result.stderr
    assert "Traceback" not in result.stderr


def begin_to_read(folder: Path) -> tuple[subprocess.Popen, int]:
    """A command that waits for what it reads, a pipe, and the end of it that is written to."""
    os.mkfifo(folder / "pipe")
    program = [sys.executable, "-m", "stages.cli", "remove", folder / "index", "--list", folder / "pipe"]
    process = subprocess.Popen(
        program, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which CI may have us ignore
    )  # fmt: skip
    return process, os.open(folder / "pipe", os.O_WRONLY)  # which takes until it opens it, too


def test_130_interrupted(tmp_path: Path) -> None:
    """Ctrl-C while the command waits for what it reads."""
    process, writer = begin_to_read(tmp_path)
    for _ in range(10):  # as Python does not see a signal that comes just before it waits in a read
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30)  # a second signal would interrupt the end of a slow one
            break
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 130 and said.strip() == "jointspace: interrupted"
    os.close(writer)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
