"""What stands for a GPU that has too little memory."""

from collections.abc import Callable
from typing import Any

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
