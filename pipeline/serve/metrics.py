"""What a server has done, in Prometheus's text format."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterator

import numpy as np

RECENT = 2000
"""Requests of a route that its latency percentiles are of: the last ones."""
QUANTILES = (0.5, 0.95, 0.99)


class Metrics:
    """Counts and latencies by route. Routes are templates of ours, never what a visitor sent."""

    def __init__(self) -> None:
        self.in_progress = 0
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._recent: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))

    def record(self, route: str, status: int, seconds: float) -> None:
        """A request of `route` was answered with `status` after `seconds`."""
        self._requests[route, status] += 1
        self._seconds[route] += seconds
        self._recent[route].append(seconds)

    def to_text(self) -> str:
        """All of it; an error is a request with a status of 400 or more."""
        return "\n".join([*self._counters(), *self._latencies(), ""])

    def _counters(self) -> Iterator[str]:
        yield "# TYPE jointspace_requests_in_progress gauge"
        yield f"jointspace_requests_in_progress {self.in_progress}"
        for name, least in (("requests", 0), ("errors", 400)):
            yield f"# TYPE jointspace_{name}_total counter"
            for (route, status), count in sorted(self._requests.items()):
                if status >= least:
                    yield f'jointspace_{name}_total{{route="{route}",status="{status}"}} {count}'

    def _latencies(self) -> Iterator[str]:
        yield "# TYPE jointspace_request_seconds summary"
        totals: Counter[str] = Counter()
        for (route, _), count in self._requests.items():
            totals[route] += count
        for route, recent in sorted(self._recent.items()):
            for quantile, seconds in zip(QUANTILES, np.quantile(recent, QUANTILES), strict=True):
                yield f'jointspace_request_seconds{{route="{route}",quantile="{quantile}"}} {seconds:.6f}'
            yield f'jointspace_request_seconds_sum{{route="{route}"}} {self._seconds[route]:.6f}'
            yield f'jointspace_request_seconds_count{{route="{route}"}} {totals[route]}'
