"""Search among those vectors of an index that a condition allows.

FAISS skips all other vectors while it searches (`sel` in its SearchParameters). The fewer vectors are allowed, the more
lists or vertices of an inverted file or a graph are visited, so that about as many vectors are compared as without a
condition. If at most MAX_BRUTE_FORCE_ROWS vectors are allowed, or if FAISS finds too few, the query is compared with
all allowed vectors instead. If the index cannot return its vectors, or returns them less exactly than it compares them
(RaBitQ), FAISS visits all lists instead, or MAX_VERTICES vertices of a graph. A Flat index gives the exact result, and
the recall of any other index is about the same as without a condition, or higher.
"""

import math
from threading import Lock

import faiss
import numpy as np

from pipeline.errors import UsageError
from pipeline.index.exact import BLOCK_ROWS, Neighbours, search_exact
from pipeline.index.faiss_types import HASHTABLE, untyped
from pipeline.index.format import MAX_VERTICES, metric_of, parts_of

MAX_BRUTE_FORCE_ROWS = 1 << 14
"""Largest number of allowed vectors for which a query is compared with all of them. For more vectors, FAISS skips the
vectors that are not allowed."""
_mapping = Lock()


def search_among(index: faiss.Index, queries: np.ndarray, top: int, allowed: np.ndarray) -> Neighbours:
    """Find the `top` best vectors for each of the `queries` (q, c) among the allowed ids.

    `allowed` (n,) bool says for each id from 0 to n - 1 whether it is allowed. `index` must not have other ids. The
    rows of the result are ids. If fewer than `top` ids are allowed, the result has as many columns as there are allowed
    ids. If FAISS finds too few vectors and the index cannot return its vectors, the remaining rows are -1 with the
    score -inf. Raises UsageError if the index can neither skip vectors nor return its vectors.
    """
    typed = faiss.downcast_index(index)  # `typed` is only valid as long as `index` exists.
    if isinstance(typed, faiss.IndexIDMap):  # FAISS does not pass the selection on to the inner index.
        ids = faiss.vector_to_array(typed.id_map)
        return search_among(typed.index, queries, top, allowed[ids]).renumber(ids)
    ids = np.flatnonzero(allowed)
    queries = np.ascontiguousarray(queries, np.float32)
    top = min(top, len(ids))
    if not top:
        return Neighbours.none(len(queries), 0)
    # An index of RaBitQ codes returns vectors that are less exact than its own scores. FAISS therefore searches the
    # index even if few vectors are allowed.
    coarse = "RaBitQ" in type(typed).__name__
    few = len(ids) <= MAX_BRUTE_FORCE_ROWS
    neighbours = None
    if isinstance(typed, faiss.IndexFlat) or not few or coarse:
        neighbours = _skip(typed, queries, top, allowed, len(ids), whole=few)
        if neighbours is not None and (neighbours.rows >= 0).all():
            return neighbours
    try:
        return _compare(typed, queries, top, ids)
    except RuntimeError as error:
        neighbours = _skip(typed, queries, top, allowed, len(ids), whole=True) or neighbours
        if neighbours is None:
            raise UsageError(
                f"An index of the type {type(typed).__name__} cannot be searched with a condition. Search without a"
                " condition, or choose another index type in index.candidates and run `jointspace run CONFIG`."
            ) from error
        return neighbours


