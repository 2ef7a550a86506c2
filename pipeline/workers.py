"""A map over worker processes in which whatever happens to one item happens to that item alone."""

import multiprocessing
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any, NamedTuple

from pipeline.errors import JointspaceError, UnreachableError
from pipeline.worker_process import Excess, Failure, attempt, work

CHUNK = 16
"""Items that travel together."""
DIED = "its worker process died"
PENDING = object()
_PROCESSES = threading.RLock()
"""Held while a child process is started or waited for, which multiprocessing does for one thread at a time."""


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
    """Starts processes that import modules alone; what is defined in a script cannot be sent to them."""

    Process = _PackageProcess


CONTEXT = PackageContext()


def isolated_map(function: Callable[[Any], Any], items: Iterable[Any], processes: int) -> Iterator[Any]:
    """`function` of each item, in order, or a Failure; `items` are drawn only a few chunks ahead.

    `function`, its items and its results travel by pickle, to new processes that import only what `function` needs
    (a fork would inherit the locks of this process's threads). With `processes` 0 everything runs in this process,
    unprotected. When the iteration ends, for whatever reason, the processes are killed. Raises UnreachableError where
    `function` did.
    """
    if not processes:
        for item in items:
            yield _reached(attempt(function, item))
        return
    items = iter(items)
    with _Crew(function, processes) as crew:
        under_way: deque[Future] = deque()
        while True:
            while CHUNK * len(under_way) < ahead(processes) and (chunk := list(islice(items, CHUNK))):
                under_way.append(crew.submit(chunk))
            if not under_way:
                return
            yield from map(_reached, under_way.popleft().result())


def _reached(outcome: Any) -> Any:
    if isinstance(outcome, Failure) and outcome.unreachable:
        raise UnreachableError(outcome.reason)
    return outcome


def ahead(processes: int) -> int:
    """How many items `isolated_map` has drawn at most whose results it has not given yet."""
    return 2 * processes * CHUNK


class Worker:
    """`function` in a process of its own, which is started when it is first needed and replaced when it dies.

    `worker(item)` is `function(item)` or a Failure; of several threads, each waits for its turn. One thread alone may
    `send` lists of items ahead and `collect` their results. To be closed. Raises JointspaceError where no process can
    be started.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._turn = threading.Lock()
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None
        self._closed = False
        self._results: deque[list[Any]] = deque()
        self._outstanding: deque[_Place] = deque()
        self._suspect: _Place | None = None
        self._excess = ""
        # Of the present process: how many items it is done with, and how many results of it are here.
        self._done, self._received = CONTEXT.RawValue("q"), 0

    def __call__(self, item: Any) -> Any:
        with self._turn:
            self.send([item])
            return self.collect()[0]

    def send(self, items: list[Any]) -> None:
        results = [PENDING] * len(items)
        self._results.append(results)
        self._outstanding.extend(_Place(results, number, item) for number, item in enumerate(items))
        try:
            (self._connection or self._start()).send(items)
        except OSError:
            self._recover()

    def collect(self) -> list[Any]:
        """`function` of each item of the first list that was sent and not collected, or a Failure."""
        while any(result is PENDING for result in self._results[0]):
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                self._recover()
                continue
            if isinstance(message, Excess):
                self._excess = message.reason
                continue
            self._received += len(message)
            for result in message:
                place = self._outstanding.popleft()
                place.results[place.number] = result
        return self._results.popleft()

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

    def _recover(self) -> None:
        """Find the item on which the process has died, and have a new process go on with the others."""
        while self._outstanding:
            reason = self._bury()
            at = min(self._done.value - self._received, len(self._outstanding) - 1)
            place = self._outstanding[at]
            if reason == DIED and place is not self._suspect:
                self._suspect = place  # it may not have been this item's fault: once more
            else:
                place.results[place.number] = Failure(reason)
                del self._outstanding[at]
            if self._outstanding:
                try:
                    self._start().send([place.item for place in self._outstanding])
                    return
                except OSError:
                    continue

    def _start(self) -> Connection:
        connection, theirs = CONTEXT.Pipe()
        self._done.value = self._received = 0
        process = CONTEXT.Process(target=work, args=(theirs, self._done, self._function), daemon=True)
        with _PROCESSES, _without_interrupts():
            if self._closed:
                raise JointspaceError("the worker process was stopped")
            process.start()
            self._process = process
        theirs.close()
        try:
            connection.recv()
        except (EOFError, OSError):
            connection.close()
            self._bury()
            raise JointspaceError(
                "worker processes die before they begin, as their messages above say; set their number to 0 to do"
                " without"
            ) from None
        self._connection = connection
        return connection

    def _bury(self) -> str:
        """Why the process died."""
        with _PROCESSES:
            self._process.kill()
            self._process.join()
            code = self._process.exitcode
        if self._connection:
            self._connection.close()
            self._connection = None
        if self._closed:
            raise JointspaceError("the worker process was stopped")
        return self._excess if code == -signal.SIGPROF else DIED


class _Place(NamedTuple):
    """Where the result of an item goes."""

    results: list[Any]
    number: int
    item: Any


class _Crew:
    """Several workers, each driven by a thread, so that they go on while this process computes."""

    def __init__(self, function: Callable[[Any], Any], processes: int) -> None:
        self._workers = [Worker(function) for _ in range(processes)]
        self._tasks: SimpleQueue[tuple[list[Any], Future] | None] = SimpleQueue()

    def submit(self, chunk: list[Any]) -> Future:
        future: Future = Future()
        self._tasks.put((chunk, future))
        return future

    def __enter__(self) -> "_Crew":
        for worker in self._workers:
            threading.Thread(target=self._drive, args=(worker,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.close()
            self._tasks.put(None)

    def _drive(self, worker: Worker) -> None:
        """Have the next chunk at the worker before it is done with the last one."""
        under_way: deque[Future] = deque()
        try:
            while True:
                while len(under_way) < 2 and (task := self._next(wait=not under_way)):
                    chunk, future = task
                    under_way.append(future)
                    worker.send(chunk)
                if not under_way:
                    return
                results = worker.collect()
                under_way.popleft().set_result(results)
        except BaseException as error:
            for future in under_way:
                future.set_exception(error)

    def _next(self, wait: bool) -> tuple[list[Any], Future] | None:
        try:
            return self._tasks.get(block=wait)
        except Empty:
            return None


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """A process started within leaves Ctrl-C to this one from its first moment on."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
