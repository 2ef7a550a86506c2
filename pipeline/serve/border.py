"""The outermost layer of the server: it checks who sends a request, limits the load, and sets security headers.

Idle connections, slow readers and visitors from the open internet need a reverse proxy (docs/serving.md).
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

UNLIMITED_PATHS = ("/api/health", "/metrics")
"""Paths whose requests are answered even if the server has too many requests at the same time."""
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Security headers of every answer."""
MAX_FORM_OVERHEAD_BYTES = 65536
"""Number of bytes by which the body of a request may be larger than `Limits.max_upload_bytes`, because a form has more
than the photo. A larger body is refused with status 413."""
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
ANY_HOST = "*"
"""Pattern of Starlette's TrustedHostMiddleware that allows every host name."""
HOST_PATTERN = re.compile(r"(\*\.)?[^*:/@\s]+|\[[0-9A-Fa-f:.]+\]")
"""Pattern of a name in a `Host` header without a port: a host name, `*.` followed by a host name, or an IPv6 address in
brackets."""


@dataclass(frozen=True)
class Limits:
    """Default values and limits of requests to the search server. A request beyond a limit is refused with an error."""

    top: int
    """Number of results if a request has no `top`."""
    among: int
    """Number of best results of /arithmetic that Searcher.analogy sorts again, by the distances of their vectors from
    the mean of these vectors."""
    max_sentence_chars: int
    """Maximum number of characters of all texts of a request together."""
    max_requests: int
    """Maximum number of requests at the same time. At most half of them, but at least one, may be uploads (POST)."""
    max_top: int = 2000
    """Largest number of results that a request may ask for."""
    max_upload_bytes: int = 20_000_000
    """Maximum size of an uploaded photo in bytes. A larger photo is refused with status 413."""
    upload_seconds: float = 30
    """Number of seconds, from the end of a request's headers, within which the body must have arrived. A request with a
    slower body is refused with status 408."""
    max_descriptions: int = 16
    """Maximum number of photos that are being captioned or wait to be captioned. A further request for generated
    captions is refused with status 503."""


def is_loopback(address: str) -> bool:
    """Return whether `address` can be reached from this machine only: a loopback IP address or the name `localhost`.

    Every other host name counts as reachable from other machines.
    """
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address.lower() == LOOPBACK_HOSTS[0]


def in_address(host: str) -> str:
    """Return `host` as a URL contains it. An IPv6 address gets brackets."""
    return f"[{host}]" if ":" in host and host[0] != "[" else host


def trusted_hosts(host: str, bound: str, allowed: Collection[str]) -> list[str]:
    """Return the names in the `Host` header that the server answers to, as protection against DNS rebinding.

    `host` is the name that the server listens on, and `bound` is the IP address of `host`. The result has the
    LOOPBACK_HOSTS, `host` and the `allowed` names. If other machines can reach `bound` and `allowed` is empty, the
    result is ANY_HOST alone, so every name is answered. Raises UsageError if an allowed name does not match
    HOST_PATTERN.
    """
    for name in allowed:
        if not HOST_PATTERN.fullmatch(in_address(name)):
            raise UsageError(
                f"--allow-host {name} is not a host name. Write the host name of the server without scheme and port,"
                " such as search.example.org."
            )
    if not is_loopback(bound) and not allowed:
        return [ANY_HOST]
    return [*LOOPBACK_HOSTS, *map(in_address, (host, *allowed))]


