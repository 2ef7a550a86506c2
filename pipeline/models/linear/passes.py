"""The passes over blocks of pairs that moments need, on the processor or a GPU."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.models.linear.accumulation import MomentsAccumulator
from pipeline.models.linear.feature_maps import FeatureMaps
from pipeline.models.linear.moments import Moments
from pipeline.models.linear.views import ImageView, TextView, ViewBlock

if TYPE_CHECKING:
    import torch

Item = TypeVar("Item")


def sum_blocks(
    blocks: Iterable[Any], view: ImageView, text: TextView, threads: int, device: "torch.device | None" = None
) -> Moments:
    """The moments of the pairs in `blocks`, on `device`, or with numpy if it is None. A block has up to BLOCK_ROWS
    images `features`, encoder -> (b, its dim) as stored, `sentences`, text encoder -> (m, its dim) likewise, and
    `owners` (m,), the image of each."""
    if device is None:
        accumulator = MomentsAccumulator(view.dim, text.dim, threads)
    else:
        from pipeline.models.linear.device_moments import DeviceAccumulator  # torch

        accumulator = DeviceAccumulator(view, text.dim, device)
    for block in ahead(blocks):
        images = view.stack(block.features) if device is None else block.features
        accumulator.add(images, text.stack(block.sentences), block.owners)
    return accumulator.result()


def ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The `items`, each of which another thread makes while the one before it is used."""
    waiting = iter(items)
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, waiting, waiting)  # which is no item
        while (item := coming.result()) is not waiting:
            coming = thread.submit(next, waiting, waiting)
            yield item


def mapped_moments(
    known: Moments, blocks: Iterable[ViewBlock], maps: FeatureMaps, device: "torch.device | None" = None
) -> Moments:
    """The moments of the mapped views of the pairs in `blocks`, whose own moments are `known`, computed on `device`, or
    on the processor if it is None.

    Of [x, P] and [y, Q], only the products with P or Q are computed, y's part of them by sparse products. Mapped rows
    exist for one block at a time.
    """
    import torch  # takes seconds, and only a fit with feature maps needs it

    from pipeline.models.linear.device_moments import MappedAccumulator

    accumulator = MappedAccumulator(known, maps, device or torch.device("cpu"))
    for block in ahead(blocks):
        accumulator.add(block)
    return accumulator.result()
