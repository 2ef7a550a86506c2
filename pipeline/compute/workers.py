"""Worker processes, in which a crash loses only the item that caused it, and calls of a function in another thread."""

import mmap
import os
import pickle
import signal
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from functools import cache, partial
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Generic, TypeVar

from pipeline.compute import runtime
from pipeline.compute.worker_process import OUT_OF_MEMORY, Excess, Failure, attempt, begin, lacked_memory, serve_items
from pipeline.errors import JointspaceError, UsageError

Item = TypeVar("Item")
Result = TypeVar("Result")

CHUNK_ITEMS = 16
"""Default number of items in a chunk, which is sent to a worker process at once."""
CHUNKS_AHEAD = 2
"""Largest number of unfinished chunks per worker process. No further items are read before a chunk is finished."""
REMEDY = (
    "Free some memory, or raise the limits of the system on memory and processes. Photos are decoded without worker"
    " processes if extract.decode_workers is 0."
)
"""Advice of a message about worker processes that cannot start."""
DIED = "its worker process ended unexpectedly"
KILLED = f"{OUT_OF_MEMORY}: its worker process was killed, as the system does when memory runs out"
MIN_SHARED_BYTES = 1 << 12
"""Size in bytes of the smallest array that `shared_map` passes in shared memory. Smaller arrays are pickled."""
MAX_WAITING_ITEMS = 4
"""Maximum number of unfinished items in `behind`. If there are more, `behind` waits for the oldest item before it takes
another item."""
_PROCESSES = threading.RLock()
"""Lock for starting and joining child processes, because multiprocessing allows only one thread at a time to do so."""


def isolated_map(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    processes: int,
    chunk: int = CHUNK_ITEMS,
    preload: Sequence[str] = (),
) -> Generator[Result | Failure, None, None]:
    """Call `function` on each item in `processes` worker processes. Yield the result or a Failure for each item, in the
    order of `items`.

    At most CHUNKS_AHEAD chunks of `chunk` items per process are read ahead. The function, the items and the results are
    pickled. The number of threads of this process is divided among the processes. If the function needs modules that
    take long to import, `preload` names them, and the processes are forked from one process that has imported them. An
    item that runs out of memory, or whose process is killed, is tried once more in a new process, while no other item
    is computed. If `processes` is 0, the function is called in this process, and a crash of the function ends this
    process. The worker processes are killed when the iteration ends for any reason. Raises JointspaceError if a process
    cannot be started.
    """
    if not processes:
        for item in items:
            yield attempt(function, item)
        return
    waiting = iter(items)
    under_way = deque[tuple[list[Item], Future[list[Result | Failure]]]]()
    workers = [Worker(function, share_threads(processes), preload) for _ in range(processes)]
    idle: SimpleQueue[Worker[Item, Result]] = SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def work_on(drawn: list[Item]) -> list[Result | Failure]:
        worker = idle.get()
        try:
            return worker.map(drawn)
        finally:
            idle.put(worker)

    with ThreadPoolExecutor(processes) as threads:
        try:
            while True:
                while len(under_way) < CHUNKS_AHEAD * processes and (drawn := list(islice(waiting, chunk))):
                    under_way.append((drawn, threads.submit(work_on, drawn)))
                if not under_way:
                    return
                drawn, future = under_way.popleft()
                for item, outcome in zip(drawn, future.result(), strict=True):
                    if lacked_memory(outcome):
                        wait(other for _, other in under_way)
                        with Worker(function, share_threads(processes), preload) as alone:
                            (outcome,) = alone.map([item])
                    yield outcome
        finally:
            for worker in workers:
                worker.close()
            threads.shutdown(wait=False, cancel_futures=True)


def shared_map(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    processes: int,
    room: int,
    chunk: int = CHUNK_ITEMS,
    preload: Sequence[str] = (),
) -> Generator[Result | Failure, None, None]:
    """Yield the same outcomes as `isolated_map` with the same arguments. On Linux, the large arrays of the results are
    passed from the worker processes in shared memory.

    Each result has `room` bytes of shared memory. Arrays of less than MIN_SHARED_BYTES, and arrays for which there is
    no more room, are pickled. The shared memory is an anonymous file in memory, because /dev/shm is small in a
    container.
    """
    if not processes or not hasattr(os, "memfd_create"):
        yield from isolated_map(function, items, processes, chunk, preload)
        return
    slots = CHUNKS_AHEAD * processes * chunk
    file = os.memfd_create("arrays")
    try:
        os.ftruncate(file, slots * room)
        with mmap.mmap(file, slots * room) as mapped, memoryview(mapped) as memory:
            write = partial(_write, function, f"/proc/{os.getpid()}/fd/{file}", room)
            placed = ((number % slots * room, item) for number, item in enumerate(items))
            with closing(isolated_map(write, placed, processes, chunk, preload)) as outcomes:
                for number, outcome in enumerate(outcomes):
                    yield outcome if isinstance(outcome, Failure) else _read(memory[number % slots * room :], *outcome)
    finally:
        os.close(file)


