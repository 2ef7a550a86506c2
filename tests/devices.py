"""Where what a GPU computes is compared with numpy: by the same code on the processor, and on a GPU where there is one."""

import pytest
import torch

without_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
DEVICES = [
    pytest.param(torch.device("cpu"), id="cpu"),
    pytest.param(torch.device("cuda"), id="cuda", marks=[pytest.mark.gpu, without_gpu]),
]


def full_beyond(most: int, count: list[int]):
    """A stand-in for `Portions.map` as on a GPU that has memory for `most` rows: it notes each portion in `count`."""
    from pipeline.device import Portions

    original = Portions.map

    def map_portions(self: Portions, function, total: int):
        def limited(rows: slice):
            if rows.stop - rows.start > most:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            count.append(rows.stop - rows.start)
            return function(rows)

        return original(self, limited, total)

    return map_portions
