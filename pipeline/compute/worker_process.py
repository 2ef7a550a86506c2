"""The code that runs inside a worker process: the loop over items, their outcomes, and limits on time and memory."""

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
"""First word of the `reason` of a Failure if the item needed too much memory, or if the process of the item was
killed."""
THREAD_STACK_BYTES = 8 << 20
"""Number of bytes that `memory_limit` allows for the stack of each thread."""
_parent: Connection | None = None
"""The connection to the parent process, or None if this process is not a worker."""
_announced = ""
"""The reason of the last Excess that this process has sent to its parent, or "" before the first."""


@dataclass(frozen=True)
class Failure:
    """The outcome of an item that has no result, because the function raised an exception or took too long, or because
    its process died.

    `reason` says why: the message of the exception, or a phrase such as `its worker process ended unexpectedly`.
    """

    reason: str


def lacked_memory(outcome: object) -> bool:
    """Return whether an outcome is the Failure of an item that ran out of memory or whose process was killed."""
    return isinstance(outcome, Failure) and outcome.reason.startswith(OUT_OF_MEMORY)


@dataclass(frozen=True)
class Excess:
    """A message that a worker process sends to its parent before a time limit begins.

    If the limit ends the process, the parent returns a Failure with this `reason` as the outcome of the item.
    """

    reason: str


@contextmanager
def processor_limit(seconds: float, excess: str) -> Iterator[None]:
    """Limit the CPU time of the `with` block to `seconds`. A worker process that needs more time in the block is ended.

    The outcome of its item is then a Failure with the reason `excess`. Only the end of a process can interrupt a
    decoder, so the time is limited only in worker processes. An infinite number of `seconds` means no limit. CPU time
    is limited instead of elapsed time, so that an image is not rejected because of a busy machine or a slow disk.
    """
    if _parent is None or seconds == float("inf"):
        yield
        return
    global _announced
    if excess != _announced:
        _parent.send(Excess(excess))
        _announced = excess
    # The signal of this timer ends the process even while it runs C code. A thread with a timer could not do so.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


@contextmanager
def memory_limit(more: int) -> Iterator[None]:
    """Limit the memory of the process within the `with` block to `more` bytes above its present use, plus the stacks of
    one thread per core.

    If the block needs more memory, it raises MemoryError, or the exception of the library that failed to allocate
    memory. The limit is set only in worker processes on Linux, only if the system reports the present use, and only if
    no lower limit is set already.
    """
    if _parent is None or sys.platform != "linux":
        yield
        return
    before, most = resource.getrlimit(resource.RLIMIT_DATA)
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[5]) * resource.getpagesize()
    limit = taken + more + (os.cpu_count() or 1) * THREAD_STACK_BYTES
    # If a sandbox reports a use of 0 bytes, no limit is set, because the limit would be too low.
    if taken and (before == resource.RLIM_INFINITY or limit < before):
        resource.setrlimit(resource.RLIMIT_DATA, (limit, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, most))


@contextmanager
def silent_library() -> Iterator[None]:
    """Discard everything that is written to stderr while the block runs, such as the messages of a library in C.

    This is done only in worker processes, because other threads of the main process may write to stderr meanwhile.
    """
    if _parent is None:
        yield
        return
    kept = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def attempt(function: Callable[[Item], Result], item: Item) -> Result | Failure:
    """Return `function(item)`, or a Failure with the message if the function raises an Exception."""
    try:
        return function(item)
    except Exception as error:
        return Failure(_reason(error))


def begin(serve: Callable[[Connection], None], connection: Connection, variables: Mapping[str, str]) -> None:
    """Set the environment `variables`, and call `serve(connection)`. This is the first function of a child process.

    The process ignores Ctrl-C, which its parent handles. It ends when its parent ends, even if the parent is killed.
    """
    os.environ.update(variables)
    if "numpy" in sys.modules and "OMP_NUM_THREADS" in variables:
        # NumPy was imported before this process was forked, so it does not read the environment variables again.
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
    """Compute the outcomes of items in the process of a Worker.

    First, receive a function from the parent, and confirm it by sending None. Then receive lists of items. The outcome
    of each item, which is a result or a Failure, is sent as soon as it is computed, in the order of the items. The call
    returns when the parent closes the connection.
    """
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
                except Exception as error:  # The result cannot be pickled.
                    connection.send(Failure(_reason(error)))


def _reason(error: Exception) -> str:
    """Return the message of an error as the reason of a Failure.

    The type of the error precedes its message, unless it is a JointspaceError. The reason of a MemoryError begins with
    OUT_OF_MEMORY instead.
    """
    if isinstance(error, MemoryError):
        return f"{OUT_OF_MEMORY}: {str(error) or 'there is not enough memory for it'}"
    return str(error) if isinstance(error, JointspaceError) else f"{type(error).__name__}: {error}"
