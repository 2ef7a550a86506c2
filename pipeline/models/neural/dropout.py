"""Dropout with torch's own masks on the processor, drawn in less time."""

import math
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

BITS, BLOCK = 53, 1 << 16
"""Random bits of an entry, and how many entries are drawn at once, so that they stay in the cache."""


def dropout(x: Tensor, share: float, training: bool) -> Tensor:
    """`torch.nn.functional.dropout`: the same bits, and the same random numbers are left.

    Where torch turns 53 random bits into a double for each entry, to see whether that is below 1 - share, the bits
    themselves are compared. Where it draws otherwise, as by MKL on Intel's processors, it is left to do so.
    """
    plain = x.device.type == "cpu" and x.dtype == torch.float32 and type(x) is Tensor and x.is_contiguous()
    if not (training and 0 < share < 1 and plain and _draws_as_torch()):
        return functional.dropout(x, share, training)
    kept = draw_kept(x.shape, 1 - share).div_(1 - share)
    return x * kept if x.requires_grad else kept.mul_(x)


def draw_kept(shape: torch.Size, share: float, generator: torch.Generator | None = None) -> Tensor:
    """Float32 of this shape: 1 with the probability `share`, else 0, as `bernoulli_` on most processors."""
    kept, below = torch.empty(shape), math.ceil(share * (1 << BITS))
    for part in kept.view(-1).split(BLOCK):
        bits = torch.empty(len(part), dtype=torch.int64).random_(generator=generator)
        part.copy_(bits.bitwise_and_((1 << BITS) - 1).lt_(below))
    return kept


@cache
def _draws_as_torch() -> bool:
    """Whether `bernoulli_` makes the same of the same random numbers here, and leaves the same."""
    ours, theirs = torch.Generator().manual_seed(0), torch.Generator().manual_seed(0)
    shape = torch.Size([2, 999])
    equal = torch.equal(draw_kept(shape, 0.7, ours), torch.empty(shape).bernoulli_(0.7, generator=theirs))
    return equal and torch.equal(ours.get_state(), theirs.get_state())
