"""Dropout: the same bits as torch's."""

import pytest
import torch
from torch.nn import functional

from pipeline.models.neural.networks import dropout


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_it_is_torchs_to_the_last_bit(share: float) -> None:
    x = torch.randn((70, 10), generator=torch.Generator().manual_seed(0))
    for one in (x, x.T, x.double(), x.bfloat16()):
        done = []
        for how in (dropout, functional.dropout):
            given = one.clone().requires_grad_()
            with torch.random.fork_rng():
                torch.manual_seed(3)
                kept = how(given, share, True)
                kept.square().sum().backward()
                done.append((kept, given.grad, torch.rand(1)))
        for ours, theirs in zip(*done, strict=True):
            assert torch.equal(ours, theirs)
    assert dropout(x, share, False) is x
