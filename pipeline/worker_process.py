"""Inside of a worker process: items come, results go, and what takes too long ends the process."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from pipeline.errors import JointspaceError, UnreachableError

KEPT_SECONDS = 0.1


@dataclass(frozen=True)
class Failure:
    """In place of a result: the item's function raised an exception or took too long, or its process died. What is
    `unreachable` may be there later."""

    reason: str
    unreachable: bool = False


@dataclass(frozen=True)
class Excess:
    """Sent before an item is limited: the reason, should it be the last that is heard of this process."""

    reason: str


@contextmanager
def processor_limit(seconds: float, excess: str) -> Iterator[None]:
    """Allow the block this much processor time. A worker process that needs more is ended, and the reason `excess` is
    its item's Failure; elsewhere the block is not limited, since nothing but the end of a process interrupts a decoder.

    Processor time, so that neither a busy machine nor a slow disk is an image's fault.
    """
    if _server is None or seconds == float("inf"):
        yield
        return
    _server.announce(excess)
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
        return Failure(_reason(error), isinstance(error, UnreachableError))


def work(connection: Connection, done: Any, function: Callable[[Any], Any]) -> None:
    """Send None, then lists of `function` of each item of the lists that come, in order, until the parent is gone.

    `done.value`, which the parent can see, counts the items that are done with.
    """
    global _server
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _server = _Server(connection, done)
    threading.Thread(target=_server.receive, daemon=True).start()
    with suppress(OSError):
        _server.run(function)


class _Server:
    def __init__(self, connection: Connection, done: Any) -> None:
        self._connection = connection
        self._done = done
        self._items: SimpleQueue[list[Any]] = SimpleQueue()
        self._announced = ""

    def announce(self, excess: str) -> None:
        if excess != self._announced:
            self._connection.send(Excess(excess))
            self._announced = excess

    def receive(self) -> None:
        """Take what comes, so that the parent never waits to be rid of it; end when the parent is gone, even killed."""
        try:
            while True:
                self._items.put(self._connection.recv())
        finally:
            os._exit(1)

    def run(self, function: Callable[[Any], Any]) -> None:
        self._connection.send(None)
        while True:
            self._answer(function, self._items.get())

    def _answer(self, function: Callable[[Any], Any], items: list[Any]) -> None:
        """Results are sent together, as each message wakes the parent, but not kept for long, as they are large."""
        results: list[Any] = []
        last = time.monotonic()
        for number, item in enumerate(items, 1):
            results.append(attempt(function, item))
            self._done.value += 1
            if number == len(items) or time.monotonic() - last > KEPT_SECONDS:
                self._send(results)
                results, last = [], time.monotonic()

    def _send(self, results: list[Any]) -> None:
        try:
            self._connection.send(results)
        except OSError:
            raise
        except Exception as error:  # one of them cannot travel
            if len(results) == 1:
                self._connection.send([Failure(_reason(error))])
            else:
                for result in results:
                    self._send([result])


_server: _Server | None = None


def _reason(error: Exception) -> str:
    """Our own errors speak for themselves."""
    return str(error) if isinstance(error, JointspaceError) else f"{type(error).__name__}: {error}"
