"""Map and reduce over shards or chunks of shards, with equal results in one process and on a Dask cluster.

Any worker may map any item. The results are always combined in the same order and in the same groups: the items are
divided into at most MAX_RUNS runs of consecutive items, each run is combined from left to right, and then the results
of the runs are combined from left to right. The total is therefore equal to the last bit wherever it is computed, even
if workers are lost and other workers repeat their items. The runs are independent, so that no worker waits for the sum
of all earlier items. In a single process, at most three results are in memory at the same time: the sum of all complete
runs, the sum of the current run, and the next result.
"""

import importlib
import math
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
"""Maximum number of runs of consecutive items that are summed independently of each other."""
MAX_CONNECT_SECONDS = 10
"""Maximum number of seconds to wait for the answer of a Dask scheduler. After this time, `connect` raises
UsageError."""

IMAGES_PER_CHUNK = 1 << 17
"""Smallest number of images in one chunk of shards, except for the last chunk. A million images therefore make at most
eight chunks, and a file of moments for each."""
MAX_CHUNKS = 64


def split_into_chunks(shards: int, shard_size: int) -> list[range]:
    """Divide `shards` shards, which are numbered from 0, into chunks, and return the range of shard numbers of each
    chunk.

    A shard has `shard_size` images, and a chunk has the fewest shards with at least IMAGES_PER_CHUNK images. Chunks are
    larger if there would be more than MAX_CHUNKS of them. The size of larger chunks, in shards, is a power of two. The
    ranges do not depend on the number of jobs, so a sum over chunks does not depend on where it was computed. If a
    collection grows, all chunks but the last stay the same until the chunks have to become larger.
    """
    doublings = max(math.ceil(shards / MAX_CHUNKS) - 1, 0).bit_length()
    size = max(math.ceil(IMAGES_PER_CHUNK / shard_size), 1 << doublings)
    return [range(first, min(first + size, shards)) for first in range(0, shards, size)]


def map_reduce(
    function: Callable[..., Result],
    items: Iterable[Item],
    combine: Callable[[Result, Result], Result],
    scheduler: str = LOCAL,
    shared: tuple[object, ...] = (),
    absorb: Callable[[Result, Result], Result] | None = None,
) -> Result:
    """Compute `function(item, *shared)` for each item, and combine the results to one result, in the order of `items`.

    There must be at least one item. `combine(a, b)` must be associative. If `scheduler` is `local`, the items are
    computed in this process, one after another, and `absorb` is used instead of `combine` unless it is None.
    `absorb(a, b)` may write its result into `a`.

    Otherwise `scheduler` is the address of a Dask scheduler, `tcp://host:port`, whose workers have this package and see
    the same files. The function, items, results and `shared` are sent by pickle, and `shared` only once to each worker.
    Raises UsageError if the scheduler does not answer, or if Dask is not installed.
    """
    items = list(items)
    if scheduler == LOCAL:
        return _in_order((function(item, *shared) for item in items), len(items), absorb or combine)
    delayed = import_extra("dask", "cluster").delayed
    mapped = delayed(function, pure=False)
    summed = delayed(combine, pure=False)
    with connect(scheduler, scheduler) as client:
        placed = [client.scatter(value, broadcast=True, hash=False) for value in shared]
        total = _in_order((mapped(item, *placed) for item in items), len(items), summed)
        return client.compute(total, sync=True)  # pyright: ignore[reportReturnType]  # not typed: a result if `sync`


def _in_order(results: Iterator[Result], count: int, combine: Callable[[Result, Result], Result]) -> Result:
    """Combine the next `count` results of an iterator, in at most MAX_RUNS runs (see the docstring of the module)."""
    length = -(-count // MAX_RUNS)
    runs = (reduce(combine, islice(results, length)) for _ in range(0, count, length))
    return reduce(combine, runs)


@contextmanager
def connect(cluster: "str | Cluster", name: str) -> "Iterator[Client]":
    """Connect to `cluster`, which is an address or a Dask cluster, and yield the client. The client is closed after the
    `with` block.

    Raises UsageError if Dask is not installed, or if no scheduler answers within MAX_CONNECT_SECONDS. `name` is the
    address or name of the cluster in the message of the second error.
    """
    distributed = import_extra("distributed", "cluster")
    try:
        client = distributed.Client(cluster, timeout=MAX_CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise UsageError(
            f"No Dask scheduler answers at {name}. Start a scheduler with `dask scheduler`, or correct this address."
        ) from error
    with client:
        yield client


def import_extra(module: str, extra: str) -> ModuleType:
    """Import and return a module that the optional dependencies `extra` of jointspace install. If the module is
    missing, this raises UsageError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"{module} is not installed. Install it with `pip install 'jointspace[{extra}]'`.") from error
