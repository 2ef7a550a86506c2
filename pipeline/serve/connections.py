"""How long a connection may keep the server waiting, and how many there may be.

uvicorn closes a connection that is silent after an answer, and bounds what a request's head may hold. It waits for ever
for the first head, for the rest of one, and for a visitor to read. `TimedProtocol` ends these waits; `Guard` tells it
when a request begins and when its answer is ready.
"""

import asyncio
import math
import resource
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol

from pipeline.serve.guard import CONNECTION

HEAD_BYTES = 1 << 14
"""Of a request's head beside the sentence in it."""
SENT_BYTES = 12
"""Of a character of a sentence in an address at most: four bytes, each as %XX."""
BACKLOG = 128
"""Connections that are accepted at once, before the first of them can be refused."""
LAST_SECONDS = 5
"""In which visitors must have read their answers when the server is stopped. What is still computed then may take as
long again."""

SEND_SECONDS = 0.5
"""In which an answer reaches a visitor who reads."""

FORGET = struct.pack("ii", 1, 0)
"""SO_LINGER: on, for no seconds."""


@dataclass(frozen=True)
class Patience:
    """Seconds in which a visitor must have sent a request's head, and in which its answer must have been read; and how
    many connections there are at most."""

    head_seconds: float
    answer_seconds: float
    max_connections: int


class Crowd:
    """The connections of a server, at most `most`. One more closes the one that has kept the server waiting longest, so
    that visitors with a request are answered however many others only connect."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: set[TimedProtocol] = set()
        self._waiting: dict[TimedProtocol, None] = {}  # the longest first
        self._last = math.inf

    def close(self) -> None:
        """The server stops: no connection may wait longer than LAST_SECONDS from now."""
        self._last = min(self._last, asyncio.get_running_loop().time() + LAST_SECONDS)

    def bound(self, seconds: float) -> float:
        """How many of `seconds` a connection may wait from now on. An answer can always be sent."""
        return min(seconds, max(self._last - asyncio.get_running_loop().time(), SEND_SECONDS))

    def enter(self, connection: "TimedProtocol") -> None:
        self._open.add(connection)
        if len(self._open) > self._most:
            superfluous = next(iter(self._waiting), connection)
            self.leave(superfluous)
            superfluous.drop()

    def leave(self, connection: "TimedProtocol") -> None:
        self._open.discard(connection)
        self.stop_waiting(connection)

    def stop_waiting(self, connection: "TimedProtocol") -> None:
        """It is the server's turn."""
        self._waiting.pop(connection, None)

    def wait_for(self, connection: "TimedProtocol") -> bool:
        """It is the visitor's turn, if the connection is still open; returns whether it is."""
        self.stop_waiting(connection)
        if connection in self._open:
            self._waiting[connection] = None
        return connection in self._open


class TimedProtocol(H11Protocol):
    """uvicorn's protocol, which ends a connection whose visitor does not go on in time."""

    def __init__(self, *, app_state: dict[str, Any], crowd: Crowd, patience: Patience, **given: Any) -> None:
        super().__init__(app_state={**app_state, CONNECTION: self}, **given)
        self._crowd, self._patience = crowd, patience
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._crowd.enter(self)
        self._wait(self._patience.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.leave(self)
        self._stop_waiting()
        super().connection_lost(exc)

    def begin(self) -> None:
        """A request's head has arrived. A visitor who has not read the previous answer is still waited for."""
        if not self.transport.get_write_buffer_size():
            self._stop_waiting()
            self._crowd.stop_waiting(self)

    def answer(self) -> None:
        """The answer is ready: the visitor has so many seconds to read it, and to send the head of another request."""
        self._wait(self._patience.answer_seconds)

    def shutdown(self) -> None:
        super().shutdown()
        self._crowd.close()
        if self._deadline:
            self._wait(self._patience.answer_seconds)

    def drop(self) -> None:
        """Close the connection at once, and have the system discard what has not been read."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, FORGET)
        self.transport.abort()

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        if self._crowd.wait_for(self):
            self._deadline = asyncio.get_running_loop().call_later(self._crowd.bound(seconds), self.drop)

    def _stop_waiting(self) -> None:
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None


def make_config(app: Any, patience: Patience, max_sentence_chars: int) -> Config:
    """uvicorn's settings for a server of `app` on an open socket. As many files may be open from now on as the system
    allows; half of them may be connections."""
    files = _raise_file_limit()
    crowd = Crowd(min(patience.max_connections, files // 2))

    def make_protocol(**given: Any) -> TimedProtocol:
        return TimedProtocol(crowd=crowd, patience=patience, **given)

    return Config(
        app,
        http=make_protocol,
        ws="none",
        proxy_headers=False,
        h11_max_incomplete_event_size=HEAD_BYTES + SENT_BYTES * max_sentence_chars,
        backlog=max(1, min(BACKLOG, files // 4)),
        timeout_graceful_shutdown=2 * LAST_SECONDS,
        log_level="warning",
        access_log=False,
        server_header=False,
    )


def _raise_file_limit() -> int:
    """How many files this process may have open, which is from now on as many as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # where the system names no limit, but has one
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard if hard != resource.RLIM_INFINITY else 2**30
    return soft
