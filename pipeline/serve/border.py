"""What stands around the application: who may ask, how much at a time, and what a browser may do with the answer.

Connections that say nothing, slow readers and visitors from the open internet are a reverse proxy's (docs/faults.md).
"""

import asyncio
import logging
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.errors import UsageError

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
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
ANY = "*"
NAME = re.compile(r"(\*\.)?[^*:/@\s]+|\[[0-9A-Fa-f:.]+\]")


@dataclass(frozen=True)
class Limits:
    """The limits of what visitors may ask: `top` results by default, at most `max_top`; `among` as in Searcher.analogy.

    Sentences have at most `max_sentence_chars` characters, uploads at most `max_upload_bytes` bytes that arrive within
    `upload_seconds`. Of more than `max_requests` requests at a time, half as many uploads, or `max_descriptions`
    photographs that are described or wait for it, the rest is refused.
    """

    top: int
    among: int
    max_sentence_chars: int
    max_requests: int
    max_top: int = 2000
    max_upload_bytes: int = 20_000_000
    upload_seconds: float = 30
    max_descriptions: int = 16


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an address, or a name of it."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address.lower() == LOOPBACK[0]


def in_address(host: str) -> str:
    """`host` as it stands in an address: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host and host[0] != "[" else host


def trusted_hosts(host: str, bound: str, allowed: Collection[str]) -> list[str]:
    """The names in `Host` that a server at the address `bound`, that of `host`, answers to: a page elsewhere can have
    its own name lead here (DNS rebinding). Any name, if others reach it and none is `allowed`. Raises UsageError."""
    for name in allowed:
        if not NAME.fullmatch(in_address(name)):
            raise UsageError(f"--allow-host {name} is not a host name; give it without a scheme and a port")
    if not is_loopback(bound) and not allowed:
        return [ANY]
    return [*LOOPBACK, *map(in_address, (host, *allowed))]


class Metrics:
    """Counts and latencies by route, for Prometheus. Routes are templates of ours, never what a visitor sent."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        labels = ("route", "status")
        self.in_progress = Gauge("jointspace_requests_in_progress", "requests being answered", registry=self._registry)
        self._requests = Counter("jointspace_requests", "requests answered", labels, registry=self._registry)
        self._errors = Counter("jointspace_errors", "those of status 400 or more", labels, registry=self._registry)
        self._seconds = Histogram(
            "jointspace_request_seconds", "from head to answer", ("route",), registry=self._registry
        )

    def record(self, route: str, status: int, seconds: float) -> None:
        """A request of `route` was answered with `status` after `seconds`."""
        self._requests.labels(route, status).inc()
        if status >= 400:
            self._errors.labels(route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def to_text(self) -> bytes:
        """All of it, in Prometheus's text format."""
        return generate_latest(self._registry)


class Border:
    """The outermost layer, so that refusals and failures are counted and carry the headers like all answers.

    Refuses with 403 what a page of another origin sends, with 503 what is too many, with 413 what is too large, and
    with 408 what takes too long to arrive. Uploads get half of the places at most, so that slow ones leave room for
    questions in words.
    """

    def __init__(self, app: ASGIApp, limits: Limits, metrics: Metrics, headers: Mapping[str, str]) -> None:
        self.app = app
        self._limits = limits
        self._metrics = metrics
        self._headers = {**HEADERS, **headers}
        self._requests = 0
        self._uploads = 0
        self._most_bytes = limits.max_upload_bytes + ENVELOPE
        self._too_large = f"the upload is larger than {limits.max_upload_bytes} bytes; send a smaller photo"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # of what GET answers; the server sends no body
            scope = {**scope, "method": "GET"}
        start = time.perf_counter()
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._leave(scope, status, start)  # whoever reads slowly keeps no place
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        self._enter(scope)
        try:
            await (self._refusal(scope) or self.app)(scope, self._bounded(receive), answer)
        except asyncio.CancelledError:
            pass  # the server stops, and this visitor reads nothing; a traceback would tell nobody anything
        except Exception:
            logging.getLogger(__name__).exception("a request for %s failed", scope["path"])
            if not status:
                await _refuse(500, "this failed; the server's log says why")(scope, receive, answer)
        finally:
            if not status:
                self._leave(scope, status, start)

    def _enter(self, scope: Scope) -> None:
        self._requests += 1
        self._uploads += scope["method"] == "POST"
        self._metrics.in_progress.inc()

    def _leave(self, scope: Scope, status: int, start: float) -> None:
        self._requests -= 1
        self._uploads -= scope["method"] == "POST"
        self._metrics.in_progress.dec()
        route = getattr(scope.get("route"), "path", "other")
        self._metrics.record(route, status, time.perf_counter() - start)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        origin = headers.get("Origin")
        if origin is not None and not _is_own(origin, headers.get("Host", "")):
            return _refuse(403, "a page of another site sent this; ask from this server's own page, or from a program")
        places = self._limits.max_requests
        crowded = self._requests > places or scope["method"] == "POST" and self._uploads > max(1, places // 2)
        if crowded and scope["path"] not in ALWAYS:
            return _refuse(503, "too many requests at once; try again in a second", {"Retry-After": "1"})
        length = headers.get("Content-Length", "0")
        if not length.isdecimal() or len(length) > 20 or int(length) > self._most_bytes:
            return _refuse(413, self._too_large)
        return None

    def _bounded(self, receive: Receive) -> Receive:
        """`receive`, counting bytes and seconds until the body is complete: no length may have been announced."""
        size = 0
        deadline = time.monotonic() + self._limits.upload_seconds
        complete = False

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
            if size > self._most_bytes:
                raise HTTPException(413, self._too_large)
            return message

        return receive_some


def _is_own(origin: str, host: str) -> bool:
    """Whether a page of `origin` (`null` of a page without one) was served under the name and port in `host`. TLS may
    end before us, so that `origin` says https; the usual ports may be left out."""
    scheme, _, site = origin.lower().partition("://")
    usual = {"http": ":80", "https": ":443"}.get(scheme)
    return usual is not None and site.removesuffix(usual) == host.lower().removesuffix(usual)


def _refuse(status: int, error: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": error}, status, headers)
