"""Commands that SIGKILL ends at a random write: no unfinished artefact counts as complete, and a rerun makes the
same files as an undisturbed run."""

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
from disks import equal_except_times, files_of

from pipeline.storage.batch import TEMPORARY
from pipeline.storage.verify import examine

UNFINISHED_REASONS = ("uncommitted", "missing", "mixed", "misplaced")
"""Faults that a killed command may leave for its next run. Truncated and changed files are not among them."""
VARIABLE = ("index", "config.yaml")
"""Beginnings of the paths of JSON and YAML files that contain measured times or the arguments of the last command."""
CHANGE_EVENTS = ("os.rename", "os.remove", "os.link")
"""Audit events of changes to a file, apart from opening it for writing."""


def run_in_fork(command: str, arguments: list[str], last: int = 0) -> tuple[int, int]:
    """Run a command in a forked process, and return its exit code and the number of writes that it began.

    A write opens a file of the run for writing, or renames, links or removes such a file. The process kills itself
    when it begins write number `last`, counted from 1. With 0, the process runs to its end.
    """
    run = arguments[arguments.index("--run") + 1]
    count = itertools.count(1)
    reading, writing = os.pipe()

    def watch(event: str, given: tuple) -> None:
        writes = event in CHANGE_EVENTS or (event == "open" and isinstance(given[2], int) and given[2] & os.O_ACCMODE)
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
    """Kill one call of a command at a random write, run all its calls again, and compare the run with `expected`.

    With a probability of one half, the artefacts of the command (`made`) are deleted before the call.
    """
    call = rng.choice(calls)
    code, writes = run_in_fork(command, call)
    assert code == 0 and writes
    if rng.random() < 0.5:
        for path in made:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert run_in_fork(command, call, rng.randint(1, writes))[0] == -9
    # Every commit record that exists must be true. Files without a commit record count as missing.
    wrong = [fault for fault in examine(run).faults if not fault.reason.startswith(UNFINISHED_REASONS)]
    assert not wrong, (command, wrong)
    for again in calls:
        tiny_run.call(command, [word for word in again if word != "--force"])
    after = examine(run)
    assert not after.faults and not after.temporaries, command
    assert not [path for path in run.rglob(".*") if TEMPORARY.match(path.name)], command
    files = files_of(run)
    expected_files = files_of(expected)
    assert files.keys() == expected_files.keys()
    for name, path in files.items():
        variable = name.startswith(VARIABLE) and path.suffix in (".json", ".yaml")
        assert variable or path.read_bytes() == expected_files[name].read_bytes(), name
        assert path.suffix != ".json" or equal_except_times(path.read_bytes(), expected_files[name].read_bytes()), name


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 12))])
def test_killed_commands_are_completed_to_the_same_bytes(
    finished: Path, collection: Path, tmp_path: Path, seed: int
) -> None:
    """Seed 1 kills `ingest`, `fit` and `build_index`, which write tables, a model and an index.

    The other seeds are tested nightly and kill every fast stage.
    """
    rng = Random(seed)
    killed = shutil.copytree(finished, tmp_path / "killed")
    stages = tiny_run.stages(collection, killed)
    for command in ["ingest", "fit", "build_index"] if seed == 1 else stages:
        kill(killed, finished, command, *stages[command], rng)
