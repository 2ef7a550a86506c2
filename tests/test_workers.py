"""Tests of worker processes: a failure costs only its item, and the processes end with their parent."""

import errno
import itertools
import os
import re
import resource
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pipeline.compute.worker_process import OUT_OF_MEMORY, processor_limit
from pipeline.compute.workers import (
    CHUNKS_AHEAD,
    KILLED,
    MIN_SHARED_BYTES,
    Failure,
    Worker,
    isolated_map,
    shared_map,
)
from pipeline.errors import InputError, JointspaceError


def square(item: int) -> int:
    return item * item


def misbehave(item: int) -> object:
    """Return the item. For some items, end the process, raise an error or return a value that cannot be pickled
    instead.
    """
    if item == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    if item == 11:
        os.kill(os.getpid(), signal.SIGSEGV)
    if item == 13:
        raise ValueError("thirteen")
    if item == 17:
        raise InputError("seventeen: no such image")
    if item == 19:
        return lambda: None
    return item


KEPT: list[bytes] = []
"""Memory that a worker process keeps until its end."""


def keep_megabytes(log: Path, megabytes: int) -> int:
    """Allocate `megabytes` megabytes, keep them until the process ends, and return the number. Write the begin and the
    end of the call into `log`.

    The first call in a process limits the memory of the process to 100 MB more than the process has at that time. If an
    item of 130 MB has begun exactly once, the call waits for at most a second. A wrong second try of this item would
    begin during this second.
    """
    if not KEPT:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + (100 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    _note(log, "begin", megabytes)
    try:
        KEPT.append(bytes(megabytes << 20))
        deadline = time.monotonic() + 1
        while log.read_text().count("begin 130 ") == 1 and time.monotonic() < deadline:
            time.sleep(0.01)  # A wrong second try would begin now.
    finally:
        _note(log, "end", megabytes)
    return megabytes


def _note(log: Path, event: str, megabytes: int) -> None:
    with log.open("a") as file:
        file.write(f"{event} {megabytes} {os.getpid()}\n")


def process_of(_: int) -> int:
    return os.getpid()


def compute_forever() -> None:
    """Compute without end in C code, which cannot be interrupted by another thread of Python."""
    sum(itertools.repeat(0))


def compute_or_wait(item: int) -> int:
    """Return the item, within a limit of 0.3 CPU seconds. Item 7 computes until the limit ends it. Item 3 waits for a
    second, which takes no CPU time.
    """
    with processor_limit(0.3, f"took too long: {item}"):
        if item == 7:
            compute_forever()
        if item == 3:
            time.sleep(1)
    return item


def stay(item: int) -> int:
    print(os.getpid(), flush=True)
    compute_forever()
    return item


@pytest.mark.parametrize("processes", [0, 1, 2])
def test_results_are_in_order_of_items(processes: int) -> None:
    assert list(isolated_map(square, range(100), processes)) == [n * n for n in range(100)]


def test_every_failure_costs_only_its_item() -> None:
    results = list(isolated_map(misbehave, range(40), 2))
    expected = {7: KILLED, 11: "its worker process ended unexpectedly", 13: "ValueError: thirteen"}
    expected |= {17: "seventeen: no such image"}
    for item, result in enumerate(results):
        if item == 19:
            assert isinstance(result, Failure) and re.search("pickle|local object", result.reason)
        else:
            assert result == (Failure(expected[item]) if item in expected else item)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_item_out_of_memory_is_retried_alone_in_new_process(tmp_path: Path) -> None:
    """Each item is a number of megabytes to allocate. An item of 70 MB fits into a new process, but not into a process
    that still holds the 45 MB of an earlier item. An item of 130 MB never fits, and is tried again while no other item
    runs.
    """
    log = tmp_path / "log"
    items = [130, 1, 2, 45, 70, 3]
    results = list(isolated_map(partial(keep_megabytes, log), items, 2, chunk=1))
    assert [item for item, result in zip(items, results, strict=True) if result != item] == [130]
    assert isinstance(results[0], Failure) and results[0].reason.startswith(f"{OUT_OF_MEMORY}: ")
    events = [line.split() for line in log.read_text().splitlines()]
    first, second = (number for number, event in enumerate(events) if event[:2] == ["begin", "130"])
    assert events[first][2] != events[second][2]
    last = {pid: event for event, _, pid in events[:second]}
    begun = {pid for pid, event in last.items() if event == "begin"}  # These processes were killed within an item.
    assert not begun & {pid for *_, pid in events[second + 1 :]}
    with Worker(partial(keep_megabytes, log)) as worker:
        assert [worker(item) for item in (45, 70)] == [45, 70]


SHAPE = (3 * MIN_SHARED_BYTES,)


def paint(number: int) -> np.ndarray:
    if number % 7 == 3:
        raise ValueError(f"no {number}")
    return np.random.default_rng(number).integers(0, 256, SHAPE, dtype=np.uint8)


def paint_or_die(number: int) -> dict[str, object]:
    """Return the number and the arrays of item `number`. The arrays of every fifth item do not all fit into a slot.

    Item 20 ends the process instead, and `paint` raises ValueError for every seventh item.
    """
    if number == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"number": number, "arrays": [paint(number)[:7], paint(number)] * (1 + (number % 5 == 0))}


