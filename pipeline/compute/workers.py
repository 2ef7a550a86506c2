"""Work for other processes, in which what happens to one item happens to that item alone; and for another thread."""

import mmap
import multiprocessing
import os
import pickle
import resource
import signal
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any

from pipeline.compute import runtime
from pipeline.errors import JointspaceError, UsageError

CHUNK, CHUNKS_AHEAD = 16, 2
"""Items that travel together, and how many times that are drawn ahead for each process."""
DIED = "its worker process died"
OUT_OF_MEMORY = "out-of-memory"
"""Begins the reason of a Failure whose item needed more memory than there was."""
KILLED = f"{OUT_OF_MEMORY}: its worker process was killed, as the system does when memory runs out"
LEAST_SHARED = 1 << 12
"""Bytes of an array that travels by shared memory."""
STACK = 8 << 20
"""Bytes of the stack of a thread."""
BEHIND = 4
"""Items that may wait for another thread."""
_PROCESSES = threading.RLock()
"""Held while a child process is started or waited for, which multiprocessing does for one thread at a time."""


@dataclass(frozen=True)
class Failure:
    """In place of a result: the item's function raised an exception or took too long, or its process died."""

    reason: str


def lacked_memory(outcome: Any) -> bool:
    """Whether an outcome is the Failure of an item that ran out of memory, or whose process was killed."""
    return isinstance(outcome, Failure) and outcome.reason.startswith(OUT_OF_MEMORY)


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


def isolated_map(
    function: Callable[[Any], Any], items: Iterable[Any], processes: int, chunk: int = CHUNK
) -> Iterator[Any]:
    """`function` of each item, in order, or a Failure; `items` are drawn only a few chunks ahead.

    An item that runs out of memory is tried once more in a new process, while no other item is worked on.

    `function`, its items and its results travel by pickle, to new processes that import only what `function` needs and
    share the threads of this one. With `processes` 0 everything runs in this process, unprotected. When the iteration
    ends, for whatever reason, the processes are killed.
    """
    if not processes:
        for item in items:
            yield attempt(function, item)
        return
    items, under_way = iter(items), deque[tuple[list[Any], Future]]()
    workers = [Worker(function, share_threads(processes)) for _ in range(processes)]
    idle: SimpleQueue[Worker] = SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def work_on(drawn: list[Any]) -> list[Any]:
        worker = idle.get()
        try:
            return worker.map(drawn)
        finally:
            idle.put(worker)

    with ThreadPoolExecutor(processes) as threads:
        try:
            while True:
                while len(under_way) < CHUNKS_AHEAD * processes and (drawn := list(islice(items, chunk))):
                    under_way.append((drawn, threads.submit(work_on, drawn)))
                if not under_way:
                    return
                drawn, future = under_way.popleft()
                for item, outcome in zip(drawn, future.result(), strict=True):
                    if lacked_memory(outcome):
                        wait(other for _, other in under_way)
                        with Worker(function, share_threads(processes)) as alone:
                            (outcome,) = alone.map([item])
                    yield outcome
        finally:
            for worker in workers:
                worker.close()
            threads.shutdown(wait=False, cancel_futures=True)


def shared_map(
    function: Callable[[Any], Any], items: Iterable[Any], processes: int, room: int, chunk: int = CHUNK
) -> Iterator[Any]:
    """As `isolated_map`; on Linux large arrays of a result, up to `room` bytes, come by memory that processes share.
    That is not /dev/shm, of which a container has little, but a file in memory without a name."""
    if not processes or not hasattr(os, "memfd_create"):
        yield from isolated_map(function, items, processes, chunk)
        return
    slots = CHUNKS_AHEAD * processes * chunk
    file = os.memfd_create("arrays")
    try:
        os.ftruncate(file, slots * room)
        with mmap.mmap(file, slots * room) as mapped, memoryview(mapped) as memory:
            write = partial(_write, function, f"/proc/{os.getpid()}/fd/{file}", room)
            placed = ((number % slots * room, item) for number, item in enumerate(items))
            with closing(isolated_map(write, placed, processes, chunk)) as outcomes:
                for number, outcome in enumerate(outcomes):
                    yield outcome if isinstance(outcome, Failure) else _read(memory[number % slots * room :], *outcome)
    finally:
        os.close(file)


def _write(function: Callable[[Any], Any], place: str, room: int, placed: tuple[int, Any]) -> tuple[bytes, list[int]]:
    """In a worker process: the result of an item, pickled but for the arrays that are written where it was `placed`,
    and the bytes of each of these."""
    at, item = placed
    start, sizes, memory = at, [], _attach(place)

    def place_array(buffer: pickle.PickleBuffer) -> bool:
        """Whether there is no room for it, or it is too small to be worth it."""
        nonlocal at
        size = buffer.raw().nbytes
        if size < LEAST_SHARED or at + size > start + room:
            return True
        memory[at : at + size] = buffer.raw()
        at += size
        sizes.append(size)
        return False

    return pickle.dumps(function(item), protocol=5, buffer_callback=place_array), sizes


def _read(memory: memoryview, data: bytes, sizes: Sequence[int]) -> Any:
    """What `_write` has written at the beginning of `memory`, copied."""
    arrays, at = [], 0
    for size in sizes:
        arrays.append(bytearray(memory[at : at + size]))
        at += size
    return pickle.loads(data, buffers=arrays)  # noqa: S301  of this process's own children