def _write(
    function: Callable[[Item], object], memory_path: str, room: int, placed: tuple[int, Item]
) -> tuple[bytes, list[int]]:
    """Compute the result of an item in a worker process, and write its large arrays into shared memory.

    `memory_path` is the file of the shared memory. `placed` has the offset of the item's slot in the file, and the
    item. A slot has `room` bytes. Returns the pickle of the result without the large arrays, and the sizes of these
    arrays in bytes.
    """
    start, item = placed
    position = start
    sizes: list[int] = []
    memory = _attach(memory_path)

    def keep_in_pickle(buffer: pickle.PickleBuffer) -> bool:
        """Write the array `buffer` into the shared memory of this item, and return False.

        Return True, and write nothing, if the array is smaller than MIN_SHARED_BYTES or does not fit into the rest of
        this memory. The array then stays in the pickle.
        """
        nonlocal position
        size = buffer.raw().nbytes
        if size < MIN_SHARED_BYTES or position + size > start + room:
            return True
        memory[position : position + size] = buffer.raw()
        position += size
        sizes.append(size)
        return False

    return pickle.dumps(function(item), protocol=5, buffer_callback=keep_in_pickle), sizes


def _read(memory: memoryview, data: bytes, sizes: Sequence[int]):
    """Restore the result that `_write` has divided into the pickle `data` and the arrays at the beginning of `memory`.

    `sizes` are the sizes of these arrays in bytes. The arrays are copied, so `memory` can be overwritten afterwards.
    """
    arrays = []
    position = 0
    for size in sizes:
        arrays.append(bytearray(memory[position : position + size]))
        position += size
    return pickle.loads(data, buffers=arrays)  # noqa: S301  The pickle comes from a child of this process.


