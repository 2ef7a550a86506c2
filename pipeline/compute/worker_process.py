"""The part of a worker process that runs in the process itself: its limits, and the outcome of each item."""

import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeVar

from pipeline.errors import JointspaceError

Item = TypeVar("Item")
Result = TypeVar("Result")

OUT_OF_MEMORY = "out-of-memory"
"""First word of the reason of a Failure whose item needed more memory than there was."""
THREAD_STACK_BYTES = 8 << 20
"""Size of the stack of a thread."""
_parent: Connection | None = None
_announced = ""


@dataclass(frozen=True)
class Failure:
    """An outcome without a result: the function raised an exception or took too long, or its process died."""

    reason: str


def lacked_memory(outcome: object) -> bool:
    """Return whether an outcome is the Failure of an item that ran out of memory or whose process was killed."""
    return isinstance(outcome, Failure) and outcome.reason.startswith(OUT_OF_MEMORY)


@dataclass(frozen=True)
class Excess:
    """A message before an item is limited. Its reason applies if no other message comes from this process."""

    reason: str


@contextmanager
def processor_limit(seconds: float, excess: str) -> Iterator[None]:
    """Limit the CPU time of the block. A worker process that needs more is ended, and its item's Failure says `excess`.

    In other processes the block is not limited, since only the end of a process interrupts a decoder. CPU time is
    limited so that neither a busy machine nor a slow disk counts against an image.
    """
    if _parent is None or seconds == float("inf"):
        yield
        return
    global _announced
    if excess != _announced:
        _parent.send(Excess(excess))
        _announced = excess
    signal.setitimer(signal.ITIMER_PROF, seconds)  # whose signal ends a process, unlike a thread's timer, even in C
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


@contextmanager
def memory_limit(more: int) -> Iterator[None]:
    """Limit the memory of the block to `more` bytes above the present, beside the stacks of one thread per core.

    The limit holds in a worker process on Linux. A block that needs more raises MemoryError, or the exception that a
    library raises in its place.
    """
    if _parent is None or sys.platform != "linux":
        yield
        return
    before, most = resource.getrlimit(resource.RLIMIT_DATA)
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[5]) * resource.getpagesize()
    limit = taken + more + (os.cpu_count() or 1) * THREAD_STACK_BYTES
    if taken and (before == resource.RLIM_INFINITY or limit < before):  # some sandboxes report 0 bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, most))


def attempt(function: Callable[[Item], Result], item: Item) -> Result | Failure:
    """Return `function(item)`, or a Failure if it raises an exception."""
    try:
        return function(item)
    except Exception as error:
        return Failure(_reason(error))


def begin(serve: Callable[[Connection], None], connection: Connection, variables: Mapping[str, str]) -> None:
    """Call `serve(connection)` with these environment variables.

    Ctrl-C is left to the parent of this process. The process ends when the parent is gone, even if it was killed.
    """
    os.environ.update(variables)
    if "numpy" in sys.modules and "OMP_NUM_THREADS" in variables:  # imported before this process was forked
        from threadpoolctl import threadpool_limits

        threadpool_limits(int(variables["OMP_NUM_THREADS"]))
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait_for_parent() -> None:
        parent.join()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=wait_for_parent, daemon=True).start()
    serve(connection)


def serve_items(connection: Connection) -> None:
    """Receive a function and send None. Then send its result of each item of the lists that come, in order, until the
    parent is gone."""
    global _parent
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _parent = connection
    function = connection.recv()
    with suppress(EOFError, OSError):
        connection.send(None)
        while True:
            for item in connection.recv():
                result = attempt(function, item)
                try:
                    connection.send(result)
                except OSError:
                    raise
                except Exception as error:  # the result cannot be pickled
                    connection.send(Failure(_reason(error)))


def _reason(error: Exception) -> str:
    """Return the message of an error, with its type unless it is one of ours."""
    if isinstance(error, MemoryError):
        return f"{OUT_OF_MEMORY}: {str(error) or 'there is not enough memory for it'}"
    return str(error) if isinstance(error, JointspaceError) else f"{type(error).__name__}: {error}"
