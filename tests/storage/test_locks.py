"""Two runs of one command: the second is refused and told who the first is; the dead hold nothing."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pipeline.errors import JointspaceError
from pipeline.storage.commit import Provenance, seal
from pipeline.storage.json_files import to_json
from pipeline.storage.locks import hold, is_free
from stages.catalogue import COMMANDS
from stages.cli import cli

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "stages.cli", "summarise"]
WAITING = [sys.executable, Path(__file__).with_name("waiting.py")]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def evaluation() -> bytes:
    scores = {"recall@1": 1.0, "recall@5": 1.0, "recall@10": 1.0, "median_rank": 1.0, "mean_rank": 1.0}
    both = {"image_to_sentence": scores, "sentence_to_image": scores}
    about = {"model": "ncca", "split": "test", "protocol": "all-sentences", "n_images": 1, "n_sentences": 1}
    path = Path("run/evaluation/ncca.test.all-sentences.json")
    return to_json(seal(path, {**about, **both}, {}, Provenance(Path("run"), "evaluate", 1)).value)


def begin(run: Path) -> Path:
    """A run of one evaluation, whose file this is."""
    (run / "evaluation").mkdir(parents=True)
    (run / "config.yaml").write_text("models: [ncca]\nevaluate: {splits: [test], protocols: [all-sentences]}\n")
    return run / "evaluation/ncca.test.all-sentences.json"


def summarise(run: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*COMMAND, "--run", run], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300
    )


def wait_until_signed(lock: Path) -> None:
    deadline = time.monotonic() + 300
    while not (lock.exists() and lock.stat().st_size):
        assert time.monotonic() < deadline, "nobody took the lock"
        time.sleep(0.02)


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[subprocess.Popen]:
    """A process that writes the summary of the run in `tmp_path`, for as long as its input is open."""
    begin(tmp_path).write_bytes(evaluation())
    place = tmp_path / "evaluation/summary.json"
    process = subprocess.Popen([*WAITING, place], cwd=ROOT, env=ENVIRONMENT, stdin=subprocess.PIPE)
    wait_until_signed(tmp_path / "evaluation/.summary.json.lock")
    yield process
    process.kill()
    process.wait()


def test_the_second_run_of_a_command_names_the_first(busy: subprocess.Popen, tmp_path: Path) -> None:
    written = tmp_path / "evaluation/summary.json"
    refused = summarise(tmp_path)
    sentence = (
        f"jointspace: {written} is being written by process {busy.pid} on {socket.gethostname()}"
        f" (waiting.py {written}) since "
    )
    assert refused.returncode == 1 and refused.stderr.startswith(sentence)
    rest = refused.stderr.removeprefix(sentence)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S+; wait for it, or stop it\n", rest), rest
    assert not written.exists()
    busy.stdin.close()
    assert busy.wait(60) == 0
    assert summarise(tmp_path).returncode == 0 and written.exists()
    assert not list(written.parent.glob(".*"))


def test_a_killed_holder_holds_nothing(busy: subprocess.Popen, tmp_path: Path) -> None:
    lock, written = tmp_path / "evaluation/.summary.json.lock", tmp_path / "evaluation/summary.json"
    assert not is_free(lock, remove=True)
    busy.kill()
    busy.wait()
    assert lock.exists() and is_free(lock)
    assert summarise(tmp_path).returncode == 0
    assert written.exists() and not lock.exists()


def test_one_folder_has_one_lock_by_whatever_name(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with hold(tmp_path / "real"), hold(tmp_path / "real" / "within"):
        refused = pytest.raises(JointspaceError, match=f"link is being written by process {os.getpid()} ")
        with refused, hold(tmp_path / "link"):
            pass
    with hold(tmp_path / "link"):
        pass


def with_output() -> list[str]:
    commands = {name: cli.get_command(click.Context(cli), name) for name in COMMANDS}
    return [name for name, c in commands.items() if any(one.name == "output" and one.required for one in c.params)]


def test_every_command_locks_its_output(tmp_path: Path) -> None:
    for name in with_output():
        command = cli.get_command(click.Context(cli), name)
        arguments = {option.name: None for option in command.params}
        arguments |= {"root": tmp_path} if "root" in arguments else {}
        with hold(tmp_path / "x"), pytest.raises(JointspaceError, match="is being written by"):
            command.callback(**{**arguments, "output": tmp_path / "x"})
