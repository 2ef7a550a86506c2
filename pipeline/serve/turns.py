"""What takes seconds, one after the other, for as many as may wait."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request
from starlette.exceptions import HTTPException

LEFT = 499
"""The status of a request whose visitor did not wait for its turn; nobody reads it but the metrics."""


class Turns:
    """At most `places` requests have their turn or wait for it; one more is refused with 503."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._taken = 0
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def take(self, request: Request) -> AsyncIterator[None]:
        """The turn of `request`; one whose visitor has left in the meantime does without."""
        if self._taken >= self._places:
            raise HTTPException(503, "too many photographs at once; try again in a second", {"Retry-After": "1"})
        self._taken += 1
        try:
            async with self._turn:
                if await request.is_disconnected():
                    raise HTTPException(LEFT, "the visitor has left")
                yield
        finally:
            self._taken -= 1
