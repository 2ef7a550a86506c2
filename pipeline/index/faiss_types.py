"""Types for FAISS's objects, because FAISS returns base classes and its type stubs lack some attributes."""

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar, runtime_checkable

import faiss
import numpy as np

# FAISS's stubs lack these names.
HASHTABLE: int = vars(faiss)["DirectMap"].Hashtable
NO_DIRECT_MAP: int = vars(faiss)["DirectMap"].NoMap
PyCallbackIOWriter: Callable[[Callable[[bytes], object]], faiss.IOWriter] = vars(faiss)["PyCallbackIOWriter"]
SearchParametersHNSW: Callable[..., faiss.SearchParameters] = vars(faiss)["SearchParametersHNSW"]
ZeroCopyIOReader: Callable[..., faiss.IOReader] = vars(faiss)["ZeroCopyIOReader"]

T = TypeVar("T")
Item = TypeVar("Item", covariant=True)


class SwigVector(Protocol[Item]):
    """A std::vector of C++."""

    def size(self) -> int: ...

    def data(self) -> object: ...

    def at(self, position: int) -> Item: ...


@runtime_checkable
class TransformChain(SwigVector[faiss.VectorTransform], Protocol):
    """The transforms of an IndexPreTransform."""


class Quantizer(Protocol):
    """A product quantizer."""

    d: int
    M: int


@runtime_checkable
class HasProductQuantizer(Protocol):
    """An index of product codes."""

    pq: Quantizer


@runtime_checkable
class HasFineQuantizer(Protocol):
    """An IndexIVFPQFastScan, whose `fine_quantizer` computes the codes."""

    pq: Quantizer
    fine_quantizer: Quantizer | None


@runtime_checkable
class TrainsLists(Protocol):
    """An inverted file, whose centroids can be trained without its codes."""

    metric_type: int

    def train_q1(self, n: int, x: object, verbose: bool, metric_type: int) -> None: ...


@runtime_checkable
class HasPolysemousTraining(Protocol):
    """An IndexIVFPQ, which can order its codes for a search by their Hamming distance."""

    do_polysemous_training: bool


class BitQuantizer(Protocol):
    """A RaBitQuantizer."""

    d: int
    metric_type: int
    nb_bits: int
    code_size: int


@runtime_checkable
class HasBitQuantizer(Protocol):
    """An index of RaBitQ codes."""

    rabitq: BitQuantizer
    code_size: int


@runtime_checkable
class HasCenter(Protocol):
    """An index of RaBitQ codes without lists, which are relative to one centre."""

    center: SwigVector[float]


@runtime_checkable
class HasScalarQuantizer(Protocol):
    """An index of scalar codes."""

    sq: faiss.ScalarQuantizer


@runtime_checkable
class FastScanCodes(Protocol):
    """The codes of an IndexFastScan, which are stored in blocks.

    `ntotal2` is the number of vectors, rounded up to whole blocks.
    """

    code_size: int
    ntotal2: int
    M2: int
    codes: SwigVector[int]


@runtime_checkable
class HashCodes(Protocol):
    """An IndexLSH."""

    rotate_data: bool
    thresholds: SwigVector[float]


@runtime_checkable
class BlockLists(Protocol):
    """Inverted lists whose codes are packed in blocks."""

    n_per_block: int
    block_size: int


@runtime_checkable
class Graph(Protocol):
    """The links of an IndexHNSW. The links of the vertex i begin at `offsets[i]`, one level after the other."""

    efSearch: int  # noqa: N815  FAISS's own name
    levels: SwigVector[int]
    offsets: SwigVector[int]
    neighbors: SwigVector[int]
    entry_point: int
    max_level: int

    def cum_nb_neighbors(self, level: int) -> int: ...


Argument = np.ndarray | float | faiss.IDSelector | faiss.SearchParameters


def call(function: Callable[..., T], *values: Argument, **named: Argument) -> T:
    """Call a function or a class of FAISS with arguments that are missing from its stubs."""
    return function(*values, **named)


def transforms_of(index: faiss.Index, most: int | None = None) -> list[faiss.VectorTransform]:
    """Return the transforms that are applied to vectors before `index` stores them, each with its own type.

    At most `most` transforms are returned.
    """
    if not isinstance(index, faiss.IndexPreTransform):
        return []
    chain = index.chain
    assert isinstance(chain, TransformChain)
    count = chain.size() if most is None else min(chain.size(), most)
    return [faiss.downcast_VectorTransform(chain.at(position)) for position in range(count)]


def inverted_lists(index: faiss.IndexIVF) -> faiss.InvertedLists:
    """Return the lists of an inverted file with their own type."""
    assert index.invlists is not None
    return faiss.downcast_InvertedLists(index.invlists)


def ids_of_lists(index: faiss.IndexIVF) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the number of each list that is not empty, and the array of its ids. Writing to the array changes the
    index."""
    lists = inverted_lists(index)
    for number in range(index.nlist):
        if size := lists.list_size(number):
            yield number, faiss.rev_swig_ptr(lists.get_ids(number), size)


def train_lists(index: faiss.IndexIVF, rows: np.ndarray) -> None:
    """Train the centroids of the lists of an inverted file on `rows` (n, c) float32.

    The quantizer that encodes the vectors in the lists is not trained.
    """
    rows = np.ascontiguousarray(rows, np.float32)
    assert isinstance(index, TrainsLists)
    index.train_q1(len(rows), faiss.swig_ptr(rows), False, index.metric_type)


class ListMeans:
    """The mean vector of each list of an inverted file of whole vectors (IVF,Flat).

    `means` (l, c) are the means of the l lists. `lists` (n,) has the list of each vector by its id. The ids must be 0
    to n - 1.
    """

    def __init__(self, index: faiss.IndexIVFFlat) -> None:
        self.means = np.zeros((index.nlist, index.d), np.float32)
        self.lists = np.zeros(index.ntotal, np.int32)
        lists = inverted_lists(index)
        for number, ids in ids_of_lists(index):
            codes = faiss.rev_swig_ptr(lists.get_codes(number), len(ids) * index.code_size)
            self.means[number] = codes.view(np.float32).reshape(len(ids), index.d).mean(axis=0)
            self.lists[ids] = number


def graph_of(index: faiss.IndexHNSW) -> Graph:
    """Return the links of a graph index."""
    graph = index.hnsw
    assert isinstance(graph, Graph)
    return graph


def flat_vectors(index: faiss.Index) -> np.ndarray:
    """Return the vectors (n, c) of a Flat index without copying them."""
    flat = faiss.downcast_index(index)
    assert isinstance(flat, faiss.IndexFlat)
    return faiss.rev_swig_ptr(flat.get_xb(), flat.ntotal * flat.d).reshape(flat.ntotal, flat.d)