def reconstruct(index: faiss.Index, ids: np.ndarray) -> np.ndarray:
    """Return the vectors (k, c) float32 that the index stores for `ids` (k,), in this order. They are approximate if
    the index compresses its vectors.

    An inverted file gets a direct map in place, which must be removed before the index is written to a file. Raises
    RuntimeError if this type of index cannot return its vectors. Several threads may call this function at the same
    time.
    """
    typed = faiss.downcast_index(index)  # `typed` is only valid as long as `index` exists.
    if isinstance(typed, faiss.IndexIDMap):  # FAISS cannot look up a vector by its id in this type.
        names = faiss.vector_to_array(typed.id_map)
        order = np.argsort(names)
        return reconstruct(typed.index, order[np.searchsorted(names, ids, sorter=order)])
    with _mapping:  # Several threads may use the index at the same time.
        for part in parts_of(typed):
            if isinstance(part, faiss.IndexRefine):
                break  # The refine_index stores the vectors.
            if isinstance(part, faiss.IndexIVFRaBitQFastScan):
                raise RuntimeError(
                    "FAISS returns wrong vectors from an IndexIVFRaBitQFastScan, so its vectors cannot be used. Use"
                    " another index type in index.candidates."
                )
            if isinstance(part, faiss.IndexIVFPQFastScan):
                codes = untyped(part)
                # FAISS does not store this attribute. Without the attribute, FAISS would end the process.
                if codes.fine_quantizer is None:
                    codes.fine_quantizer = codes.pq
            if isinstance(part, faiss.IndexIVF) and part.direct_map.no():
                try:
                    part.make_direct_map()
                except RuntimeError:  # Some ids are missing, because their vectors were removed.
                    part.set_direct_map_type(HASHTABLE)
    return typed.reconstruct_batch(ids)


def is_exact(index: faiss.Index) -> bool:
    """Return whether `reconstruct` is known to return exactly the vectors that were added to the index."""
    typed = faiss.downcast_index(index)  # `typed` is only valid as long as `index` exists.
    if isinstance(typed, faiss.IndexIDMap):
        return is_exact(typed.index)
    if isinstance(typed, faiss.IndexRefine):
        return is_exact(typed.refine_index)
    return isinstance(typed, faiss.IndexFlat | faiss.IndexIVFFlat | faiss.IndexHNSWFlat)


def _compare(index: faiss.Index, queries: np.ndarray, top: int, ids: np.ndarray) -> Neighbours:
    """Find the `top` best vectors for the `queries` (q, c) among the ids `ids` (k,), by comparing the queries with the
    vectors that `reconstruct` returns. Raises RuntimeError if the index cannot return its vectors."""
    blocks = (reconstruct(index, ids[start : start + BLOCK_ROWS]) for start in range(0, len(ids), BLOCK_ROWS))
    return search_exact(queries, blocks, top, metric_of(index)).renumber(ids)


def _skip(
    index: faiss.Index, queries: np.ndarray, top: int, allowed: np.ndarray, count: int, whole: bool = False
) -> Neighbours | None:
    """Search with FAISS for the `top` best vectors for each of the `queries` (q, c), among the ids that are `allowed`
    (n,) bool. `count` ids are allowed.

    With `whole`, all lists of an inverted file are visited, or MAX_VERTICES vertices of a graph. Returns None if FAISS
    cannot skip vectors in this type of index.
    """
    selector = untyped(faiss).IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
    share = 0.0 if whole else count / len(allowed)
    try:
        values, rows = index.search(queries, top, params=_parameters(index, selector, share))
    except RuntimeError:
        return None
    return Neighbours.of_faiss(values, rows, metric_of(index))


def _parameters(index: faiss.Index, selector: faiss.IDSelector, share: float) -> faiss.SearchParameters:
    """Return search parameters with which FAISS skips the vectors that `selector` does not select.

    The smaller the `share` of the allowed ids (0 to 1) is, the more lists or vertices are visited: their usual number,
    divided by the share. With a share of 0, all lists or MAX_VERTICES vertices are visited.
    """
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexRefine):
        inner = _parameters(index.base_index, selector, share)
        return untyped(faiss).IndexRefineSearchParameters(k_factor=index.k_factor, base_index_params=inner)
    if isinstance(index, faiss.IndexPreTransform):
        return untyped(faiss).SearchParametersPreTransform(index_params=_parameters(index.index, selector, share))
    if isinstance(index, faiss.IndexIVF):
        lists = index.nlist if not share else min(index.nlist, math.ceil(index.nprobe / share))
        return untyped(faiss).SearchParametersIVF(sel=selector, nprobe=lists)
    if isinstance(index, faiss.IndexHNSW):
        vertices = MAX_VERTICES if not share else min(MAX_VERTICES, math.ceil(index.hnsw.efSearch / share))
        return untyped(faiss).SearchParametersHNSW(sel=selector, efSearch=vertices)
    return untyped(faiss).SearchParameters(sel=selector)