class Metrics:
    """Numbers of requests and errors, and latencies in seconds, for each route, in the registry of Prometheus.

    A route is a path template such as /api/models/{model}/images, or `other` for a path without a route. The requested
    paths themselves are not used as labels, because visitors could request an unlimited number of them.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        labels = ("route", "status")
        self.in_progress = Gauge(
            "jointspace_requests_in_progress", "Number of requests that are being answered", registry=self._registry
        )
        self._requests = Counter("jointspace_requests", "Number of requests answered", labels, registry=self._registry)
        self._errors = Counter(
            "jointspace_errors",
            "Number of requests answered with status 400 or higher",
            labels,
            registry=self._registry,
        )
        self._seconds = Histogram(
            "jointspace_request_seconds",
            "Seconds from the head of a request to the head of its answer",
            ("route",),
            registry=self._registry,
        )

    def record(self, route: str, status: int, seconds: float) -> None:
        """Count a request for `route` that was answered with the HTTP `status` after `seconds`, also as an error if the
        status is at least 400. The status is 0 if the request ended without an answer."""
        self._requests.labels(route, status).inc()
        if status >= 400:
            self._errors.labels(route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def to_text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)


class Border:
    """The outermost ASGI middleware. It refuses requests, adds the security headers, and records metrics.

    A request is refused with status 403 if a page of another origin sent it, with 503 if there are too many requests at
    the same time (except for UNLIMITED_PATHS), with 413 if its body is too large, and with 408 if the body takes too
    long to arrive. Uploads (POST) may take at most half of `Limits.max_requests`, but at least one, so that slow
    uploads do not block text queries. `headers` are added to HEADERS, and all of them are set in every answer.
    """

    def __init__(self, app: ASGIApp, limits: Limits, metrics: Metrics, headers: Mapping[str, str]) -> None:
        self.app = app
        self._limits = limits
        self._metrics = metrics
        self._headers = {**HEADERS, **headers}
        self._requests = 0
        self._uploads = 0
        self._most_bytes = limits.max_upload_bytes + MAX_FORM_OVERHEAD_BYTES
        self._too_large = f"The upload is larger than {limits.max_upload_bytes} bytes. Send a smaller photo."

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # HEAD is answered like GET, and the web server drops the body.
            scope = {**scope, "method": "GET"}
        start = time.perf_counter()
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # From here on, the request does not count against max_requests, even if the client reads slowly.
                self._leave(scope, status, start)
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        self._enter(scope)
        try:
            await (self._refusal(scope) or self.app)(scope, self._bounded(receive), answer)
        except asyncio.CancelledError:
            pass  # The server is stopping, so a traceback would not help.
        except Exception:
            logging.getLogger(__name__).exception(
                "The request for the path %s failed because of an internal error. Report the error with its traceback.",
                scope["path"],
            )
            if not status:
                await _refuse(
                    500,
                    "The server could not answer this request because of an internal error. Look for the reason in the"
                    " log of the server.",
                )(scope, receive, answer)
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
            return _refuse(
                403,
                "The request was refused, because a page of another site sent it. Use the search page of this server,"
                " or send the request from a program.",
            )
        limit = self._limits.max_requests
        crowded = self._requests > limit or scope["method"] == "POST" and self._uploads > max(1, limit // 2)
        if crowded and scope["path"] not in UNLIMITED_PATHS:
            return _refuse(
                503,
                "The server is answering too many requests at the same time. Try again in a second.",
                {"Retry-After": "1"},
            )
        length = headers.get("Content-Length", "0")
        if not length.isdecimal() or len(length) > 20 or int(length) > self._most_bytes:
            return _refuse(413, self._too_large)
        return None

    def _bounded(self, receive: Receive) -> Receive:
        """Wrap `receive` so that it limits the size of the body of a request, and the time until the body has arrived.

        The body may come without Content-Length. The wrapped function raises HTTPException, with status 413 for a body
        that is too large and with status 408 after `Limits.upload_seconds`.
        """
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
                raise HTTPException(
                    408,
                    f"The request did not arrive within {self._limits.upload_seconds:g} seconds. Send it again, or send"
                    " a smaller photo.",
                ) from None
            size += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if size > self._most_bytes:
                raise HTTPException(413, self._too_large)
            return message

        return receive_some


def _is_own(origin: str, host: str) -> bool:
    """Return whether the page that sent the `Origin` header `origin` came from the server that the `Host` header `host`
    names.

    The scheme of the origin may be http or https, because a reverse proxy may serve https. The standard port of the
    scheme may be left out in one of the headers. A page without an origin, such as a local file, sends `null`, for
    which the result is False.
    """
    scheme, _, site = origin.lower().partition("://")
    usual = {"http": ":80", "https": ":443"}.get(scheme)
    return usual is not None and site.removesuffix(usual) == host.lower().removesuffix(usual)


def _refuse(status: int, error: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": error}, status, headers)
