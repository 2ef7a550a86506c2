"""What every spec has; finding one by its name."""

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from pipeline.errors import UsageError, meant


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Something registered: its class is at `place`, that of its own settings, if it has any, at `section`; `extra` is
    the extra of the distribution that it needs, or None."""

    name: str
    place: str
    section: str | None = None
    extra: str | None = None

    @property
    def key(self) -> str:
        """Of its own settings in a configuration, or in its entry there."""
        return self.name.replace("-", "_")

    def load(self) -> Any:
        """Its class. UsageError names the extra that is not installed."""
        try:
            return import_place(self.place)
        except ModuleNotFoundError as error:
            if self.extra is None:
                raise
            remedy = f"pip install 'jointspace[{self.extra}]'"
            raise UsageError(f"{self.name} needs {error.name}; {remedy}") from error


AnySpec = TypeVar("AnySpec", bound=Spec)


def find(what: str, name: str, specs: Iterable[AnySpec]) -> AnySpec:
    """The one of `specs` whose `name` this is. UsageError lists the known ones, calling them `what`."""
    known = {spec.name: spec for spec in specs}
    if name not in known:
        raise UsageError(f"unknown {what} {name}; {meant(name, known)}there are {', '.join(known)}")
    return known[name]


def import_place(place: str) -> Any:
    """What stands at `module:name`."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)
