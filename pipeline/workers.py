"""A map over worker processes in which whatever happens to one item happens to that item alone."""

import multiprocessing
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import islice
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from pipeline.errors import JointspaceError
from pipeline.worker_process import Excess, Failure, attempt, work

CHUNK = 16
"""Items that travel together."""
DIED = "its worker process died"


def isolated_map(function: Callable[[Any], Any], items: Iterable[Any], processes: int) -> Iterator[Any]:
    """`function` of each item, in order, or a Failure; `items` are drawn only a few chunks ahead.

    `function`, its items and its results travel by pickle, to new processes that import only what `function` needs
    (a fork would inherit the locks of this process's threads). With `processes` 0 everything runs in this process,
    unprotected. When the iteration ends, for whatever reason, the processes are killed.
    """
    if not processes:
        for item in items:
            yield attempt(function, item)
        return
    items = iter(items)
    with _Crew(function, processes) as crew:
        under_way: deque[Future] = deque()
        while True:
            while len(under_way) < 2 * processes and (chunk := list(islice(items, CHUNK))):
                under_way.append(crew.submit(chunk))
            if not under_way:
                return
            yield from under_way.popleft().result()


class Worker:
    """`function` in a process of its own, which is started when it is first needed and replaced when it dies.

    `worker(item)` is `function(item)` or a Failure; of several threads, each waits for its turn. To be closed.
    Raises JointspaceError where no process can be started.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._turn = threading.Lock()
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None
        self._excess = ""
        self._closed = False

    def __call__(self, item: Any) -> Any:
        return self.map([item])[0]

    def map(self, items: Sequence[Any]) -> list[Any]:
        """`function` of each item, in order, or a Failure."""
        results: list[Any] = []
        suspect = -1
        with self._turn:
            while len(results) < len(items):
                reason = self._apply(items[len(results) :], results)
                if reason == DIED and suspect < len(results):
                    suspect = len(results)  # it may not have been this item's fault: once more
                elif reason:
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

    def _apply(self, items: Sequence[Any], results: list[Any]) -> str | None:
        """Append the result of one item after the other; why the process died on one of them, if it did."""
        connection = self._connection or self._start()
        try:
            connection.send(items)
            for _ in items:
                message = connection.recv()
                while isinstance(message, Excess):
                    self._excess = message.reason
                    message = connection.recv()
                results.append(message)
        except (EOFError, OSError):
            return self._bury()
        return None

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        connection, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, self._function), daemon=True)
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
        while (task := self._tasks.get()) is not None:
            chunk, future = task
            try:
                future.set_result(worker.map(chunk))
            except BaseException as error:
                future.set_exception(error)


_PROCESSES = threading.Lock()
"""Held while a child process is started or waited for, which multiprocessing does for one thread at a time."""


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """A process started within leaves Ctrl-C to this one from its first moment on."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
