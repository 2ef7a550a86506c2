"""Map and reduce over shards: the same sum on one process, on threads, and on the workers of a Dask cluster.

Items are mapped in any order and by anyone, but their results are combined in the order of the items and in the same
pairs: at most eight runs of neighbours, each from left to right, and then the runs two and two. So the outcome is the
same to the last bit wherever it is computed, and however many workers are lost meanwhile: what a lost worker held is
computed again elsewhere, from the same items. And no worker waits for a sum over all that came before.

One process alone holds two results at most, the sum so far and the next one, where it is told how `LargeSums` add up;
what waits for the other half of a pair is in a temporary file meanwhile. A worker holds the results of the items that
it has begun and the sums that are not yet part of another.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from tempfile import TemporaryFile, gettempdir
from typing import Any, Generic, TypeVar

import numpy as np

from pipeline import runtime
from pipeline.clusters import connect, import_extra
from pipeline.errors import JointspaceError, UsageError

Item = TypeVar("Item")
Result = TypeVar("Result")

LOCAL, THREADS = "local", "threads"
RUNS = 8
"""At most so many sums are taken independently of each other."""


@dataclass(frozen=True)
class LargeSums(Generic[Result]):
    """How one process adds results of which it has room for two.

    `combine` does what that of the workers does, to the last bit, but may change its first argument and return it.
    `to_arrays` and `from_arrays` are for the file of a sum that waits: its arrays, and the sum of these.
    """

    combine: Callable[[Result, Result], Result]
    to_arrays: Callable[[Result], Mapping[str, np.ndarray]]
    from_arrays: Callable[[dict[str, np.ndarray]], Result]

    @contextmanager
    def set_aside(self, total: Result) -> Iterator[Callable[[], Result]]:
        """`total` in a file without a name, and a function that reads it back. Raises JointspaceError where the disk
        is full."""
        with TemporaryFile(buffering=0, prefix="jointspace-sum-") as file:
            about = _write(self.to_arrays(total), file)
            del total
            file.seek(0)
            yield lambda: self.from_arrays({name: _read(file, *form) for name, form in about.items()})


def _write(arrays: Mapping[str, np.ndarray], file: FileIO) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Write the arrays one after another; name -> shape and type."""
    try:
        for array in arrays.values():
            left = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            while left:  # one call writes less than is asked for where there is not enough room
                left = left[file.write(left) :]
    except OSError as error:
        folder, size = gettempdir(), sum(array.nbytes for array in arrays.values())
        raise JointspaceError(
            f"a sum of {size:,} bytes does not fit into {folder} ({shutil.disk_usage(folder).free:,} free):"
            f" {error.strerror or error}; make room or set TMPDIR to a folder on another disk"
        ) from error
    return {name: (array.shape, array.dtype) for name, array in arrays.items()}


def _read(file: FileIO, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The next array."""
    array = np.empty(shape, dtype)
    left = array.reshape(-1).view(np.uint8).data
    while left:
        left = left[file.readinto(left) :]
    return array


def map_reduce(
    function: Callable[..., Result],
    items: Iterable[Item],
    combine: Callable[[Result, Result], Result],
    scheduler: str = LOCAL,
    shared: tuple[Any, ...] = (),
    progress: Callable[[list[Item]], Iterable[Item]] = iter,
    large: LargeSums[Result] | None = None,
) -> Result:
    """`combine` over `function(item, *shared)` of all `items`, at least one, in their order; it must be associative.

    `scheduler` is `local` (one after another, here), `threads` (as many as the libraries may have; the function's own
    products get one each), or the address of a Dask scheduler, `tcp://host:port`, whose workers see the same files and
    have this package. There, function, items, results and `shared` travel by pickle, `shared` once to each worker.
    `progress` may wrap the items to show how far `local` has come; there, `large` results are added as that says.
    Raises UsageError for another scheduler, and for one that does not answer.
    """
    items = list(items)
    if scheduler == LOCAL:
        results = (function(item, *shared) for item in progress(items))
        return _in_order(results, len(items), combine, large)
    if scheduler == THREADS:
        return _on_threads(function, items, combine, shared)
    if "://" not in scheduler:
        raise UsageError(f"scheduler {scheduler} is neither local nor threads nor an address like tcp://host:8786")
    return _on_workers(function, items, combine, scheduler, shared)


def _on_threads(function: Callable, items: list, combine: Callable, shared: tuple) -> Any:
    from threadpoolctl import threadpool_limits

    dask = import_extra("dask", "cluster")
    with threadpool_limits(1):
        total = _graph(dask.delayed, function, items, combine, shared)
        return dask.compute(total, scheduler="threads", num_workers=runtime.threads())[0]


def _on_workers(function: Callable, items: list, combine: Callable, address: str, shared: tuple) -> Any:
    dask = import_extra("dask", "cluster")
    with connect(address, address) as client:
        placed = tuple(client.scatter(value, broadcast=True, hash=False) for value in shared)
        return client.compute(_graph(dask.delayed, function, items, combine, placed), sync=True)


def _graph(delayed: Callable, function: Callable, items: list, combine: Callable, shared: tuple) -> Any:
    """The delayed sum; one task for each item, and one for each step of the sum."""
    mapped, summed = delayed(function, pure=False), delayed(combine, pure=False)
    return _in_order((mapped(item, *shared) for item in items), len(items), summed)


def _in_order(
    results: Iterator, count: int, combine: Callable, large: LargeSums | None = None, run: int | None = None
) -> Any:
    """`combine` over the `count` next results: halves of halves, down to runs that are taken from left to right."""
    run, combine = run or -(-count // RUNS), large.combine if large else combine
    if count <= run:
        total = next(results)
        for _ in range(count - 1):  # no name and no frame may keep what was added
            total = combine(total, next(results))
        return total
    first, second = ((results, half, combine, large, run) for half in (count // 2, count - count // 2))
    if large is None:
        return combine(_in_order(*first), _in_order(*second))
    with large.set_aside(_in_order(*first)) as left:
        right = _in_order(*second)
        return combine(left(), right)
