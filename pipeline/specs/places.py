"""Finding a spec by its name, and what it names."""

import importlib
from collections.abc import Iterable
from typing import Any, TypeVar

from pipeline.errors import UsageError

Spec = TypeVar("Spec")


def find(what: str, name: str, specs: Iterable[Spec]) -> Spec:
    """The one of `specs` whose `name` this is. UsageError lists the known ones, calling them `what`."""
    known = {spec.name: spec for spec in specs}
    if name not in known:
        raise UsageError(f"unknown {what} {name}; there are {', '.join(known)}")
    return known[name]


def import_place(place: str) -> Any:
    """What stands at `module:name`."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)
