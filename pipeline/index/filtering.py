"""Searching an index among some of its vectors alone.

FAISS skips all others while it searches (`sel` in its SearchParameters). An inverted file or a graph visits as many
more lists or vertices as fewer vectors pass, so that about as many are compared as without a condition; where few pass,
or too few come back, those that pass are all compared. So a Flat index gives the exact answer, and any other one about
as good a one as without a condition, or a better one.
"""

import math
from threading import Lock

import faiss
import numpy as np

from pipeline.errors import UsageError
from pipeline.index.exact import BLOCK_ROWS, Neighbours, search_exact
from pipeline.index.faiss_types import HASHTABLE, HasFineQuantizer, SearchParametersHNSW, call
from pipeline.index.format import MAX_VERTICES, metric_of, parts_of

FEW = 1 << 14
"""As many vectors are compared one by one, rather than searched for."""
_mapping = Lock()


def search_among(index: faiss.Index, queries: np.ndarray, top: int, allowed: np.ndarray) -> Neighbours:
    """The `top` for each of the `queries` (q, c) among the ids whose place in `allowed` (n,), bool, is true.

    `index` has no other ids than these n. Raises UsageError for an index that can neither skip vectors nor give them.
    """
    typed = faiss.downcast_index(index)  # which lasts as long as `index`
    if isinstance(typed, faiss.IndexIDMap):  # whose conditions FAISS does not pass on to what it wraps
        ids = faiss.vector_to_array(typed.id_map)
        return search_among(typed.index, queries, top, allowed[ids]).renumber(ids)
    ids, queries = np.flatnonzero(allowed), np.ascontiguousarray(queries, np.float32)
    top = min(top, len(ids))
    if not top:
        return Neighbours.none(len(queries), 0)
    coarse = "RaBitQ" in type(typed).__name__  # the vectors that it gives are worse than its products
    neighbours = None
    if isinstance(typed, faiss.IndexFlat) or len(ids) > FEW or coarse:
        neighbours = _skip(typed, queries, top, allowed, len(ids), whole=len(ids) <= FEW)
        if neighbours is not None and (neighbours.rows >= 0).all():
            return neighbours
    try:
        return _compare(typed, queries, top, ids)
    except RuntimeError as error:
        neighbours = _skip(typed, queries, top, allowed, len(ids), whole=True) or neighbours
        if neighbours is None:
            raise UsageError(
                f"an index of the type {type(typed).__name__} cannot be searched with a condition; build it with"
                " another of index.candidates"
            ) from error
        return neighbours


def reconstruct(index: faiss.Index, ids: np.ndarray) -> np.ndarray:
    """(k, c) float32: the vectors that the index has under `ids`. RuntimeError where it has none to give."""
    typed = faiss.downcast_index(index)  # which lasts as long as `index`
    if isinstance(typed, faiss.IndexIDMap):  # which cannot look them up
        names = faiss.vector_to_array(typed.id_map)
        order = np.argsort(names)
        return reconstruct(typed.index, order[np.searchsorted(names, ids, sorter=order)])
    with _mapping:  # threads share an index
        for part in parts_of(typed):
            if isinstance(part, faiss.IndexRefine):
                break  # its vectors are those of its refine_index
            if isinstance(part, faiss.IndexIVFRaBitQFastScan):
                raise RuntimeError("FAISS gives other vectors back than those of an IndexIVFRaBitQFastScan")
            if isinstance(part, faiss.IndexIVFPQFastScan):
                assert isinstance(part, HasFineQuantizer)
                if part.fine_quantizer is None:  # FAISS forgets it when it reads an index, and then ends the process
                    part.fine_quantizer = part.pq
            if isinstance(part, faiss.IndexIVF) and part.direct_map.no():
                try:
                    part.make_direct_map()
                except RuntimeError:  # some ids are missing
                    part.set_direct_map_type(HASHTABLE)
    return typed.reconstruct_batch(ids)


def is_exact(index: faiss.Index) -> bool:
    """Whether `reconstruct` gives the vectors back as they were added."""
    typed = faiss.downcast_index(index)  # which lasts as long as `index`
    if isinstance(typed, faiss.IndexIDMap):
        return is_exact(typed.index)
    if isinstance(typed, faiss.IndexRefine):
        return is_exact(typed.refine_index)
    return isinstance(typed, faiss.IndexFlat | faiss.IndexIVFFlat | faiss.IndexHNSWFlat)


def _compare(index: faiss.Index, queries: np.ndarray, top: int, ids: np.ndarray) -> Neighbours:
    """The exact answer among `ids`, by the vectors as the index has them."""
    blocks = (reconstruct(index, ids[start : start + BLOCK_ROWS]) for start in range(0, len(ids), BLOCK_ROWS))
    return search_exact(queries, blocks, top, metric_of(index)).renumber(ids)


def _skip(
    index: faiss.Index, queries: np.ndarray, top: int, allowed: np.ndarray, count: int, whole: bool = False
) -> Neighbours | None:
    """Search among the `count` ids that are `allowed`, in all lists if `whole`. Return None if FAISS cannot do it."""
    selector = call(faiss.IDSelectorBitmap, np.packbits(allowed, bitorder="little"))
    share = 0.0 if whole else count / len(allowed)
    try:
        values, rows = index.search(queries, top, params=_parameters(index, selector, share))
    except RuntimeError:
        return None
    return Neighbours.of_faiss(values, rows, metric_of(index))


def _parameters(index: faiss.Index, selector: faiss.IDSelector, share: float) -> faiss.SearchParameters:
    """Return search parameters that visit more lists or vertices, the smaller the `share` of ids that pass is."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexRefine):
        inner = _parameters(index.base_index, selector, share)
        return call(faiss.IndexRefineSearchParameters, k_factor=index.k_factor, base_index_params=inner)
    if isinstance(index, faiss.IndexPreTransform):
        return call(faiss.SearchParametersPreTransform, index_params=_parameters(index.index, selector, share))
    if isinstance(index, faiss.IndexIVF):
        lists = index.nlist if not share else min(index.nlist, math.ceil(index.nprobe / share))
        return call(faiss.SearchParametersIVF, sel=selector, nprobe=lists)
    if isinstance(index, faiss.IndexHNSW):
        vertices = MAX_VERTICES if not share else min(MAX_VERTICES, math.ceil(index.hnsw.efSearch / share))
        return call(SearchParametersHNSW, sel=selector, efSearch=vertices)
    return call(faiss.SearchParameters, sel=selector)
