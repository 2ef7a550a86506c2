"""An index as bytes in FAISS's own format, and back.

FAISS has no checksum, and its writer can report success on a full disk, so both files and their hashes are storage's
business. Reading refuses a header that claims more than the bytes could hold.
"""

import os
import re
import struct
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import faiss
import numpy as np
from faiss import class_wrappers

from pipeline.errors import IntegrityError
from pipeline.index.faiss_types import (
    BlockLists,
    FastScanCodes,
    Graph,
    HasBitQuantizer,
    HasCenter,
    HashCodes,
    HasProductQuantizer,
    HasScalarQuantizer,
    PyCallbackIOWriter,
    ZeroCopyIOReader,
    call,
    graph_of,
    inverted_lists,
    transforms_of,
)

REBUILD = "run build-index again"
AS_IT_IS = faiss.IO_FLAG_SKIP_PRECOMPUTE_TABLE
"""Reads what the bytes hold; the tables that FAISS makes of it would count as claims of theirs."""
ON_DISK = re.compile(b"ilod")
"""Before the inverted lists of an index that are in a file."""
RANDOM_ACCESS = frozenset((
    "IndexFlat", "IndexFlatIP", "IndexFlatL2", "IndexScalarQuantizer", "IndexPQ", "IndexRaBitQ",
))  # fmt: skip
"""Types of index that compare a query with a single vector. FAISS ends the process where a graph or a refinement has
another type for its vectors."""
COARSE = RANDOM_ACCESS | frozenset((
    "IndexPQFastScan", "IndexRaBitQFastScan", "IndexLSH",
    "IndexHNSW", "IndexHNSWFlat", "IndexHNSWSQ", "IndexHNSWPQ",
))  # fmt: skip
"""Types of index without lists, which may also find the lists of others."""
INVERTED = frozenset((
    "IndexIVFFlat", "IndexIVFScalarQuantizer", "IndexIVFPQ", "IndexIVFPQFastScan", "IndexIVFRaBitQ",
    "IndexIVFRaBitQFastScan",
))  # fmt: skip
REFINED = frozenset(("IndexRefine", "IndexRefineFlat"))
PARTS = {
    **dict.fromkeys(INVERTED, {"quantizer": COARSE}),
    **dict.fromkeys(COARSE, {}),
    **dict.fromkeys((kind for kind in COARSE if kind.startswith("IndexHNSW")), {"storage": RANDOM_ACCESS}),
    "IndexPreTransform": {"index": COARSE | INVERTED},
    **dict.fromkeys(REFINED, {"base_index": COARSE | INVERTED | {"IndexPreTransform"}, "refine_index": RANDOM_ACCESS}),
    **dict.fromkeys(("IndexIDMap", "IndexIDMap2"), {"index": COARSE | INVERTED | REFINED | {"IndexPreTransform"}}),
}
"""The types of index that factory strings make here (pipeline.index.candidates), and for each the attributes that hold
other indexes, with the types that these may have. All other types are refused: one could hide a file."""
TRANSFORMS = (faiss.LinearTransform, faiss.NormalizationTransform)
"""The transforms of vectors that are allowed, with their subclasses (OPQMatrix, PCAMatrix, RandomRotationMatrix)."""
MAX_TRANSFORMS = 4
SCALAR_KINDS = ("8bit", "6bit", "4bit", "fp16", "bf16", "8bit_direct", "8bit_direct_signed")
"""The kinds of scalar quantizers that are allowed, as FAISS names them."""
FAST_BLOCK = 32
"""Vectors in a block of FAISS's fast-scan codes, as its factory strings make them."""
MAX_VERTICES = 1 << 15
"""Vertices of a graph that a search keeps at most."""
PLAIN_SEARCH = vars(faiss.IndexPQ)["ST_PQ"]
"""The value of `search_type` for a search that compares all codes in full."""
METRICS = {"inner_product": faiss.METRIC_INNER_PRODUCT, "euclidean": faiss.METRIC_L2}


