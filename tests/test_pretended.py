"""The pretended device refuses to mix its tensors with the processor's, and computes what that does."""

import numpy as np
import pytest
import torch
from pretended import Elsewhere, pretending
from scipy import sparse

from pipeline.device import place, upload
from pipeline.models.linear.device_views import sparse_on


def test_tensors_of_two_devices_do_not_mix() -> None:
    with pretending() as device:
        there, here = torch.arange(6.0, device=device), torch.arange(6.0)
        assert isinstance(there, Elsewhere) and there.device == device
        mixtures = (
            lambda: there + here,
            lambda: there @ here,
            lambda: there[torch.tensor([1, 2])],
            lambda: torch.cat([there, here]),
            lambda: there.index_add_(0, torch.tensor([1]), there[:1]),
            lambda: torch.nn.functional.embedding(torch.tensor([1]), there[:, None]),
        )
        for mix in mixtures:
            with pytest.raises(RuntimeError, match="two devices|same device"):
                mix()
        assert (there + torch.tensor(2.0)).tolist() == [2, 3, 4, 5, 6, 7]  # a number may come from anywhere


def test_arrays_are_made_of_the_processors_tensors_only() -> None:
    with pretending() as device:
        there = torch.ones(3, device=device)
        with pytest.raises(RuntimeError, match="not supported"):
            there.numpy()
        np.testing.assert_array_equal(there.cpu().numpy(), [1, 1, 1])
        with pytest.raises(RuntimeError, match="not supported"):
            np.asarray(there)


def test_views_gradients_and_changes_in_place_are_those_of_the_processor() -> None:
    def work(device: torch.device) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(4, 4, generator=generator).to(device).requires_grad_()
        states = torch.zeros(3, 4, device=device)
        states[1:] += 1
        states[1].tanh_()
        rows = upload(np.array([0, 2, 2]), device)
        loss = (states[rows] @ weight).square().sum()
        loss.backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
        return [tensor.detach().cpu() for tensor in (states, loss, weight, weight.grad)]

    expected = work(torch.device("cpu"))
    with pretending() as device:
        found = work(device)
    for ours, theirs in zip(found, expected, strict=True):
        assert type(ours) is torch.Tensor
        torch.testing.assert_close(ours, theirs)


def test_what_is_placed_there_is_there() -> None:
    y = sparse.csr_array(np.eye(3, dtype=np.float32))
    with pretending() as device:
        placed = place((torch.ones(2), [torch.zeros(1)]), device)
        assert isinstance(placed[0], Elsewhere) and isinstance(placed[1][0], Elsewhere)
        with pytest.raises(RuntimeError, match="two devices|same device"):
            sparse_on(y, device) @ torch.ones(3, 2)
        assert (sparse_on(y, device) @ torch.ones(3, 2, device=device)).tolist() == [[1, 1]] * 3
