"""Map and reduce over shards: the same sum on one process and on the workers of a Dask cluster.

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

from pipeline.errors import UsageError

Item = TypeVar("Item")
Result = TypeVar("Result")

LOCAL = "local"
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
    absorb: Callable[[Result, Result], Result] | None = None,
) -> Result:
    """`combine` over `function(item, *shared)` of all `items`, at least one, in their order; it must be associative.

    `scheduler` is `local` (one after another, here; `absorb` then takes the place of `combine`, whose result it makes
    in its first argument), or the address of a Dask scheduler, `tcp://host:port`, whose workers see the same files and
    have this package: there, function, items, results and `shared` travel by pickle, `shared` once to each worker.
    Raises UsageError for a scheduler that does not answer.
    """
    items = list(items)
    if scheduler == LOCAL:
        return _in_order((function(item, *shared) for item in items), len(items), absorb or combine)
    delayed = import_extra("dask", "cluster").delayed
    mapped, summed = delayed(function, pure=False), delayed(combine, pure=False)
    with connect(scheduler, scheduler) as client:
        placed = [client.scatter(value, broadcast=True, hash=False) for value in shared]
        total = _in_order((mapped(item, *placed) for item in items), len(items), summed)
        return client.compute(total, sync=True)


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