@cache
def _attach(path: str) -> mmap.mmap:
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def share_threads(processes: int) -> dict[str, str]:
    """Return the environment variables with which each of `processes` worker processes uses an equal share of the
    threads of this process, but at least one thread."""
    return dict.fromkeys(runtime.THREAD_VARIABLES, str(max(1, runtime.threads() // processes)))


def start_process(
    serve: Callable[[Connection], None], variables: Mapping[str, str], daemon: bool, preload: Sequence[str] = ()
) -> tuple[BaseProcess, Connection]:
    """Start a process that calls `serve(connection)`. Return the process and the parent's end of the connection.

    The environment `variables`, which include the number of threads, are set before the process receives anything.
    NumPy reads the number of threads when it is imported, and the process imports NumPy only when it unpickles a
    function. If `daemon` is true, the process is killed when this process ends (see multiprocessing.Process).

    The process is spawned if `preload` is empty. A forked process would inherit locks that other threads of this
    process hold. `preload` names modules that take long to import. With `preload`, the process is forked from a server
    process that has imported these modules and has no further threads, so all processes share the imports and their
    memory. The first call with `preload` starts the server process, so later calls cannot add modules.
    """
    context = get_context("forkserver") if preload else get_context("spawn")
    connection, child_connection = context.Pipe()
    process = context.Process(target=begin, args=(serve, child_connection, dict(variables)), daemon=daemon)
    with _PROCESSES:
        if preload:
            context.set_forkserver_preload(list(preload))
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        script = sys.modules["__main__"]
        # A process imports the script of its parent, and a script without `if __name__ == "__main__"` would run again.
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            process.start()  # SIGINT is blocked, so that the process ignores Ctrl-C from its start.
        finally:
            sys.modules["__main__"] = script
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    child_connection.close()
    return process, connection


def stream(connection: Connection) -> None:
    """Run a generator function in a child process: receive the function from the parent, and send each result that it
    yields to the parent.

    The function gets an iterator of items. Each item is requested from the parent by sending None, and the iterator
    ends when the parent answers with None. If the function raises a JointspaceError, this error is sent instead of a
    result, and the call ends.
    """
    function = connection.recv()

    def ask():
        connection.send(None)
        return connection.recv()

    try:
        for result in function(iter(ask, None)):
            connection.send(result)
    except JointspaceError as error:
        connection.send(error)


class Worker(Generic[Item, Result]):
    """A function that runs in a separate process.

    `worker(item)` returns `function(item)` or a Failure. The first call starts the process. If the process dies, the
    next call starts a new process. Only one thread at a time uses the process, and other threads wait. The creator of
    the worker must close it, for example by a `with` block. Calls raise JointspaceError if no process can be started,
    or if the worker is closed.
    """

    def __init__(
        self,
        function: Callable[[Item], Result],
        variables: Mapping[str, str] | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        """Set the function, and the environment `variables` that the process gets in addition to the variables of this
        process.

        If `variables` is None or empty, the process is limited to one thread. `preload` names modules that take long to
        import. With `preload`, the process is forked from one process that has imported these modules, instead of
        spawned.
        """
        self._function = function
        self._preload = preload
        self._variables = variables or dict.fromkeys(runtime.THREAD_VARIABLES, "1")
        self._turn = threading.Lock()
        self._running: tuple[BaseProcess, Connection] | None = None
        self._closed = False
        self._excess = ""

    def __call__(self, item: Item) -> Result | Failure:
        """Return the function's result for an item, or a Failure.

        If the function runs out of memory, or the system kills the process, the function is called once more in a new
        process.
        """
        (outcome,) = self.map([item])
        return self.map([item])[0] if lacked_memory(outcome) else outcome

    def map(self, items: list[Item]) -> list[Result | Failure]:
        """Return the function's result or a Failure for each item, in order.

        If the process dies, the item that it worked on is tried once more, because the item may not be the cause. An
        item is not tried again if it takes too long, if it runs out of memory, or if the system kills the process.
        After an item that runs out of memory, the next item gets a new process.
        """
        results: list[Result | Failure] = []
        suspect = None
        with self._turn:
            while len(results) < len(items):
                process, connection = self._running or self._start()
                try:
                    connection.send(items[len(results) :])
                    while len(results) < len(items):
                        message = connection.recv()
                        if isinstance(message, Excess):
                            self._excess = message.reason
                            continue
                        results.append(message)
                        if lacked_memory(message):
                            self._bury(process, connection)
                            break
                except (EOFError, OSError):
                    reason = self._bury(process, connection)
                    if reason == DIED and suspect != len(results):
                        suspect = len(results)
                    else:
                        results.append(Failure(reason))
        return results

    def close(self) -> None:
        """Kill the process. The result of the current item is lost, and every later call raises JointspaceError."""
        with _PROCESSES:
            self._closed = True
            if self._running:
                process, _ = self._running
                process.kill()
                process.join()

    def __enter__(self) -> "Worker[Item, Result]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> tuple[BaseProcess, Connection]:
        with _PROCESSES:
            if self._closed:
                raise JointspaceError(
                    "A worker process cannot be started, because the work that needs it was stopped. Run the same"
                    " command again."
                )
            try:
                process, connection = start_process(serve_items, self._variables, True, self._preload)
            except OSError as error:
                reason = f"A worker process cannot be started ({error.strerror})"
                raise JointspaceError(f"{reason}. {REMEDY}") from error
            self._running = process, connection
        try:
            connection.send(self._function)
            connection.recv()
        except (EOFError, OSError):
            self._bury(process, connection)
            raise JointspaceError(
                f"The worker processes end before they begin to work. Their messages above give the reason. {REMEDY}"
            ) from None
        return process, connection

    def _bury(self, process: BaseProcess, connection: Connection) -> str:
        """Kill the process unless it has ended, so that the next call starts a new process. Return why the process
        ended, as the reason of a Failure.

        Raises JointspaceError if the worker is closed.
        """
        with _PROCESSES:
            process.kill()
            process.join()
        connection.close()
        self._running = None
        if self._closed:
            raise JointspaceError(
                "A worker process was stopped before it had finished its work. Run the same command again."
            )
        reasons = {-signal.SIGPROF: self._excess, -signal.SIGKILL: KILLED}
        return reasons.get(process.exitcode or 0, DIED)


def behind(function: Callable[[Item], Result | None], items: Iterable[Item]) -> Iterator[Result]:
    """Call `function` on each item in one other thread, while this thread takes the next of the `items`.

    Yields the results that are not None, in order. If the function raises an exception for an item, the exception is
    raised here in place of the item's result. Before that, the function is called on all items that were already taken
    from `items`.
    """
    under_way: deque[Future[Result | None]] = deque()
    with ThreadPoolExecutor(1) as thread:
        for item in items:
            under_way.append(thread.submit(function, item))
            while under_way and (len(under_way) > MAX_WAITING_ITEMS or under_way[0].done()):
                if (result := under_way.popleft().result()) is not None:
                    yield result
        yield from (result for future in under_way if (result := future.result()) is not None)


def private_folder(folder: Path, remedy: str) -> Path:
    """Create `folder`, which only this user can read, and return it. Missing parents are created with the default
    permissions. A folder that exists keeps its permissions.

    Raises UsageError if `folder` cannot be created, is a link or a file, or belongs to another user. The message ends
    with the `remedy`, which is a clause such as `set TMPDIR to another folder`.
    """
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=True)
        status = folder.lstat()
    except OSError as error:
        raise UsageError(
            f"The folder {folder} cannot be created ({error.strerror}). To repair this, {remedy}."
        ) from error
    if not stat.S_ISDIR(status.st_mode) or (hasattr(os, "getuid") and status.st_uid != os.getuid()):
        raise UsageError(
            f"The folder {folder} cannot be used, because it is a link, a file, or a folder of another user. Remove it,"
            f" or {remedy}."
        )
    return folder
