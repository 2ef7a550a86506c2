"""Dask's schedulers: reaching one, and the packages that are needed for it."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.errors import UsageError

CONNECT_SECONDS = 10
"""Within which a Dask scheduler must answer."""


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