def test_shared_results_equal_pickled_results_when_slots_are_reused() -> None:
    numbers = range(3 * 2 * CHUNKS_AHEAD * 4 + 5)
    room = 4 * MIN_SHARED_BYTES
    expected = list(isolated_map(paint, numbers, 0))
    # All results are kept: a result in a slot, without a copy, would change when the slot is reused.
    found = list(shared_map(paint_or_die, numbers, 2, room, chunk=4))
    assert len(numbers) > 20 and found[20] == Failure(KILLED)
    for number, (outcome, pixels) in enumerate(zip(found, expected, strict=True)):
        if isinstance(pixels, Failure) or number == 20:
            assert isinstance(outcome, Failure) and (number == 20 or outcome == pixels)
            continue
        assert outcome["number"] == number
        arrays = [pixels[:7], pixels] * (1 + (number % 5 == 0))
        assert all(np.array_equal(*pair) for pair in zip(outcome["arrays"], arrays, strict=True))


def test_cpu_limit_costs_only_its_item() -> None:
    results = list(isolated_map(compute_or_wait, range(20), 2))
    assert results == [Failure("took too long: 7") if item == 7 else item for item in range(20)]


def test_worker_process_does_not_import_torch_of_its_parent() -> None:
    import torch  # noqa: F401

    imports = "[__import__(name) for name in ('pipeline.images.preprocess', 'pipeline.storage.sources')]"
    assert list(isolated_map(eval, [f"({imports}, 'torch' in __import__('sys').modules)[1]"], 1)) == [False]


def test_map_ends_with_message_when_workers_die_at_start() -> None:
    program = "import multiprocessing\nmultiprocessing.set_executable('/bin/false')\n" + UNGUARDED
    result = subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True, timeout=300)
    assert (
        result.returncode == 1
        and JointspaceError.__name__ in result.stderr
        and "if extract.decode_workers is 0" in result.stderr
    )


def test_message_says_that_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr("pipeline.compute.workers.start_process", start)
    with Worker(square) as worker, pytest.raises(JointspaceError, match="cannot be started .* Free some memory"):
        worker(2)


UNGUARDED = (
    "from pipeline.compute.workers import isolated_map\n"
    "print('once')\n"
    "class Local: pass\n"
    "print(list(isolated_map(abs, range(-9, 9), 2)))\n"
    "import __main__\n"
    "print(__main__.Local.__name__)\n"
)


def test_script_without_main_guard_runs_once(tmp_path: Path) -> None:
    (tmp_path / "my program.py").write_text(UNGUARDED)
    result = subprocess.run(
        [sys.executable, "my program.py"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert result.stdout.splitlines() == ["once", str([abs(n) for n in range(-9, 9)]), "Local"], result.stderr


def start(program: str, folder: Path) -> subprocess.Popen:
    """Write the source code `program` to a file in `folder`, start it, and return the process. The program can import
    this module and the project.
    """
    (folder / "parent.py").write_text(program)
    path = os.pathsep.join([os.path.dirname(__file__), os.path.dirname(os.path.dirname(__file__))])
    return subprocess.Popen(
        [sys.executable, str(folder / "parent.py")], env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    program = (
        "import os, signal\nfrom test_workers import process_of\nfrom pipeline.compute.workers import isolated_map\n"
        "if __name__ == '__main__':\n"
        "    print(next(isolated_map(process_of, range(1000), 1)), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    worker = int(start(program, tmp_path).communicate(timeout=300)[0])
    for _ in range(3000):
        if not _runs(worker):
            return
        time.sleep(0.1)
    pytest.fail(f"worker {worker} outlived its parent")


def test_interrupt_ends_running_workers(tmp_path: Path) -> None:
    program = (
        "import signal\nfrom test_workers import stay\nfrom pipeline.compute.workers import isolated_map\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "    list(isolated_map(stay, range(9), 1))\n"
    )
    process = start(program, tmp_path)
    try:
        worker = int(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) != 0
        assert not _runs(worker)
    finally:
        process.kill()


def _runs(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"  # A zombie process no longer runs.
    except FileNotFoundError:
        return False
