"""Dropout: the same bits as torch's, and none where torch draws otherwise."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pipeline.models.neural.networks import dropout

SHAPES = [(3, 7), (1, 1), (700, 100), (0, 5)]


def done(how, x: Tensor, share: float) -> list[Tensor]:
    """What is left of x, its gradient, and the next random number."""
    x = x.clone().requires_grad_()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        kept = how(x, share, True)
        kept.square().sum().backward()
        return [kept.detach(), x.grad, torch.rand(1), how(x.detach(), share, True)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_it_is_torchs_to_the_last_bit(shape: tuple[int, int], share: float) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    for one in (x, x.T, x.double(), x.bfloat16()):
        for ours, theirs in zip(done(dropout, one, share), done(functional.dropout, one, share), strict=True):
            assert torch.equal(ours, theirs)
    assert dropout(x, share, False) is x
