"""Inside of a worker process: items come, results go, and what takes too long ends the process."""

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from pipeline.errors import JointspaceError


@dataclass(frozen=True)
class Failure:
    """In place of a result: the item's function raised an exception or took too long, or its process died."""

    reason: str


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
        return Failure(_reason(error))


def work(connection: Connection, function: Callable[[Any], Any]) -> None:
    """Say None, then `function` of each item of each list that comes, until the parent process is gone."""
    global _server
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    threading.Thread(target=_follow_parent, daemon=True).start()
    _server = _Server(connection)
    with suppress(EOFError, OSError):
        _server.run(function)


class _Server:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._announced = ""

    def announce(self, excess: str) -> None:
        if excess != self._announced:
            self._connection.send(Excess(excess))
            self._announced = excess

    def run(self, function: Callable[[Any], Any]) -> None:
        self._connection.send(None)
        while True:
            for item in self._connection.recv():
                self._connection.send_bytes(_pickled(attempt(function, item)))


_server: _Server | None = None


def _follow_parent() -> None:
    """End when the parent process is gone, even killed, whatever is being computed."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _reason(error: Exception) -> str:
    """Our own errors speak for themselves."""
    return str(error) if isinstance(error, JointspaceError) else f"{type(error).__name__}: {error}"


def _pickled(result: Any) -> bytes:
    try:
        return pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        return pickle.dumps(Failure(_reason(error)))
