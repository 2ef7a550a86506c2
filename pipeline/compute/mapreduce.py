"""Map and reduce over shards, with the same sum in one process and on the workers of a Dask cluster.

Items are mapped in any order by any worker. Their results are combined in the order of the items and in the same
groups: at most eight runs of neighbours are summed from left to right, and then the sums of the runs are. The outcome
is therefore the same to the last bit wherever it is computed, and however many workers are lost: the results of a lost
worker are computed again elsewhere from the same items. No worker waits for a sum over all items before its own. A
single process holds three results: the sum so far, the sum of the run, and the next result.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from pipeline.errors import UsageError

if TYPE_CHECKING:
    from distributed import Client
    from distributed.deploy.cluster import Cluster

Item = TypeVar("Item")
Result = TypeVar("Result")

LOCAL = "local"
MAX_RUNS = 8
"""Number of sums that are independent of each other."""
MAX_CONNECT_SECONDS = 10
"""Time in which a Dask scheduler must answer."""


def map_reduce(
    function: Callable[..., Result],
    items: Iterable[Item],
    combine: Callable[[Result, Result], Result],
    scheduler: str = LOCAL,
    shared: tuple[object, ...] = (),
    absorb: Callable[[Result, Result], Result] | None = None,
) -> Result:
    """Reduce the results of `function(item, *shared)` of all `items`, at least one, in order, by `combine`.

    `combine` must be associative. If `scheduler` is `local`, items are computed here, one after another, and `absorb`
    takes the place of `combine`: it writes the result into its first argument. Otherwise `scheduler` is the address of
    a Dask scheduler, `tcp://host:port`, whose workers see the same files and have this package. Then the function,
    items, results and `shared` travel by pickle, and `shared` only once to each worker. Raises UsageError if the
    scheduler does not answer.
    """
    items = list(items)
    if scheduler == LOCAL:
        return _in_order((function(item, *shared) for item in items), len(items), absorb or combine)
    delayed = import_extra("dask", "cluster").delayed
    mapped, summed = delayed(function, pure=False), delayed(combine, pure=False)
    with connect(scheduler, scheduler) as client:
        placed = [client.scatter(value, broadcast=True, hash=False) for value in shared]
        total = _in_order((mapped(item, *placed) for item in items), len(items), summed)
        return client.compute(total, sync=True)  # pyright: ignore[reportReturnType]  # not typed: a result if `sync`


def _in_order(results: Iterator[Result], count: int, combine: Callable[[Result, Result], Result]) -> Result:
    """Reduce the `count` next results in at most MAX_RUNS runs."""
    length = -(-count // MAX_RUNS)
    runs = (reduce(combine, islice(results, length)) for _ in range(0, count, length))
    return reduce(combine, runs)


@contextmanager
def connect(cluster: "str | Cluster", name: str) -> "Iterator[Client]":
    """Connect to `cluster`, an address or one of Dask's clusters. Raises UsageError with its `name` if none answers."""
    distributed = import_extra("distributed", "cluster")
    try:
        client = distributed.Client(cluster, timeout=MAX_CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise UsageError(f"no Dask scheduler answers at {name}; start one with `dask scheduler`") from error
    with client:
        yield client


def import_extra(module: str, extra: str) -> ModuleType:
    """Import `module`, which comes with jointspace[extra]. Raises UsageError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"this scheduler needs {module}: pip install 'jointspace[{extra}]'") from error
