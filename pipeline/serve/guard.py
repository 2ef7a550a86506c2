"""What stands before every request: how many there may be, how large, and what a browser may do with the answer.

The outermost layer, so that refusals and failures are counted, and bear the headers, like everything else.
"""

import asyncio
import logging
import time
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.serve.limits import Limits
from pipeline.serve.metrics import Metrics

ALWAYS = ("/api/health", "/metrics")
"""Paths that are answered however much there is to do."""
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
ENVELOPE = 65536
"""Bytes of a form beside the photograph in it."""


class Guard:
    """Refuses with 503 what is too many, with 413 what is too large, and with 408 what takes too long to arrive.

    Uploads get half of the places at most, so that slow ones leave room for questions in words.
    """

    def __init__(self, app: ASGIApp, limits: Limits, metrics: Metrics, headers: Mapping[str, str]) -> None:
        self.app = app
        self.limits = limits
        self.metrics = metrics
        self.headers = HEADERS | headers
        self.uploads = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, start = 0, time.perf_counter()

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(self.headers)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        uploads = scope["method"] == "POST"
        self.metrics.in_progress += 1
        self.uploads += uploads
        try:
            await (self._refusal(scope) or self.app)(scope, self._bounded(receive), answer)
        except Exception:
            logging.getLogger(__name__).exception("a request for %s failed", scope["path"])
            if not status:
                await _refuse(500, "this failed; the server's log says why")(scope, receive, answer)
        finally:
            self.metrics.in_progress -= 1
            self.uploads -= uploads
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.record(route, status, time.perf_counter() - start)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
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


def _refuse(status: int, error: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": error}, status, headers)