@cache
def _attach(place: str) -> mmap.mmap:
    with open(place, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def share_threads(processes: int) -> dict[str, str]:
    """The variables of each of so many processes, which share the threads of this one."""
    return dict.fromkeys(runtime.THREAD_VARIABLES, str(max(1, runtime.threads() // processes)))


def start_process(
    serve: Callable[[Connection], None], variables: Mapping[str, str], daemon: bool
) -> tuple[SpawnProcess, Connection]:
    """A new process that runs `serve` of a connection, and this end of that. Its environment has the `variables` before
    it receives anything, and so imports numpy, whose threads are counted then."""
    connection, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_begin, args=(serve, theirs, dict(variables)), daemon=daemon)
    with _PROCESSES, _without_interrupts():
        process.start()
    theirs.close()
    return process, connection


class Worker:
    """`function` in a process of its own, which is started when it is first needed and replaced when it dies.

    `worker(item)` is `function(item)` or a Failure; of several threads, each waits for its turn. To be closed. Raises
    JointspaceError where no process can be started, or it was closed.
    """

    def __init__(self, function: Callable[[Any], Any], variables: Mapping[str, str] | None = None) -> None:
        """The process has the environment's `variables` (None: those of one thread) beside this one's."""
        self._function = function
        self._variables = variables or dict.fromkeys(runtime.THREAD_VARIABLES, "1")
        self._turn = threading.Lock()
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None
        self._closed = False
        self._excess = ""

    def __call__(self, item: Any) -> Any:
        """Calls `function` of an item, once more in a new process if it runs out of memory."""
        (outcome,) = self.map([item])
        return self.map([item])[0] if lacked_memory(outcome) else outcome

    def map(self, items: list[Any]) -> list[Any]:
        """Returns `function` of each item, or a Failure. An item on which the process dies is tried once more, since
        that may not have been its fault. An item that takes too long, or runs out of memory, is not tried again here;
        after one that runs out of memory a new process is started."""
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
                            continue
                        results.append(message)
                        if lacked_memory(message):
                            self._bury()
                            break
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
        with _PROCESSES:
            if self._closed:
                raise JointspaceError("the worker process was stopped")
            self._process, self._connection = start_process(_serve, self._variables, daemon=True)
        try:
            self._connection.send(self._function)
            self._connection.recv()
        except (EOFError, OSError):
            self._bury()
            raise JointspaceError(
                "worker processes die before they begin, as their messages above say; set their number to 0 to do"
                " without"
            ) from None
        return self._connection

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
        return {-signal.SIGPROF: self._excess, -signal.SIGKILL: KILLED}.get(code, DIED)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """A process started within leaves Ctrl-C to this one from its first moment on."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def behind(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """What `function` returns of each item, but None, in order, called by another thread while this one makes the next
    items. Raises what it raises; also after an error it is called of the items that have come."""
    under_way: deque[Future] = deque()
    with ThreadPoolExecutor(1) as thread:
        for item in items:
            under_way.append(thread.submit(function, item))
            while under_way and (len(under_way) > BEHIND or under_way[0].done()):
                if (result := under_way.popleft().result()) is not None:
                    yield result
        yield from (result for future in under_way if (result := future.result()) is not None)


# --- inside of a worker process

_parent: Connection | None = None
_announced = ""


def _end_with_parent() -> None:
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


@contextmanager
def memory_limit(more: int) -> Iterator[None]:
    """Allow the block so many bytes of memory more than this process has, beside the stacks of a thread per core, if it
    is a worker process on Linux. What needs more raises MemoryError, or whatever a library raises then."""
    if _parent is None or sys.platform != "linux":
        yield
        return
    before, most = resource.getrlimit(resource.RLIMIT_DATA)
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[5]) * resource.getpagesize()
    limit = taken + more + (os.cpu_count() or 1) * STACK
    if taken and (before == resource.RLIM_INFINITY or limit < before):  # some sandboxes do not say what is taken
        resource.setrlimit(resource.RLIMIT_DATA, (limit, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, most))


def attempt(function: Callable[[Any], Any], item: Any) -> Any:
    """`function(item)`, or a Failure."""
    try:
        return function(item)
    except Exception as error:
        return Failure(_reason(error))


def _begin(serve: Callable[[Connection], None], connection: Connection, variables: Mapping[str, str]) -> None:
    os.environ.update(variables)
    _end_with_parent()
    serve(connection)


def _serve(connection: Connection) -> None:
    """Receive a function and send None, then the function of each item of the lists that come, in order, until the
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
                except Exception as error:  # it cannot travel
                    connection.send(Failure(_reason(error)))


def stream(connection: Connection) -> None:
    """Receive a generator, and send what it yields of items that are asked for by None, until None comes."""
    function = connection.recv()

    def ask() -> Any:
        connection.send(None)
        return connection.recv()

    try:
        for result in function(iter(ask, None)):
            connection.send(result)
    except JointspaceError as error:
        connection.send(error)


def _reason(error: Exception) -> str:
    """Our own errors speak for themselves."""
    if isinstance(error, MemoryError):
        return f"{OUT_OF_MEMORY}: {str(error) or 'there is not enough memory for it'}"
    return str(error) if isinstance(error, JointspaceError) else f"{type(error).__name__}: {error}"


def private_folder(folder: Path, remedy: str) -> Path:
    """Make `folder` if it does not exist, so that only this user can read it, and return it.

    Raises UsageError, which ends with the `remedy`, if it is a link, belongs to another user, or cannot be made.
    """
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=True)
        status = folder.lstat()
    except OSError as error:
        raise UsageError(f"{folder} cannot be made ({error.strerror}); {remedy}") from error
    if not stat.S_ISDIR(status.st_mode) or (hasattr(os, "getuid") and status.st_uid != os.getuid()):
        raise UsageError(f"{folder} is not a folder of yours; remove it, or {remedy}")
    return folder
