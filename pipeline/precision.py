"""float16 storage to float32 arithmetic."""

import sys

import numpy as np

TORCH_PAYS = 1 << 26
"""Elements from which importing torch (about 1.5 s) is repaid by its 20 times faster conversion."""


def to_float32(block: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """`block` (any shape, float16 or float32) as float32, written into `out` where given. Exact.

    Uses torch's vectorised conversion when torch is loaded already or the block is large; numpy's otherwise.
    """
    if out is None:
        out = np.empty(block.shape, np.float32)
    if block.dtype == np.float16 and ("torch" in sys.modules or block.size >= TORCH_PAYS):
        import torch

        torch.from_numpy(out).copy_(torch.from_numpy(block))
    else:
        np.copyto(out, block)
    return out
