"""The passes over blocks of pairs that moments cost, on the processor or a GPU."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np
from scipy import sparse

from pipeline.models.linear.accumulation import MomentsAccumulator
from pipeline.models.linear.feature_maps import FeatureMaps
from pipeline.models.linear.mapped import MappedAccumulator, ViewBlock
from pipeline.models.linear.moments import Moments
from pipeline.models.linear.views import ImageView

if TYPE_CHECKING:
    import torch


class PairBlock(Protocol):
    """Images `features`, encoder -> (b, its dim) as stored, `sentences` (m, d) and `owners` (m,), the image of each."""

    features: Mapping[str, np.ndarray]
    sentences: sparse.csr_array
    owners: np.ndarray


def sum_blocks(
    blocks: Iterable[PairBlock], view: ImageView, dim_y: int, threads: int, device: "torch.device | None" = None
) -> Moments:
    """The moments of the pairs in `blocks`, of BLOCK_ROWS images each; on `device`, or by numpy where it is None."""
    if device is not None:
        from pipeline.models.linear.device_moments import DeviceAccumulator  # torch

        on_device = DeviceAccumulator(view, dim_y, threads, device)
        for block in blocks:
            on_device.add(block.features, block.sentences, block.owners)
        return on_device.result()
    accumulator = MomentsAccumulator(view.dim, dim_y, threads)
    for block in blocks:
        accumulator.add(view.stack(block.features), block.sentences, block.owners)
    return accumulator.result()


def mapped_moments(
    known: Moments, blocks: Iterable[ViewBlock], maps: FeatureMaps, device: "torch.device | None" = None
) -> Moments:
    """The moments of the mapped views of the pairs in `blocks`, whose own moments are `known`.

    What is known is not computed again: of [x, P] and [y, Q] only the products in which P or Q stands are summed,
    y's part of them by sparse products. Mapped rows live for one block. Computed on `device` where that is given
    and the maps fit it.
    """
    if device is not None and maps.fit_devices():
        from pipeline.models.linear.device_mapped import DeviceMappedAccumulator  # torch

        accumulator: MappedAccumulator = DeviceMappedAccumulator(known, maps, device)
    else:
        accumulator = MappedAccumulator(known, maps)
    for block in blocks:
        accumulator.add(block)
    return accumulator.result()
