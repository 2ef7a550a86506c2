"""Where the time of an extraction goes."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class Stopwatch:
    """Where the time of an extraction goes; the rest, beside decoding and writing, is the forward pass."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._seconds = Counter(decode=0.0, write=0.0)

    def iterate(self, what: str, items: Iterable[Any]) -> Iterator[Any]:
        """`items`; waiting for each counts as `what`, except for time counted under another name meanwhile."""
        items = iter(items)
        while True:
            with self.measure(what):
                item = next(items, self)
            if item is self:
                return
            yield item

    @contextmanager
    def measure(self, what: str) -> Iterator[None]:
        start, counted = time.perf_counter(), sum(self._seconds.values())
        try:
            yield
        finally:
            meanwhile = sum(self._seconds.values()) - counted
            self._seconds[what] += time.perf_counter() - start - meanwhile

    def move(self, source: str, target: str, share: float) -> None:
        """Count this share of `source` as `target`, which runs in the same processes."""
        seconds = self._seconds[source] * share
        self._seconds[source] -= seconds
        self._seconds[target] += seconds

    def describe(self, images: int) -> str:
        total = time.perf_counter() - self._start
        shares = {**self._seconds, "forward": total - sum(self._seconds.values())}
        parts = ", ".join(f"{what} {seconds / total:.0%}" for what, seconds in shares.items())
        limit = max(shares, key=shares.__getitem__)
        return f"{images} images in {total:.1f} s, {images / total:.0f} images/s: {parts}; limited by {limit}"