@dataclass(frozen=True)
class ExpectedIndex:
    """The number of vectors of an index, their dimensions and their metric, as its card has them."""

    count: int
    dim: int
    metric: str


def metric_of(index: faiss.Index) -> str:
    """The name of its metric, of METRICS."""
    return next(name for name, kind in METRICS.items() if kind == index.metric_type)


def to_bytes(index: faiss.Index) -> memoryview:
    """Without the second copy that faiss.serialize_index makes."""
    data = bytearray()
    faiss.write_index(index, PyCallbackIOWriter(data.extend))
    return memoryview(data)


def from_bytes(data: bytes | memoryview, name: str, card: ExpectedIndex) -> faiss.Index:
    """The index in `data`, checked against its card (`count`, `dim`, `metric`).

    Raises IntegrityError, which calls it `name`, where the bytes are not an index, or not the one of the card.
    """
    _require_no_files(data, name)
    return _read(lambda bytes_: faiss.deserialize_index(bytes_, AS_IT_IS), data, name, card)


def view_bytes(
    data: bytes | memoryview, name: str, card: ExpectedIndex, is_searched_for_files: bool = False
) -> faiss.Index:
    """Return the same index, with its codes, lists and links left where they are in `data`.

    It is for searching only, since FAISS ends the process that adds vectors to it or takes vectors out.
    `is_searched_for_files` says that these bytes are known to name no file, which only a pass over all bytes
    can tell.
    """

    def view(bytes_: np.ndarray) -> faiss.Index:
        index = faiss.read_index(ZeroCopyIOReader(faiss.swig_ptr(bytes_), len(bytes_)), AS_IT_IS)
        class_wrappers.add_to_referenced_objects(index, bytes_)  # which has to last as long
        return index

    if not is_searched_for_files:
        _require_no_files(data, name)
    return _read(view, data, name, card)


def _read(
    read: Callable[[np.ndarray], faiss.Index], data: bytes | memoryview, name: str, card: ExpectedIndex
) -> faiss.Index:
    try:
        with byte_limit(2 * len(data) + 4096):
            index = read(np.frombuffer(data, np.uint8))
        require_known_types(index, name)
        if flaw := next((fact for fact, holds in _facts(index) if not holds), None):
            raise IntegrityError(f"{name} contradicts itself: its {flaw} does not fit its other parts; {REBUILD}")
        _compute_tables(index)
    except (RuntimeError, MemoryError, RecursionError) as error:
        raise IntegrityError(f"{name} is not a readable FAISS index; {REBUILD}") from error
    expected = (card.count, card.dim, METRICS[card.metric])
    if (index.ntotal, index.d, index.metric_type) != expected:
        raise IntegrityError(
            f"{name} holds {index.ntotal} vectors of {index.d} dimensions and FAISS metric {index.metric_type}, not"
            f" {expected} as its card says; {REBUILD}"
        )
    return index


def _compute_tables(index: faiss.Index) -> None:
    """The products of centroids and codes by which product codes are searched faster; FAISS limits their bytes."""
    inverted = faiss.try_extract_index_ivf(index)
    typed = faiss.downcast_index(inverted) if inverted is not None else None
    if isinstance(typed, faiss.IndexIVFPQ) and typed.by_residual:
        typed.precompute_table()


def _require_no_files(data: bytes | memoryview, name: str) -> None:
    """Raises IntegrityError for an index that would have FAISS map a file, and write to it what is added."""
    data = memoryview(data)
    for match in ON_DISK.finditer(data):
        place = match.end() + 16
        try:
            (lists,) = struct.unpack_from("<Q", data, place)
            place += 8 + 24 * lists
            (slots,) = struct.unpack_from("<Q", data, place)
            place += 8 + 16 * slots
            (length,) = struct.unpack_from("<Q", data, place)
            (file, _) = struct.unpack_from(f"<{min(length, len(data))}sQ", data, place + 8)
        except (struct.error, ValueError, OverflowError):
            continue  # FAISS would not get as far as the file's name: these are four bytes of a code
        raise IntegrityError(
            f"{name} has its lists in the file {os.fsdecode(file)!r}, which is not in its card; {REBUILD}"
        )


