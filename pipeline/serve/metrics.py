"""What a server has done, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class Metrics:
    """Counts and latencies by route. Routes are templates of ours, never what a visitor sent."""

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
