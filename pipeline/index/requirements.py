"""The requirements that an index is built for."""

import math
from dataclasses import dataclass

MEBI = 1 << 20


@dataclass(frozen=True)
class Requirements:
    """At most `memory` MiB (None: any), at least `recall_floor` of the true neighbours, one query alone in at most
    `latency_ms` (None: any). Up to `exact_limit` vectors are searched exactly where that meets the others. `candidates`
    are factory strings or "auto", measured on `sample` vectors.
    """

    recall_floor: float
    memory: int | None
    latency_ms: float | None
    exact_limit: int
    candidates: str | tuple[str, ...]
    sample: int = 50_000

    @property
    def bytes(self) -> float:
        return math.inf if self.memory is None else self.memory * MEBI

    def failure(self, recall: float, size: int, latency_ms: float) -> str | None:
        """What an index of `size` bytes misses; None: nothing."""
        if recall < self.recall_floor:
            return f"recall below {self.recall_floor:g}"
        if size > self.bytes:
            return f"more than {self.memory} MiB"
        if self.latency_ms is not None and latency_ms > self.latency_ms:
            return f"slower than {self.latency_ms:g} ms"
        return None