def require_known_types(index: faiss.Index, name: str, allowed: Collection[str] = PARTS.keys()) -> None:
    """Raise IntegrityError naming the type of an index, or of a part of it, that this project does not build there."""
    typed = faiss.downcast_index(index)  # which lasts as long as `index`
    kind = type(typed).__name__
    if kind not in allowed:
        raise IntegrityError(f"{name} holds an {kind}, which no index of this project has there; {REBUILD}")
    for part, kinds in PARTS[kind].items():
        require_known_types(getattr(typed, part), name, kinds)
    transforms = transforms_of(typed, MAX_TRANSFORMS + 1)
    others = [type(transform).__name__ for transform in transforms if not isinstance(transform, TRANSFORMS)]
    known = [getattr(faiss.ScalarQuantizer, f"QT_{kind}") for kind in SCALAR_KINDS]
    if isinstance(typed, HasScalarQuantizer) and typed.sq.qtype not in known:
        others.append(f"ScalarQuantizer of the kind {typed.sq.qtype}")
    if others:
        raise IntegrityError(f"{name} holds an {others[0]}, which no index of this project has; {REBUILD}")


def _facts(index: faiss.Index, part: str = "") -> Iterator[tuple[str, bool]]:
    """Yield what must hold of an index of known types before FAISS may search it, each with whether it holds.

    FAISS checks the sizes of most arrays when it reads them. It does not check the rest, and then reads or writes
    beyond its arrays.
    """
    index = faiss.downcast_index(index)
    dim, count, metric = index.d, index.ntotal, index.metric_type
    inner_dim = dim
    for transform in transforms_of(index, MAX_TRANSFORMS + 1):
        linear = isinstance(transform, faiss.LinearTransform)
        sizes = (transform.A.size(), transform.b.size()) if linear else (inner_dim**2, 0)
        fits = transform.d_in == inner_dim and transform.is_trained
        inner_dim = transform.d_out
        bias = inner_dim if linear and transform.have_bias else 0
        yield f"{part}transform", fits and sizes == (transform.d_in * inner_dim, bias)
    for name in PARTS[type(index).__name__]:
        inner = getattr(index, name)
        yield f"{part}{name} dimension", inner.d == inner_dim
        yield f"{part}{name} metric", inner.metric_type == metric
        expected = index.nlist if name == "quantizer" and isinstance(index, faiss.IndexIVF) else count
        yield f"{part}{name} count", inner.ntotal == expected
        yield from _facts(inner, f"{part}{name} ")
    yield from ((part + name, bool(holds)) for name, holds in _own_facts(index, dim, count))


