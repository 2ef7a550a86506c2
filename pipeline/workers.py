"""A map over worker processes in which whatever happens to one item happens to that item alone."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pipeline.errors import JointspaceError

CHUNK = 16
"""Items that travel together; few enough to be retried one by one when their process dies."""


@dataclass(frozen=True)
class Failure:
    """In place of a result: the item's function raised an exception, or its process died."""

    reason: str


def isolated_map(function: Callable[[Any], Any], items: Iterable[Any], processes: int) -> Iterator[Any]:
    """`function` of each item, in order, or a Failure; `items` are drawn only a few chunks ahead.

    `function`, its items and its results travel by pickle, to new processes that import only what `function` needs
    (a fork would inherit the locks of this process's threads). When a process dies, the items that were under way
    are tried again, each alone. With `processes` 0 everything runs in this process, unprotected.
    """
    if not processes:
        for item in items:
            yield _attempt(function, item)
        return
    items = iter(items)
    with _Pool(processes) as crowd, _Pool(1) as alone:
        under_way: deque[tuple[list[Any], Future]] = deque()
        while True:
            while len(under_way) < 2 * processes and (chunk := list(islice(items, CHUNK))):
                under_way.append((chunk, crowd.submit(_attempt_all, function, chunk)))
            if not under_way:
                return
            chunk, future = under_way.popleft()
            try:
                results = future.result()
            except Exception:  # a process died, or a result cannot be pickled
                results = (_attempt_alone(alone, function, item) for item in chunk)
            yield from results


class _Pool:
    """A process pool that is replaced when it is broken."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._executor = self._new()

    def _new(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self._processes, mp_context=context, initializer=_become_worker)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
        try:
            return self._executor.submit(function, *arguments)
        except BrokenProcessPool:
            self._executor.shutdown()
            self._executor = self._new()
            return self._executor.submit(function, *arguments)

    def __enter__(self) -> "_Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(cancel_futures=True)


def _become_worker() -> None:
    """Leave Ctrl-C to the parent process, and end when it is gone, even killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _attempt(function: Callable[[Any], Any], item: Any) -> Any:
    try:
        return function(item)
    except Exception as error:
        return Failure(_reason(error))


def _reason(error: Exception) -> str:
    """Our own errors speak for themselves."""
    return str(error) if isinstance(error, JointspaceError) else f"{type(error).__name__}: {error}"


def _attempt_all(function: Callable[[Any], Any], chunk: list[Any]) -> list[Any]:
    return [_attempt(function, item) for item in chunk]


def _nothing() -> None:
    pass


def _attempt_alone(pool: _Pool, function: Callable[[Any], Any], item: Any) -> Any:
    try:
        pool.submit(_nothing).result()
    except BrokenProcessPool as error:  # not the item's fault
        raise JointspaceError(
            "worker processes die before they begin, as their messages above say; set their number to 0 to do without"
        ) from error
    try:
        return pool.submit(_attempt, function, item).result()
    except BrokenProcessPool:
        return Failure("its worker process died")
    except Exception as error:
        return Failure(_reason(error))
