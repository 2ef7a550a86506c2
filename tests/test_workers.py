"""Whatever happens to one item of `isolated_map` happens to that item alone."""

import itertools
import os
import signal
import subprocess
import sys
import time

import pytest

from pipeline.errors import InputError, JointspaceError
from pipeline.workers import CHUNK, Failure, isolated_map


def square(item: int) -> int:
    return item * item


def misbehave(item: int) -> object:
    """Die, raise or return what cannot travel on some items."""
    if item % 40 == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    if item % 40 == 11:
        os.kill(os.getpid(), signal.SIGSEGV)
    if item % 40 == 13:
        raise ValueError("thirteen")
    if item % 40 == 17:
        raise InputError("seventeen: no such image")
    if item % 40 == 19:
        return lambda: None
    return item


def process_of(_: int) -> int:
    return os.getpid()


@pytest.mark.parametrize("processes", [0, 1, 2])
def test_in_order(processes: int) -> None:
    assert list(isolated_map(square, range(100), processes)) == [n * n for n in range(100)]


def test_nothing_to_do() -> None:
    assert list(isolated_map(square, [], 2)) == []


def test_every_failure_costs_one_item() -> None:
    results = list(isolated_map(misbehave, range(80), 2))
    expected = {7: "its worker process died", 11: "its worker process died", 13: "ValueError: thirteen"}
    expected |= {17: "seventeen: no such image"}
    for item, result in enumerate(results):
        if item % 40 == 19:
            assert isinstance(result, Failure) and "pickle" in result.reason
        else:
            assert result == (Failure(expected[item % 40]) if item % 40 in expected else item)


def test_exceptions_in_this_process() -> None:
    assert list(isolated_map(misbehave, [12, 13, 14], 0)) == [12, Failure("ValueError: thirteen"), 14]


def test_other_processes_do_the_work() -> None:
    assert os.getpid() not in set(isolated_map(process_of, range(3 * CHUNK), 2))


def test_items_are_drawn_lazily() -> None:
    drawn = []
    endless = (drawn.append(n) or n for n in itertools.count())
    results = isolated_map(square, endless, 2)
    assert [next(results) for _ in range(3)] == [0, 1, 4]
    results.close()
    assert len(drawn) <= 6 * CHUNK


def test_an_exception_of_the_items_passes() -> None:
    def items():
        yield 1
        raise KeyError("reader")

    with pytest.raises(KeyError, match="reader"):
        list(isolated_map(square, items(), 1))


def test_workers_that_cannot_start_are_no_items_fault() -> None:
    # The main module of a program read from a pipe cannot be imported again by a new process.
    program = "from pipeline.workers import isolated_map\nprint(list(isolated_map(abs, range(9), 2)))"
    result = subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True, timeout=60)
    assert (
        result.returncode == 1
        and JointspaceError.__name__ in result.stderr
        and "set their number to 0" in result.stderr
    )


def test_workers_end_with_their_parent(tmp_path) -> None:
    program = tmp_path / "parent.py"
    program.write_text(
        "import os, signal\nfrom test_workers import process_of\nfrom pipeline.workers import isolated_map\n"
        "if __name__ == '__main__':\n"
        "    results = isolated_map(process_of, range(1000), 1)\n"
        "    print(next(results), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = os.pathsep.join([os.path.dirname(__file__), os.path.dirname(os.path.dirname(__file__))])
    result = subprocess.run(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path},
    )
    worker = int(result.stdout)
    for _ in range(100):
        if not _runs(worker):
            return
        time.sleep(0.1)
    pytest.fail(f"worker {worker} outlived its parent")


def _runs(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"  # a zombie runs no more
    except FileNotFoundError:
        return False
