"""What a server shows, each gallery as its bundle is now, and the threads that work for it."""

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pipeline.serve.border import Limits, Metrics
from pipeline.serve.gallery import ServedGallery

if TYPE_CHECKING:
    from pipeline.generate.describing import Generator, Sources

LOOK_SECONDS = 1.0
"""How long a gallery is shown before its bundle is checked again."""


class Renewal(NamedTuple):
    """How a gallery is reopened once its bundle is replaced: `stamp()` is another value for every bundle, and None
    while there is none; `opened` is that of the bundle that is shown."""

    opened: Hashable | None
    stamp: Callable[[], Hashable | None]
    open: Callable[[], ServedGallery]


class Shelf:
    """`galleries` by name, those with one of the `renewals` as their bundles are now.

    A bundle is looked at in a thread, at most once a second; requests for its gallery wait for that.
    """

    def __init__(self, galleries: Mapping[str, ServedGallery], renewals: Mapping[str, Renewal]) -> None:
        self._galleries = dict(galleries)
        self._renewals = renewals
        self._stamps = {name: renewal.opened for name, renewal in renewals.items()}
        self._looked = dict.fromkeys(galleries, time.monotonic())
        self._locks = {name: asyncio.Lock() for name in galleries}
        self._warned: dict[str, str] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._galleries)

    async def gallery(self, name: str) -> ServedGallery:
        """The gallery `name`, as its bundle is now."""
        async with self._locks[name]:
            if name in self._renewals and time.monotonic() - self._looked[name] > LOOK_SECONDS:
                await asyncio.to_thread(self._renew, name)
                self._looked[name] = time.monotonic()
            return self._galleries[name]

    def _renew(self, name: str) -> None:
        """Reopen a gallery whose bundle is another one; what cannot be opened yet is tried again."""
        stamp = self._renewals[name].stamp()
        if stamp is None or stamp == self._stamps[name]:
            return
        log = logging.getLogger(__name__)
        try:
            self._galleries[name] = self._renewals[name].open()
        except Exception as error:  # whatever is wrong with the new bundle must not end what the old one answers
            warning = f"{name} was replaced and cannot be opened ({error}); the previous one is served until it can"
            if self._warned.get(name) != warning:
                log.warning("%s", warning)
            self._warned[name] = warning
        else:
            self._stamps[name] = stamp
            log.info("%s was replaced and reopened", name)


@dataclass(frozen=True)
class Describer:
    """The `generator` of the name `registered` and its `sources`; `top` sentences where a request names no number.

    `features(data)` encodes a photograph's bytes, by at least the generator's encoders; have it called by the thread
    that encodes, and `describe` by one thread at a time.
    """

    registered: str
    generator: "Generator"
    sources: "Sources"
    features: Callable[[bytes], Mapping[str, np.ndarray]]
    top: int

    def describe(self, features: Mapping[str, np.ndarray], top: int) -> list[Mapping[str, Any]]:
        """At most `top` sentences, best first, for the photograph that these features, encoder -> (1, dim), are of."""
        from pipeline.generate.describing import describe_images  # and torch, which searches do without

        return describe_images(self.generator, features, self.sources, top)[0]


@dataclass(frozen=True)
class Service:
    """The galleries and generators, and the threads that work for them, each kind with a queue of its own: searches;
    one thread that looks at `uploads`, one that encodes photographs, one that describes them, and one that shows those
    of the index, so that nobody's upload holds up the thumbnails."""

    shelf: Shelf
    describers: Mapping[str, Describer]
    limits: Limits
    metrics: Metrics
    check: Callable[[bytes], None]
    """Raises InputError for an upload that is no photograph, or too large a one."""
    originals: bool
    """Whether photographs are given as their files are, with what cameras wrote into them."""
    searching: ThreadPoolExecutor
    checking: ThreadPoolExecutor
    encoding: ThreadPoolExecutor
    describing: ThreadPoolExecutor
    showing: ThreadPoolExecutor
    turns: asyncio.Semaphore
    """Of photographs that are described or wait for it."""

    async def run(self, pool: ThreadPoolExecutor, function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
        """What `function` returns in a thread of `pool`, and the seconds that it took there."""
        return await asyncio.get_running_loop().run_in_executor(pool, _timed, function, *arguments)


def _timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    return function(*arguments), time.perf_counter() - start
