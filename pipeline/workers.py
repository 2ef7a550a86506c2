"""A map over worker processes in which whatever happens to one item happens to that item alone."""

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from queue import SimpleQueue
from types import ModuleType
from typing import Any

from pipeline.errors import JointspaceError

CHUNK = 16
"""Items that travel together."""
DIED = "its worker process died"
_PROCESSES = threading.RLock()
"""Held while a child process is started or waited for, which multiprocessing does for one thread at a time."""


@dataclass(frozen=True)
class Failure:
    """In place of a result: the item's function raised an exception or took too long, or its process died."""

    reason: str


@dataclass(frozen=True)
class Excess:
    """Sent before an item is limited: the reason, should it be the last that is heard of this process."""

    reason: str


class _PackageProcess(SpawnProcess):
    """A new process that does not run the caller's script again, as multiprocessing's own do to import what is defined
    there: of a script without `if __name__ == "__main__"` each would otherwise repeat the whole."""

    @staticmethod
    def _Popen(process: SpawnProcess) -> Any:
        with _PROCESSES:
            main = sys.modules["__main__"]
            sys.modules["__main__"] = ModuleType("__main__")
            try:
                return SpawnProcess._Popen(process)
            finally:
                sys.modules["__main__"] = main


class PackageContext(SpawnContext):
    """Starts processes that import modules alone; what is defined in a script cannot be sent to them. (A fork would
    inherit the locks of this process's threads.)"""

    Process = _PackageProcess


CONTEXT = PackageContext()


def isolated_map(function: Callable[[Any], Any], items: Iterable[Any], processes: int) -> Iterator[Any]:
    """`function` of each item, in order, or a Failure; `items` are drawn only a few chunks ahead.

    `function`, its items and its results travel by pickle, to new processes that import only what `function` needs.
    With `processes` 0 everything runs in this process, unprotected. When the iteration ends, for whatever reason, the
    processes are killed.
    """
    if not processes:
        for item in items:
            yield attempt(function, item)
        return
    items, under_way = iter(items), deque[Future]()
    workers = [Worker(function) for _ in range(processes)]
    idle: SimpleQueue[Worker] = SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def work_on(chunk: list[Any]) -> list[Any]:
        worker = idle.get()
        try:
            return worker.map(chunk)
        finally:
            idle.put(worker)

    with ThreadPoolExecutor(processes) as threads:
        try:
            while True:
                while CHUNK * len(under_way) < ahead(processes) and (chunk := list(islice(items, CHUNK))):
                    under_way.append(threads.submit(work_on, chunk))
                if not under_way:
                    return
                yield from under_way.popleft().result()
        finally:
            for worker in workers:
                worker.close()
            threads.shutdown(wait=False, cancel_futures=True)


def ahead(processes: int) -> int:
    """How many items `isolated_map` has drawn at most whose results it has not given yet."""
    return 2 * processes * CHUNK


class Worker:
    """`function` in a process of its own, which is started when it is first needed and replaced when it dies.

    `worker(item)` is `function(item)` or a Failure; of several threads, each waits for its turn. To be closed. Raises
    JointspaceError where no process can be started, or it was closed.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._turn = threading.Lock()
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None
        self._closed = False
        self._excess = ""

    def __call__(self, item: Any) -> Any:
        return self.map([item])[0]

    def map(self, items: list[Any]) -> list[Any]:
        """`function` of each item, or a Failure. An item on which the process dies is tried once more, since that may
        not have been its fault; one that takes too long is not."""
        results: list[Any] = []
        suspect = None
        with self._turn:
            while len(results) < len(items):
                try:
                    (self._connection or self._start()).send(items[len(results) :])
                    while len(results) < len(items):
                        message = self._connection.recv()
                        if isinstance(message, Excess):
                            self._excess = message.reason
                        else:
                            results.append(message)
                except (EOFError, OSError):
                    reason = self._bury()
                    if reason == DIED and suspect != len(results):
                        suspect = len(results)
                    else:
                        results.append(Failure(reason))
        return results

    def close(self) -> None:
        """Kill the process; what it was doing is lost."""
        with _PROCESSES:
            self._closed = True
            if self._process:
                self._process.kill()
                self._process.join()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> Connection:
        connection, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=_serve, args=(theirs, self._function), daemon=True)
        with _PROCESSES, _without_interrupts():
            if self._closed:
                raise JointspaceError("the worker process was stopped")
            process.start()
            self._process = process
        theirs.close()
        self._connection = connection
        try:
            connection.recv()
        except (EOFError, OSError):
            self._bury()
            raise JointspaceError(
                "worker processes die before they begin, as their messages above say; set their number to 0 to do"
                " without"
            ) from None
        return connection

    def _bury(self) -> str:
        """Why the process died."""
        with _PROCESSES:
            self._process.kill()
            self._process.join()
            code = self._process.exitcode
        self._connection.close()
        self._connection = None
        if self._closed:
            raise JointspaceError("the worker process was stopped")
        return self._excess if code == -signal.SIGPROF else DIED


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """A process started within leaves Ctrl-C to this one from its first moment on."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- inside of a worker process

_parent: Connection | None = None
_announced = ""


def end_with_parent() -> None:
    """Leave Ctrl-C to the parent of this process, and end when it is gone, even killed."""

    def outlive() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=outlive, daemon=True).start()


@contextmanager
def processor_limit(seconds: float, excess: str) -> Iterator[None]:
    """Allow the block this much processor time. A worker process that needs more is ended, and the reason `excess` is
    its item's Failure; elsewhere the block is not limited, since nothing but the end of a process interrupts a decoder.

    Processor time, so that neither a busy machine nor a slow disk is an image's fault.
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


def attempt(function: Callable[[Any], Any], item: Any) -> Any:
    """`function(item)`, or a Failure."""
    try:
        return function(item)
    except Exception as error:
        return Failure(_reason(error))


def _serve(connection: Connection, function: Callable[[Any], Any]) -> None:
    """Send None, then `function` of each item of the lists that come, in order, until the parent is gone."""
    global _parent
    end_with_parent()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _parent = connection
    with suppress(EOFError, OSError):
        connection.send(None)
        while True:
            for item in connection.recv():
                result = attempt(function, item)
                try:
                    connection.send(result)
                except OSError:
                    raise
                except Exception as error:  # it cannot travel
                    connection.send(Failure(_reason(error)))


def _reason(error: Exception) -> str:
    """Our own errors speak for themselves."""
    return str(error) if isinstance(error, JointspaceError) else f"{type(error).__name__}: {error}"