def _own_facts(index: faiss.Index, dim: int, count: int) -> Iterator[tuple[str, bool]]:
    """Yield the facts of `_facts` about an index without its parts."""
    yield "is_trained", index.is_trained
    if isinstance(index, faiss.IndexFastScan | faiss.IndexIVFFastScan):
        yield "bbs", index.bbs == FAST_BLOCK
        yield "implem", (index.implem, index.skip, index.nbits, index.ksub) == (0, 0, 4, 16)
        yield "qbs", (index.qbs, getattr(index, "qbs2", 0)) == (0, 0)
    if isinstance(index, HasProductQuantizer):
        yield "quantizer", index.pq.d == dim and getattr(index, "M", index.pq.M) == index.pq.M
        yield "search_type", getattr(index, "search_type", PLAIN_SEARCH) == PLAIN_SEARCH
    if isinstance(index, HasBitQuantizer):
        quantizer = index.rabitq
        bits = quantizer.nb_bits
        same = (quantizer.d, quantizer.metric_type) == (dim, index.metric_type)
        yield "quantizer", same and 0 < bits < 10
        code_size = call(faiss.RaBitQuantizer, dim, quantizer.metric_type, bits).code_size
        yield "quantizer", code_size == quantizer.code_size == index.code_size
        yield "center", not isinstance(index, HasCenter) or index.center.size() == dim
    if isinstance(index, faiss.IndexLSH):
        assert isinstance(index, HashCodes)
        yield "rotation", index.rrot.A.size() == dim * index.nbits if index.rotate_data else index.nbits <= dim
        yield "thresholds", index.thresholds.size() == (index.nbits if index.train_thresholds else 0)
    if isinstance(index, faiss.IndexFastScan):
        assert isinstance(index, FastScanCodes)
        each = index.code_size if isinstance(index, HasBitQuantizer) else index.M2 // 2
        yield "ntotal2", index.ntotal2 == -(-count // FAST_BLOCK) * FAST_BLOCK
        yield "codes", index.codes.size() == index.ntotal2 * each
    if isinstance(index, faiss.IndexIVF):
        yield "lists", index.invlists is not None
        lists = inverted_lists(index)
        packer = index.get_CodePacker()
        blocks = isinstance(lists, BlockLists)
        packed = (lists.n_per_block, lists.block_size) if isinstance(lists, BlockLists) else (1, lists.code_size)
        yield "nprobe", 0 < index.nprobe <= index.nlist == lists.nlist and index.direct_map.no()
        yield "lists", packed == (packer.nvec, packer.block_size)
        yield "lists", blocks == isinstance(index, faiss.IndexIVFFastScan)
        yield "lists", sum(map(lists.list_size, range(index.nlist))) == count
    if isinstance(index, faiss.IndexHNSW):
        yield "efSearch", 0 < index.hnsw.efSearch <= MAX_VERTICES
        yield "graph", _is_descendable(graph_of(index))


def _is_descendable(graph: Graph) -> bool:
    """Return whether each link of a level above the lowest leads to a vertex of that level. FAISS reads beyond its
    arrays where one does not."""
    levels, starts = faiss.vector_to_array(graph.levels), faiss.vector_to_array(graph.offsets).astype(np.int64)[:-1]
    if not len(levels):
        return True
    links = faiss.rev_swig_ptr(graph.neighbors.data(), graph.neighbors.size())
    for level in range(1, levels.max()):
        own = np.arange(graph.cum_nb_neighbors(level), graph.cum_nb_neighbors(level + 1))
        found = links[starts[levels > level][:, None] + own]
        if (levels[found[found >= 0]] <= level).any():
            return False
    return graph.entry_point >= 0 and levels[graph.entry_point] == levels.max() == graph.max_level + 1


def parts_of(index: faiss.Index) -> Iterator[faiss.Index]:
    """The index and what it wraps, from the outside in, each by its own type; they last as long as `index`."""
    index = faiss.downcast_index(index)
    yield index
    for name in ("index", "base_index"):
        if isinstance(inner := getattr(index, name, None), faiss.Index):
            yield from parts_of(inner)


def code_bytes(index: faiss.Index) -> int:
    """The least that one vector takes in `index`; 0 where FAISS does not say."""
    try:
        return index.sa_code_size()
    except RuntimeError:
        return 0


@contextmanager
def byte_limit(limit: int) -> Iterator[None]:
    """Have FAISS refuse arrays of more than `limit` bytes; older versions cannot."""
    if not hasattr(faiss, "set_deserialization_vector_byte_limit"):
        yield
        return
    usual = faiss.get_deserialization_vector_byte_limit()
    faiss.set_deserialization_vector_byte_limit(limit)
    try:
        yield
    finally:
        faiss.set_deserialization_vector_byte_limit(usual)
