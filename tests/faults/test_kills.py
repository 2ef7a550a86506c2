"""Commands killed with SIGKILL at any of their writes: nothing half-made passes for whole, and the next run makes the
same."""

import itertools
import os
import shutil
import signal
import sys
from pathlib import Path
from random import Random

import forked_programs
import pytest
import tiny_run
from disks import files_of, same

from pipeline.storage.batch import TEMPORARY
from pipeline.storage.verify import examine

UNDER_WAY = ("uncommitted", "missing", "mixed", "misplaced")
"""What a killed stage may leave for its next run to finish: nothing truncated, nothing changed."""
TIMED = ("index", "config.yaml")
"""Folders and files of a run that have measured times, or what the last command was told."""


CHANGES = ("os.rename", "os.remove", "os.link")


def ask(command: str, arguments: list[str], last: int = 0) -> tuple[int, int]:
    """Has a command run in a fork that kills itself at the `last` write, if any; its exit code, and how many it began.
    A write is a file of the run that is opened to be written, renamed or removed."""
    run, count = arguments[arguments.index("--run") + 1], itertools.count(1)
    reading, writing = os.pipe()

    def watch(event: str, given: tuple) -> None:
        writes = event in CHANGES or (event == "open" and isinstance(given[2], int) and given[2] & os.O_ACCMODE)
        if writes and str(given[0]).startswith(run):
            os.write(writing, b".")
            if next(count) == last:
                os.kill(os.getpid(), signal.SIGKILL)

    def work() -> int:
        forked_programs.limit_threads()
        sys.addaudithook(watch)
        tiny_run.call(command, arguments)
        return 0

    code = os.waitstatus_to_exitcode(os.waitpid(forked_programs.fork(work), 0)[1])
    os.close(writing)
    with open(reading, "rb") as begun:
        return code, len(begun.read())


def kill(run: Path, expected: Path, command: str, calls: list[list[str]], made: list[Path], rng: Random) -> None:
    """Kill a call of a command at one of its writes, its old artefacts there or removed, and run it again."""
    call = rng.choice(calls)
    code, writes = ask(command, call)
    assert code == 0 and writes
    if rng.random() < 0.5:
        for path in made:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert ask(command, call, rng.randint(1, writes))[0] == -9
    # A commit that is there tells the truth; what has none does not exist.
    wrong = [fault for fault in examine(run).faults if not fault.reason.startswith(UNDER_WAY)]
    assert not wrong, (command, wrong)
    for again in calls:
        tiny_run.call(command, [word for word in again if word != "--force"])
    after = examine(run)
    assert not after.faults and not after.temporaries, command
    assert not [path for path in run.rglob(".*") if TEMPORARY.match(path.name)], command
    files, theirs = files_of(run), files_of(expected)
    assert files.keys() == theirs.keys()
    for name, path in files.items():
        timed = name.startswith(TIMED) and path.suffix in (".json", ".yaml")
        assert timed or path.read_bytes() == theirs[name].read_bytes(), name
        assert path.suffix != ".json" or same(path.read_bytes(), theirs[name].read_bytes()), name


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 12))])
def test_killed_commands_are_completed_to_the_same_bytes(
    finished: Path, collection: Path, tmp_path: Path, seed: int
) -> None:
    """A few, one for each kind of artefact: a manifest of shards, a model, a bundle; the long test kills all."""
    rng, killed = Random(seed), shutil.copytree(finished, tmp_path / "killed")
    stages = tiny_run.stages(collection, killed)
    for command in ["ingest", "fit", "build_index"] if seed == 1 else stages:
        kill(killed, finished, command, *stages[command], rng)
