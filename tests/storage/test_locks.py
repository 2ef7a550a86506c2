"""Locks: a second process is refused with the name of the first, and a dead process does not hold a lock."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import click
import pytest
from synthetic_run import make_stage

from pipeline.errors import JointspaceError
from pipeline.storage.locks import hold, is_free
from stages.catalogue import COMMANDS
from stages.cli import cli

ROOT = Path(__file__).parents[2]
HOLDING = """
import sys
from pathlib import Path
from pipeline.storage.locks import hold
with hold(Path(sys.argv[1])):
    sys.stdin.read()
"""
SENTENCE = r" is being written by process {} on {} \(-c .*\) since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\S+\. Wait .*"


@pytest.fixture
def path(run: Path, tmp_path: Path) -> Path:
    """Return the path of the token vocabulary of a copied run. The file has been removed, so that the stage
    `build-token-vocabulary` has to make it again."""
    path = shutil.copytree(run, tmp_path / "run") / "text/tokens.json"
    path.unlink()
    return path


@pytest.fixture
def busy(path: Path) -> Iterator[subprocess.Popen]:
    """Start a process that holds the lock of `path` until its standard input is closed."""
    program = [sys.executable, "-c", HOLDING, path]
    process = subprocess.Popen(program, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE)
    lock = path.with_name(".tokens.json.lock")
    deadline = time.monotonic() + 300
    while not (lock.exists() and lock.stat().st_size):
        assert time.monotonic() < deadline, "no process took the lock"
        time.sleep(0.02)
    yield process
    process.kill()
    process.wait()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs the file system proc")
def test_a_lock_that_cannot_be_created_is_not_held_by_another_process() -> None:
    reason = r"cannot write /proc/x, because its lock /proc/\.x\.lock cannot be created \(No such file"
    with pytest.raises(JointspaceError, match=reason), hold(Path("/proc/x")):
        pass


def write(path: Path) -> None:
    make_stage("build_token_vocabulary", path.parents[1])


def test_the_second_run_of_a_command_names_the_first(busy: subprocess.Popen, path: Path) -> None:
    with pytest.raises(JointspaceError) as refused:
        write(path)
    told = SENTENCE.format(busy.pid, re.escape(socket.gethostname()))
    assert re.fullmatch(re.escape(str(path)) + told, str(refused.value)) and refused.value.exit_code == 1
    assert not path.exists()
    busy.stdin.close()
    assert busy.wait(60) == 0
    write(path)
    assert path.exists() and not list(path.parent.glob(".*"))


def test_a_killed_process_holds_no_lock(busy: subprocess.Popen, path: Path) -> None:
    lock = path.with_name(".tokens.json.lock")
    assert not is_free(lock, remove=True)
    busy.kill()
    busy.wait()
    assert lock.exists() and is_free(lock)
    write(path)
    assert path.exists() and not lock.exists()


def test_folder_has_one_lock_under_all_its_names(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with hold(tmp_path / "real"), hold(tmp_path / "real" / "within"):
        refused = pytest.raises(JointspaceError, match=f"link is being written by process {os.getpid()} ")
        with refused, hold(tmp_path / "link"):
            pass
    with hold(tmp_path / "link"):
        pass


def test_a_command_that_waits_begins_when_the_lock_is_free(tmp_path: Path) -> None:
    order: list[str] = []

    def wait() -> None:
        with hold(tmp_path / "x", wait=True):
            order.append("second")

    with hold(tmp_path / "x"):
        thread = Thread(target=wait)
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"] and not list(tmp_path.iterdir())


ARGUMENTS = {"export": {"kind": "npy"}, "migrate": {"old": ".", "new": "."}}
"""Command -> the arguments that it needs before it locks its output. All other arguments are None in the test."""
LATE = ("add", "init", "remove")
"""Commands that read their input before they lock their output, so that the test would need an input for them."""


def with_output() -> list[str]:
    """Return the commands with an option `--output`, except the commands in LATE."""
    commands = {name: cli.get_command(click.Context(cli), name) for name in COMMANDS if name not in LATE}
    return [name for name, command in commands.items() if any(option.name == "output" for option in command.params)]


def test_every_command_locks_its_output(tmp_path: Path) -> None:
    assert {"apply", "bench", "compare", "export", "migrate", "suggest"} <= {*with_output()}
    for name in with_output():
        command = cli.get_command(click.Context(cli), name)
        arguments = {option.name: None for option in command.params} | ARGUMENTS.get(name, {})
        with hold(tmp_path / "x"), pytest.raises(JointspaceError, match="is being written by"):
            command.callback(**{**arguments, "output": tmp_path / "x"})
