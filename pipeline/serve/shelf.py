"""The galleries that a server shows, each as its bundle is now."""

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Mapping

from pipeline.serve.gallery import ServedGallery

LOOK_SECONDS = 1.0
"""How long a gallery is shown before its bundle is checked again."""


def never(name: str) -> ServedGallery | None:
    """No bundle is ever replaced."""
    return None


class Renewal:
    """Reopens a gallery whose bundle has been replaced, by its stamp: `stamps[name]()` is another value for
    every bundle, and None while there is none."""

    def __init__(
        self, stamps: Mapping[str, Callable[[], Hashable | None]], openers: Mapping[str, Callable[[], ServedGallery]]
    ) -> None:
        self._stamps = stamps
        self._openers = openers
        self._opened = {name: stamp() for name, stamp in stamps.items()}
        self._warned: dict[str, str] = {}

    def __call__(self, name: str) -> ServedGallery | None:
        """The gallery `name`, or None if its bundle is the one that was last opened, or cannot be opened yet."""
        stamp = self._stamps[name]()
        if stamp is None or stamp == self._opened[name]:
            return None
        log = logging.getLogger(__name__)
        try:
            gallery = self._openers[name]()
        except Exception as error:  # whatever is wrong with the new bundle must not end what the old one answers
            warning = f"{name} was replaced and cannot be opened ({error}); the previous one is served until it can"
            if self._warned.get(name) != warning:
                log.warning("%s", warning)
            self._warned[name] = warning
            return None
        self._opened[name] = stamp  # only now: a bundle that could not be opened is tried again
        log.info("%s was replaced and reopened", name)
        return gallery


class Shelf:
    """`galleries` by name, each renewed before it is asked if `renew` has another one in its place.

    `renew` is called in a thread, for one gallery at most once a second; requests for that gallery wait for it.
    """

    def __init__(
        self, galleries: Mapping[str, ServedGallery], renew: Callable[[str], ServedGallery | None] = never
    ) -> None:
        self._galleries = dict(galleries)
        self._renew = renew
        self._looked = dict.fromkeys(galleries, time.monotonic())
        self._locks = {name: asyncio.Lock() for name in galleries}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._galleries)

    async def gallery(self, name: str) -> ServedGallery:
        """The gallery `name`, as its bundle is now."""
        async with self._locks[name]:
            if time.monotonic() - self._looked[name] > LOOK_SECONDS:
                renewed = await asyncio.to_thread(self._renew, name)
                self._galleries[name] = renewed or self._galleries[name]
                self._looked[name] = time.monotonic()
            return self._galleries[name]
