"""What a server shows, each gallery as its index is now, and the threads that work for it."""

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from pipeline.serve.border import Limits, Metrics
from pipeline.serve.gallery import ServedGallery

if TYPE_CHECKING:
    from pipeline.generate.describing import Generator, Sources

P = ParamSpec("P")
R = TypeVar("R")
LOOK_SECONDS = 1.0
"""How long a gallery is shown before its index is looked at again."""


class ServedIndex:
    """The gallery that `open()` gives of the index `name`. It is opened again once `stamp()` has changed, which is
    another value for every index, and None while there is none.

    The index is looked at in a thread, at most once a second; requests for its gallery wait for that.
    """

    def __init__(
        self, name: str, open: Callable[[], ServedGallery], stamp: Callable[[], Hashable | None] = lambda: None
    ) -> None:
        self._name = name
        self._open = open
        self._stamp = stamp
        self._shown = stamp()
        self.gallery = open()
        self._looked = time.monotonic()
        self._lock = asyncio.Lock()
        self._warning = ""

    async def renewed(self) -> ServedGallery:
        """The gallery, as its index is now."""
        async with self._lock:
            if time.monotonic() - self._looked > LOOK_SECONDS:
                await asyncio.to_thread(self._renew)
                self._looked = time.monotonic()
            return self.gallery

    def _renew(self) -> None:
        """Open the index again if it is another one; what cannot be opened yet is tried again."""
        stamp = self._stamp()
        if stamp is None or stamp == self._shown:
            return
        log = logging.getLogger(__name__)
        try:
            self.gallery = self._open()
        except Exception as error:  # whatever is wrong with the new index must not end what the old one answers
            if str(error) != self._warning:
                log.warning("%s was replaced and cannot be opened (%s); the previous one is served", self._name, error)
            self._warning = str(error)
        else:
            self._shown = stamp
            log.info("%s was replaced and reopened", self._name)


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

    def describe(self, features: Mapping[str, np.ndarray], top: int) -> Sequence[Mapping[str, Any]]:
        """At most `top` sentences, best first, for the photograph that these features, encoder -> (1, dim), are of."""
        from pipeline.generate.describing import describe_images  # and torch, which searches do without

        return describe_images(self.generator, features, self.sources, top)[0]


@dataclass(frozen=True)
class Service:
    """The indexes and generators, by name, and the threads that work for them, each kind with a queue of its own:
    searches; one thread that looks at `uploads`, one that encodes photographs, one that describes them, and one that
    shows those of the index, so that nobody's upload holds up the thumbnails."""

    indexes: Mapping[str, ServedIndex]
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

    async def run(
        self, pool: Executor, function: Callable[P, R], *arguments: P.args, **named: P.kwargs
    ) -> tuple[R, float]:
        """Call `function` in a thread of `pool`, and return its result and the seconds that it took there."""
        return await asyncio.get_running_loop().run_in_executor(pool, _timed, partial(function, *arguments, **named))


def _timed(function: Callable[[], R]) -> tuple[R, float]:
    start = time.perf_counter()
    return function(), time.perf_counter() - start
