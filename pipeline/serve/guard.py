"""Checks on every request: its host, how many there may be, how large, and what a browser may do with the answer.

The outermost layer, so that refusals and failures are counted and carry the headers like all answers.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.serve.hosts import admits
from pipeline.serve.metrics import Metrics

ALWAYS = ("/api/health", "/metrics")
"""Paths that are answered however busy the server is."""
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
ENVELOPE = 65536
"""Bytes of a form beside the photograph in it."""
CONNECTION = "connection"
"""Where the state of a request has its pipeline.serve.connections.TimedProtocol, if it came through one."""


@dataclass(frozen=True)
class Limits:
    """What visitors may ask for: `top` results where a request names no number, at most
    `max_top`; `among` as in Searcher.analogy.

    Sentences have at most `max_sentence_chars` characters, uploads at most `max_upload_bytes` bytes that arrive within
    `upload_seconds`. Of more than `max_requests` requests at a time, half as many uploads, or `max_descriptions`
    photographs that are described or wait for it, the rest is refused.
    """

    top: int
    max_top: int
    among: int
    max_sentence_chars: int
    max_upload_bytes: int
    upload_seconds: float
    max_requests: int
    max_descriptions: int


class Guard:
    """Refuses with 400 what is for none of `hosts` (see pipeline.serve.hosts), with 503 what is too many, with 413 what
    is too large, and with 408 what takes too long to arrive.

    Uploads get half of the places at most, so that slow ones leave room for questions in words. A request has its place
    until its answer is ready, however long the visitor takes to read that.
    """

    def __init__(
        self, app: ASGIApp, limits: Limits, metrics: Metrics, headers: Mapping[str, str], hosts: Collection[str]
    ) -> None:
        self.app, self.limits, self.metrics, self.hosts = app, limits, metrics, hosts
        self.headers = HEADERS | headers
        self.uploads = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        visit = _Visit(self, scope)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self.headers)
                headers.setdefault("Cache-Control", "no-store")
                visit.end(message["status"])
            await send(message)

        try:
            await (self._refusal(scope) or self.app)(scope, self._bounded(receive), answer)
        except Exception:
            logging.getLogger(__name__).exception("a request for %s failed", scope["path"])
            if not visit.ended:
                await _refuse(500, "this failed; the server's log says why")(scope, receive, answer)
        finally:
            visit.end(0)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        if not admits(Headers(scope=scope).getlist("Host"), self.hosts):
            return _refuse(400, "this server goes by another name; ask it by the address that it printed")
        places = self.limits.max_requests
        crowded = self.metrics.in_progress > places or scope["method"] == "POST" and self.uploads > max(1, places // 2)
        if crowded and scope["path"] not in ALWAYS:
            return _refuse(503, "too many requests at once; try again in a second", {"Retry-After": "1"})
        length = Headers(scope=scope).get("Content-Length", "0")
        if not length.isdecimal() or int(length) > self.limits.max_upload_bytes + ENVELOPE:
            return _refuse(413, self._too_large)
        return None

    def _bounded(self, receive: Receive) -> Receive:
        """`receive`, counting bytes and seconds until the body is complete: no length may have been announced."""
        size, deadline, complete = 0, time.monotonic() + self.limits.upload_seconds, False

        async def receive_some() -> Message:
            nonlocal size, complete
            if complete:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0, deadline - time.monotonic()))
            except TimeoutError:
                raise HTTPException(408, "the request took too long to arrive") from None
            size += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if size > self.limits.max_upload_bytes + ENVELOPE:
                raise HTTPException(413, self._too_large)
            return message

        return receive_some

    @property
    def _too_large(self) -> str:
        return f"the upload is larger than {self.limits.max_upload_bytes} bytes; send a smaller photograph"


class _Visit:
    """A request's place among those being answered, from its head until its answer is ready."""

    def __init__(self, guard: Guard, scope: Scope) -> None:
        self.ended = False
        self._guard, self._scope, self._start = guard, scope, time.perf_counter()
        self._connection = scope.get("state", {}).get(CONNECTION)
        self._take(1)
        if self._connection:
            self._connection.begin()

    def end(self, status: int) -> None:
        """The answer is ready, with this status. Only the first time counts."""
        if self.ended:
            return
        self.ended = True
        self._take(-1)
        if self._connection:
            self._connection.answer()
        route = getattr(self._scope.get("route"), "path", "other")
        self._guard.metrics.record(route, status, time.perf_counter() - self._start)

    def _take(self, places: int) -> None:
        self._guard.metrics.in_progress += places
        if self._scope["method"] == "POST":
            self._guard.uploads += places


def _refuse(status: int, error: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": error}, status, headers)
