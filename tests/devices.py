"""What stands for a GPU that has too little memory, and for one that copies when it comes to it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pipeline.device import OomBatcher


def full_beyond(most: int, done: list[int]) -> Callable[..., list[Any]]:
    """`OomBatcher.map` as on a GPU that has memory for `most` rows; the rows of each portion are added to `done`."""
    original = OomBatcher.map

    def map_portions(self: OomBatcher, function: Callable[[slice], Any], count: int) -> list[Any]:
        def limited(rows: slice) -> Any:
            if rows.stop - rows.start > most:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            result = function(rows)
            done.append(rows.stop - rows.start)
            return result

        return original(self, limited, count)

    return map_portions


class FakeStream:
    """A GPU's stream: copies to the processor's pinned memory are done, in their order, when an event behind them is
    waited for, and until then that memory holds NaN."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.copied, self._queue = 0, []
        plain = torch.empty

        def empty(*shape: Any, pin_memory: bool = False, **how: Any) -> torch.Tensor:
            if not pin_memory:
                return plain(*shape, **how)
            pinned = plain(*shape, **how).fill_(float("nan")).as_subclass(_Pinned)
            pinned.stream = self
            return pinned

        monkeypatch.setattr(torch, "empty", empty)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self)
        monkeypatch.setattr(torch.cuda, "Event", lambda: _Event())

    def computed(self, values: torch.Tensor) -> torch.Tensor:
        """`values` as a tensor of the GPU."""
        return values.as_subclass(_OnGpu)

    def enqueue(self, copy: Callable[[], Any]) -> None:
        self._queue.append(copy)

    def length(self) -> int:
        return self.copied + len(self._queue)

    def advance(self, to: int) -> None:
        while self.copied < to:
            self._queue.pop(0)()
            self.copied += 1


class _OnGpu(torch.Tensor):
    device = property(lambda self: torch.device("cuda:0"))


class _Pinned(torch.Tensor):
    stream: FakeStream

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        assert non_blocking
        self.stream.enqueue(lambda: torch.Tensor.copy_(self, source.as_subclass(torch.Tensor)))
        return self


class _Event:
    def record(self, stream: FakeStream) -> None:
        self._stream, self._at = stream, stream.length()

    def synchronize(self) -> None:
        self._stream.advance(self._at)
