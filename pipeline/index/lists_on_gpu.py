"""Finding the lists of an inverted file, and each vector's list, on a GPU. The index itself stays the processor's.

A quantizer on a GPU must not stand in the index while vectors are added: FAISS asks it from several threads, and gives
no memory back that was assigned to an attribute. So blocks are assigned here and added with their lists. The lists of
fast-scan codes, which FAISS can only fill by itself, are found by the processor.
"""

import logging
from functools import cache
from typing import TYPE_CHECKING

import faiss
import numpy as np
from faiss.contrib.ivf_tools import add_preassigned

from pipeline.index.tuning import stages_of

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)
_chosen: "torch.device | None" = None


def use(device: "torch.device | None") -> None:
    """Have lists found on the GPU `device` from now on; None: on the processor."""
    global _chosen
    _chosen = device


def flat_on_gpu(vectors: np.ndarray, metric: int) -> faiss.Index | None:
    """An exact index of `vectors` (n, c) on the GPU in use; None where there is none or FAISS cannot use it."""
    if _chosen is None or (resources := _resources()) is None:
        return None
    config = faiss.GpuIndexFlatConfig()
    config.device = _chosen.index or 0
    try:
        index = faiss.GpuIndexFlat(resources, vectors.shape[1], metric, config)
        if len(vectors):
            index.add(np.ascontiguousarray(vectors, np.float32))
    except RuntimeError as error:
        _give_up(error)
        return None
    return index


@cache
def _resources() -> "faiss.StandardGpuResources | None":
    """What FAISS holds on GPUs, once for the process."""
    try:
        if not faiss.get_num_gpus():
            raise RuntimeError("it sees no GPU")
        return faiss.StandardGpuResources()
    except (AttributeError, RuntimeError) as error:  # without CUDA there is no such class
        _give_up(error)
        return None


def _give_up(error: Exception) -> None:
    reason = (str(error).splitlines() or [""])[-1]
    log.warning("FAISS cannot use the GPU (%s): lists are found on the processor", reason)
    use(None)


def train_lists(index: faiss.Index, sample: np.ndarray) -> None:
    """Train what stands before the lists of `index` and then, on the GPU in use, its lists; the rest is left to the
    index's own `train`, to which all is left where there are no lists or no GPU."""
    inverted = stages_of(index).inverted
    if inverted is None or inverted.quantizer.ntotal or not inverted.quantizer.is_trained:
        return
    on_gpu = flat_on_gpu(np.zeros((0, inverted.d), np.float32), inverted.metric_type)
    if on_gpu is None:
        return
    for transform in _transforms(index):
        if not transform.is_trained:
            transform.train(sample)
        sample = transform.apply(sample)
    clustering = faiss.Clustering(inverted.d, inverted.nlist, inverted.cp)
    try:
        clustering.train(sample, on_gpu)
    except RuntimeError as error:
        _give_up(error)
        return
    inverted.quantizer.add(faiss.vector_to_array(clustering.centroids).reshape(inverted.nlist, inverted.d))


class Adder:
    """Adds blocks of vectors to `index`, each vector's list found on the GPU in use."""

    def __init__(self, index: faiss.Index) -> None:
        self._index, self._lists = index, None
        inverted = stages_of(index).inverted
        if inverted is not None and not isinstance(inverted, faiss.IndexIVFFastScan):
            self._lists = flat_on_gpu(inverted.quantizer.reconstruct_n(0, inverted.nlist), inverted.metric_type)

    def add(self, block: np.ndarray, ids: np.ndarray | None = None) -> None:
        """Add `block` (n, c), under `ids` (n,) where they are given. Each is assigned before anything is changed."""
        if self._lists is not None:
            seen = block
            for transform in _transforms(self._index):
                seen = transform.apply(seen)
            try:
                lists = self._lists.search(np.ascontiguousarray(seen, np.float32), 1)[1][:, 0]
            except RuntimeError as error:
                _give_up(error)
                self._lists = None
            else:
                _add(self._index, block, lists, ids)
                return
        if ids is None:
            self._index.add(block)
        else:
            self._index.add_with_ids(block, ids)


def _transforms(index: faiss.Index) -> list[faiss.VectorTransform]:
    """What a vector goes through on its way to the lists of `index`."""
    found: list[faiss.VectorTransform] = []
    index = faiss.downcast_index(index)
    while isinstance(index, faiss.IndexRefine | faiss.IndexPreTransform | faiss.IndexIDMap):
        if isinstance(index, faiss.IndexPreTransform):
            found += [faiss.downcast_VectorTransform(index.chain.at(i)) for i in range(index.chain.size())]
        index = faiss.downcast_index(index.base_index if isinstance(index, faiss.IndexRefine) else index.index)
    return found


def _add(index: faiss.Index, block: np.ndarray, lists: np.ndarray, ids: np.ndarray | None) -> None:
    """What `index.add` does, with the `lists` (n,) of its inverted file known."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexIVF):
        add_preassigned(index, block, lists, ids)
        return
    if isinstance(index, faiss.IndexRefine):
        _add(index.base_index, block, lists, ids)
        index.refine_index.add(block)
    elif isinstance(index, faiss.IndexPreTransform):
        seen = block
        for number in range(index.chain.size()):
            seen = faiss.downcast_VectorTransform(index.chain.at(number)).apply(seen)
        _add(index.index, seen, lists, ids)
    else:
        _add(index.index, block, lists, None)
        for own in ids:
            index.id_map.push_back(int(own))
    index.ntotal += len(block)
