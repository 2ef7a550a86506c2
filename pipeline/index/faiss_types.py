"""Functions that return FAISS's objects with their own types and arrays, because FAISS returns base classes and its
type stubs lack some attributes."""

from collections.abc import Iterator
from typing import Any

import faiss
import numpy as np


def untyped(value: object) -> Any:
    """Return `value`, a module, class, function or object of FAISS, unchanged as Any, so that the type checker accepts
    attributes that FAISS's stubs lack."""
    return value


HASHTABLE: int = untyped(faiss).DirectMap.Hashtable
NO_DIRECT_MAP: int = untyped(faiss).DirectMap.NoMap


def transforms_of(index: faiss.Index, most: int | None = None) -> list[faiss.VectorTransform]:
    """Return the transforms that `index` applies to vectors before it stores them, each with its own type. The list has
    the order in which the transforms are applied.

    Only the first `most` transforms are returned, or all if `most` is None. The list is empty if the index has no
    transforms.
    """
    if not isinstance(index, faiss.IndexPreTransform):
        return []
    chain = untyped(index.chain)
    count = chain.size() if most is None else min(chain.size(), most)
    return [faiss.downcast_VectorTransform(chain.at(position)) for position in range(count)]


def inverted_lists(index: faiss.IndexIVF) -> faiss.InvertedLists:
    """Return the lists of an inverted file with their own type. The index must have lists."""
    assert index.invlists is not None
    return faiss.downcast_InvertedLists(index.invlists)


def ids_of_lists(index: faiss.IndexIVF) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the number of each list of an inverted file that is not empty, and the array of the ids in this list. The
    array is FAISS's memory, so writing to it changes the index."""
    lists = inverted_lists(index)
    for number in range(index.nlist):
        if size := lists.list_size(number):
            yield number, faiss.rev_swig_ptr(lists.get_ids(number), size)


def train_lists(index: faiss.IndexIVF, rows: np.ndarray) -> None:
    """Train the centroids of the lists of an inverted file in place on the vectors `rows` (n, c).

    The quantizer that encodes the vectors in the lists is not trained.
    """
    rows = np.ascontiguousarray(rows, np.float32)
    untyped(index).train_q1(len(rows), faiss.swig_ptr(rows), False, index.metric_type)


class ListMeans:
    """The mean vector of each list of an inverted file of whole vectors (IVF,Flat).

    `means` (l, c) are the means of the l lists, or zero for an empty list. `lists` (n,) says where a vector is: the
    vector with the id i is in the list with the number `lists[i]`. The ids must be 0 to n - 1.
    """

    def __init__(self, index: faiss.IndexIVFFlat) -> None:
        self.means = np.zeros((index.nlist, index.d), np.float32)
        self.lists = np.zeros(index.ntotal, np.int32)
        lists = inverted_lists(index)
        for number, ids in ids_of_lists(index):
            codes = faiss.rev_swig_ptr(lists.get_codes(number), len(ids) * index.code_size)
            self.means[number] = codes.view(np.float32).reshape(len(ids), index.d).mean(axis=0)
            self.lists[ids] = number


def flat_vectors(index: faiss.Index) -> np.ndarray:
    """Return the vectors (n, c) float32 of a Flat index without copying them. They are valid as long as the index
    exists."""
    flat = faiss.downcast_index(index)
    assert isinstance(flat, faiss.IndexFlat)
    return faiss.rev_swig_ptr(flat.get_xb(), flat.ntotal * flat.d).reshape(flat.ntotal, flat.d)
