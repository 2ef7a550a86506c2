"""Images, sentences and their sums as tensors: what `ImageView` and scipy's sparse rows are on a device."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pipeline.device import upload

if TYPE_CHECKING:
    from scipy import sparse

    from pipeline.models.linear.views import ImageView


def stack_on(view: "ImageView", features: Mapping[str, np.ndarray], device: torch.device) -> Tensor:
    """What `view.stack` makes of `features`, (n, dim) float32, on `device`."""
    if device.type == "cpu":
        return torch.from_numpy(view.stack(features))
    return stack_tensors(view, features, device)


def stack_tensors(view: "ImageView", features: Mapping[str, np.ndarray], device: torch.device) -> Tensor:
    """The same, where halves travel as they are stored and are made single, and normalised, on `device`."""
    parts = [normalise_tensor(upload(block, device).float(), view.steps) for block in view.select_blocks(features)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def normalise_tensor(x: Tensor, steps: Sequence[str]) -> Tensor:
    """`pipeline.models.linear.views.normalise` of x (n, d), as new tensors."""
    for step in steps:
        if step == "sqrt":
            x = x.abs().sqrt_().copysign_(x)
        elif step == "l2":
            length = x.square().sum(dim=1, keepdim=True).sqrt_()
            x = x / torch.where(length > 0, length, 1)
        else:
            raise ValueError(f"unknown step {step}")
    return x


def sparse_on(matrix: "sparse.csr_array", device: torch.device) -> Tensor:
    """`matrix` (n, d) on `device`, for products with dense ones."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    places = upload(np.stack([rows, matrix.indices]), device)
    values = upload(matrix.data, device)
    return torch.sparse_coo_tensor(places, values, matrix.shape, is_coalesced=True, check_invariants=False)
