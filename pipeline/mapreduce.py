"""Map and reduce over shards: the same sum on one process, on threads, and on the workers of a Dask cluster.

Items are mapped in any order and by anyone, but their results are combined in the order of the items and in the same
groups: at most eight runs of neighbours, each from left to right, and then the sums of the runs from left to right. So
the outcome is the same to the last bit wherever it is computed, and however many workers are lost meanwhile: what a
lost worker held is computed again elsewhere, from the same items. And no worker waits for a sum over all that came
before. One process alone holds three results: the sum so far, that of the run, and the next one.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from itertools import islice
from typing import Any, TypeVar

from pipeline import runtime
from pipeline.errors import UsageError

Item = TypeVar("Item")
Result = TypeVar("Result")

LOCAL, THREADS = "local", "threads"
RUNS = 8
"""At most so many sums are taken independently of each other."""
CONNECT_SECONDS = 10
"""Within which a Dask scheduler must answer."""


def map_reduce(
    function: Callable[..., Result],
    items: Iterable[Item],
    combine: Callable[[Result, Result], Result],
    scheduler: str = LOCAL,
    shared: tuple[Any, ...] = (),
    progress: Callable[[list[Item]], Iterable[Item]] = iter,
    absorb: Callable[[Result, Result], Result] | None = None,
) -> Result:
    """`combine` over `function(item, *shared)` of all `items`, at least one, in their order; it must be associative.

    `scheduler` is `local` (one after another, here), `threads` (as many as the libraries may have; the function's own
    products get one each), or the address of a Dask scheduler, `tcp://host:port`, whose workers see the same files and
    have this package. There, function, items, results and `shared` travel by pickle, `shared` once to each worker.
    `progress` may wrap the items to show how far `local` has come; there, `absorb` takes the place of `combine`, whose
    result it makes in its first argument. Raises UsageError for another scheduler, and for one that does not answer.
    """
    items = list(items)
    if scheduler == LOCAL:
        return _in_order((function(item, *shared) for item in progress(items)), len(items), absorb or combine)
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


def _in_order(results: Iterator, count: int, combine: Callable) -> Any:
    """`combine` over the `count` next results, in at most RUNS runs."""
    length = -(-count // RUNS)
    runs = (reduce(combine, islice(results, length)) for _ in range(0, count, length))
    return reduce(combine, runs)


@contextmanager
def connect(cluster: Any, name: str) -> Iterator[Any]:
    """A client of `cluster`, an address or one of Dask's clusters, which `name` names in the message.

    Raises UsageError where none answers.
    """
    distributed = import_extra("distributed", "cluster")
    try:
        client = distributed.Client(cluster, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise UsageError(f"no Dask scheduler answers at {name}; start one with `dask scheduler`") from error
    with client:
        yield client


def import_extra(module: str, extra: str) -> Any:
    """`module`, which comes with jointspace[extra]. Raises UsageError where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"this scheduler needs {module}: pip install 'jointspace[{extra}]'") from error
