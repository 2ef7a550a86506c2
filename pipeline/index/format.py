"""Converting FAISS indexes to bytes in FAISS's format, and reading them back safely.

FAISS's format has no checksum, and FAISS can report success on a full disk. Files and their hashes are therefore
handled by pipeline.storage. All bytes are checked before FAISS may search them, because they may come from an untrusted
source: a header must not declare more data than there is, and all parts must be of allowed types and fit each other.
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
from pipeline.index.faiss_types import inverted_lists, transforms_of, untyped
from pipeline.storage.files import REBUILD

READ_FLAGS = faiss.IO_FLAG_SKIP_PRECOMPUTE_TABLE
"""Flags with which FAISS reads an index. With them, FAISS does not compute the tables of `_compute_tables` while it
reads, because their size would count against `byte_limit`."""
ON_DISK = re.compile(b"ilod")
"""Pattern of FAISS's marker in front of inverted lists that are stored in another file."""
RANDOM_ACCESS = frozenset((
    "IndexFlat", "IndexFlatIP", "IndexFlatL2", "IndexScalarQuantizer", "IndexPQ", "IndexRaBitQ",
))  # fmt: skip
"""Types of index that can compare a query with a single vector. A graph or a refinement must store its vectors in one
of these types, because FAISS would otherwise end the process."""
COARSE = RANDOM_ACCESS | frozenset((
    "IndexPQFastScan", "IndexRaBitQFastScan", "IndexLSH",
    "IndexHNSW", "IndexHNSWFlat", "IndexHNSWSQ", "IndexHNSWPQ",
))  # fmt: skip
"""Types of index without lists. They may also be the quantizer of an inverted file."""
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
"""Allowed type of index -> its attributes that are indexes themselves, as name -> allowed types. The types that
pipeline.index.candidates makes are among them. All other types are refused, because they could refer to a file."""
TRANSFORMS = (faiss.LinearTransform, faiss.NormalizationTransform)
"""The allowed transforms of vectors, including their subclasses (OPQMatrix, PCAMatrix, RandomRotationMatrix)."""
MAX_TRANSFORMS = 4
"""Largest number of transforms that an index may apply before it stores a vector. An index with more transforms is
refused."""
SCALAR_KINDS = ("8bit", "6bit", "4bit", "fp16", "bf16", "8bit_direct", "8bit_direct_signed")
"""The allowed kinds of scalar quantizers, as FAISS names them."""
FAST_BLOCK = 32
"""Number of vectors in a block of fast-scan codes in an index that FAISS makes from a factory string."""
MAX_VERTICES = 1 << 15
"""Largest number of candidate vertices that a search in a graph keeps (`efSearch`)."""
PLAIN_SEARCH = vars(faiss.IndexPQ)["ST_PQ"]
"""The value of the attribute `search_type` of an IndexPQ for a search that compares complete codes."""
METRICS = {"inner_product": faiss.METRIC_INNER_PRODUCT, "euclidean": faiss.METRIC_L2}


@dataclass(frozen=True)
class ExpectedIndex:
    """The number of vectors (`count`), the dimensions (`dim`) and the `metric` of an index according to its card."""

    count: int
    dim: int
    metric: str


def metric_of(index: faiss.Index) -> str:
    """Return the metric of an index by its name in METRICS."""
    return next(name for name, kind in METRICS.items() if kind == index.metric_type)


def write_index(index: faiss.Index, write: Callable[[bytes], object]) -> None:
    """Pass the file of an index, in FAISS's format, to the function `write` in consecutive pieces."""
    faiss.write_index(index, untyped(faiss).PyCallbackIOWriter(write))


def to_bytes(index: faiss.Index) -> memoryview:
    """Return the file of an index in FAISS's format as bytes in memory. faiss.serialize_index would need twice the
    memory."""
    data = bytearray()
    write_index(index, data.extend)
    return memoryview(data)


def file_size(index: faiss.Index) -> int:
    """Return the size in bytes of the file of an index, without holding the file in memory."""
    sizes: list[int] = []
    write_index(index, lambda part: sizes.append(len(part)))
    return sum(sizes)


def from_bytes(data: bytes | memoryview, name: str, card: ExpectedIndex) -> faiss.Index:
    """Read an index from `data` in FAISS's format as a copy that can be changed, and compare it with its `card`.

    Raises IntegrityError, which refers to the index as `name`, if the bytes are not an index of allowed types,
    contradict themselves, refer to another file, or differ from the card.
    """
    _require_no_files(data, name)
    return _read(lambda bytes_: faiss.deserialize_index(bytes_, READ_FLAGS), data, name, card)


def view_bytes(
    data: bytes | memoryview, name: str, card: ExpectedIndex, is_searched_for_files: bool = False
) -> faiss.Index:
    """Read an index in FAISS's format whose codes, lists and links stay in `data`, and compare it with its `card`.

    The index can only be searched. Adding or removing vectors would end the process. If `is_searched_for_files`, the
    caller knows that these bytes do not refer to another file, and the bytes are not searched for such references here.
    Raises IntegrityError, which refers to the index as `name`, if the bytes are not an index of allowed types,
    contradict themselves, refer to another file, or differ from the card.
    """

    def view(bytes_: np.ndarray) -> faiss.Index:
        reader = untyped(faiss).ZeroCopyIOReader(faiss.swig_ptr(bytes_), len(bytes_))
        index = faiss.read_index(reader, READ_FLAGS)
        class_wrappers.add_to_referenced_objects(index, bytes_)  # The bytes must exist as long as the index.
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
            raise IntegrityError(
                f"{name} is damaged: its FAISS attribute `{flaw}` does not fit its other attributes. {REBUILD}"
            )
        _compute_tables(index)
    except (RuntimeError, MemoryError, RecursionError) as error:
        raise IntegrityError(f"{name} is not a readable FAISS index. {REBUILD}") from error
    expected = (card.count, card.dim, METRICS[card.metric])
    if (index.ntotal, index.d, index.metric_type) != expected:
        raise IntegrityError(
            f"{name} contains {index.ntotal} vectors of {index.d} dimensions with the FAISS metric number"
            f" {index.metric_type}, but its card declares {card.count} vectors of {card.dim} dimensions with the metric"
            f" number {METRICS[card.metric]} ({card.metric}). {REBUILD}"
        )
    return index


def _compute_tables(index: faiss.Index) -> None:
    """Compute the tables of products of centroids and codes, which speed up searches, if the index is or wraps an IVFPQ
    index of residuals. FAISS limits the size of the tables."""
    inverted = faiss.try_extract_index_ivf(index)
    typed = faiss.downcast_index(inverted) if inverted is not None else None
    if isinstance(typed, faiss.IndexIVFPQ) and typed.by_residual:
        typed.precompute_table()


def _require_no_files(data: bytes | memoryview, name: str) -> None:
    """Raise IntegrityError if `data` refers to another file that has the lists of the index. FAISS would open this
    file, and could write to it. Messages call the index `name`."""
    data = memoryview(data)
    for match in ON_DISK.finditer(data):
        offset = match.end() + 16
        try:
            (lists,) = struct.unpack_from("<Q", data, offset)
            offset += 8 + 24 * lists
            (slots,) = struct.unpack_from("<Q", data, offset)
            offset += 8 + 16 * slots
            (length,) = struct.unpack_from("<Q", data, offset)
            (file, _) = struct.unpack_from(f"<{min(length, len(data))}sQ", data, offset + 8)
        except (struct.error, ValueError, OverflowError):
            continue  # The marker is a coincidence: FAISS could not read a file name here.
        raise IntegrityError(
            f"{name} stores its lists in another file, {os.fsdecode(file)!r}, which jointspace does not open. {REBUILD}"
        )


def require_known_types(index: faiss.Index, name: str, allowed: Collection[str] = PARTS.keys()) -> None:
    """Check the types of an index and of all indexes, transforms and scalar quantizers in it. Messages call the index
    `name`.

    Raises IntegrityError if the type of the index is not in `allowed`, if PARTS does not allow the type of an index
    inside it, or if TRANSFORMS, MAX_TRANSFORMS or SCALAR_KINDS do not allow its transforms or its scalar quantizer.
    """
    typed = faiss.downcast_index(index)  # `typed` is only valid as long as `index` exists.
    kind = type(typed).__name__
    if kind not in allowed:
        raise IntegrityError(
            f"{name} contains an {kind} at a position where jointspace does not use this type. {REBUILD}"
        )
    for part, kinds in PARTS[kind].items():
        require_known_types(getattr(typed, part), name, kinds)
    transforms = transforms_of(typed, MAX_TRANSFORMS + 1)
    others = [type(transform).__name__ for transform in transforms if not isinstance(transform, TRANSFORMS)]
    known = [getattr(faiss.ScalarQuantizer, f"QT_{kind}") for kind in SCALAR_KINDS]
    if len(transforms) > MAX_TRANSFORMS:
        raise IntegrityError(f"{name} has more than {MAX_TRANSFORMS} transforms before its index. {REBUILD}")
    if hasattr(typed, "sq") and untyped(typed).sq.qtype not in known:
        others.append(f"ScalarQuantizer of the kind {untyped(typed).sq.qtype}")
    if others:
        raise IntegrityError(f"{name} contains an {others[0]}, which jointspace does not use. {REBUILD}")


def _facts(index: faiss.Index, part: str = "") -> Iterator[tuple[str, bool]]:
    """Check the conditions on an index of allowed types that must hold before FAISS may search the index.

    For each condition, yield the name of the attribute that the condition is about, and whether the condition holds.
    The indexes in attributes of `index` are checked too. FAISS checks the sizes of most arrays when it reads them, but
    not these conditions. If a condition does not hold, a search may read or write beyond FAISS's arrays. `part` is a
    prefix of the names. It is empty for the whole index, and names the attribute if `index` is inside another index.
    """
    index = faiss.downcast_index(index)
    dim = index.d
    count = index.ntotal
    metric = index.metric_type
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
    """Check the conditions that concern only `index` itself, and not the indexes in its attributes. Yield the results
    as `_facts` does. `index` has `count` vectors of `dim` dimensions."""
    yield "is_trained", index.is_trained
    codes = untyped(index)
    if isinstance(index, faiss.IndexFastScan | faiss.IndexIVFFastScan):
        yield "bbs", index.bbs == FAST_BLOCK
        yield "implem", (index.implem, index.skip, index.nbits, index.ksub) == (0, 0, 4, 16)
        yield "qbs", (index.qbs, getattr(index, "qbs2", 0)) == (0, 0)
    if hasattr(index, "pq"):
        yield "quantizer", codes.pq.d == dim and getattr(index, "M", codes.pq.M) == codes.pq.M
        yield "search_type", getattr(index, "search_type", PLAIN_SEARCH) == PLAIN_SEARCH
    if hasattr(index, "rabitq"):
        quantizer = codes.rabitq
        bits = quantizer.nb_bits
        same = (quantizer.d, quantizer.metric_type) == (dim, index.metric_type)
        yield "quantizer", same and 0 < bits < 10
        code_size = untyped(faiss).RaBitQuantizer(dim, quantizer.metric_type, bits).code_size
        yield "quantizer", code_size == quantizer.code_size == codes.code_size
        yield "center", not hasattr(index, "center") or codes.center.size() == dim
    if isinstance(index, faiss.IndexLSH):
        yield "rotation", index.rrot.A.size() == dim * index.nbits if codes.rotate_data else index.nbits <= dim
        yield "thresholds", codes.thresholds.size() == (index.nbits if index.train_thresholds else 0)
    if isinstance(index, faiss.IndexFastScan):
        each = codes.code_size if hasattr(index, "rabitq") else codes.M2 // 2
        yield "ntotal2", codes.ntotal2 == -(-count // FAST_BLOCK) * FAST_BLOCK
        yield "codes", codes.codes.size() == codes.ntotal2 * each
    if isinstance(index, faiss.IndexIVF):
        yield "lists", index.invlists is not None
        lists = inverted_lists(index)
        packer = index.get_CodePacker()
        blocks = hasattr(lists, "n_per_block")
        packed = (untyped(lists).n_per_block, untyped(lists).block_size) if blocks else (1, lists.code_size)
        yield "nprobe", 0 < index.nprobe <= index.nlist == lists.nlist and index.direct_map.no()
        yield "lists", packed == (packer.nvec, packer.block_size)
        yield "lists", blocks == isinstance(index, faiss.IndexIVFFastScan)
        yield "lists", sum(map(lists.list_size, range(index.nlist))) == count
    if isinstance(index, faiss.IndexHNSW):
        yield "efSearch", 0 < index.hnsw.efSearch <= MAX_VERTICES
        yield "graph", _is_descendable(index)


def _is_descendable(index: faiss.IndexHNSW) -> bool:
    """Return whether each link of an HNSW graph on a level above the lowest leads to a vertex that has this level too,
    and whether the search starts at a vertex of the highest level.

    If one of the two is not true, FAISS reads beyond its arrays. The array `offsets` of the graph has the position at
    which the links of each vertex begin. The links of a vertex are stored one level after the other.
    """
    graph = untyped(index.hnsw)
    levels = faiss.vector_to_array(graph.levels)
    starts = faiss.vector_to_array(graph.offsets).astype(np.int64)[:-1]
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
    """Yield the index and the indexes that it wraps, from the outside in, each with its own type.

    Wrapped indexes are in the attributes `index` and `base_index`. The results are valid as long as `index` exists.
    """
    index = faiss.downcast_index(index)
    yield index
    for name in ("index", "base_index"):
        if isinstance(inner := getattr(index, name, None), faiss.Index):
            yield from parts_of(inner)


def code_bytes(index: faiss.Index) -> int:
    """Return the size in bytes of the code of one vector in `index`, or 0 if FAISS does not know it."""
    try:
        return index.sa_code_size()
    except RuntimeError:
        return 0


@contextmanager
def byte_limit(limit: int) -> Iterator[None]:
    """Make FAISS refuse arrays of more than `limit` bytes when it reads an index within the `with` block. Old FAISS
    versions cannot limit arrays, and read any array."""
    if not hasattr(faiss, "set_deserialization_vector_byte_limit"):
        yield
        return
    usual = faiss.get_deserialization_vector_byte_limit()
    faiss.set_deserialization_vector_byte_limit(limit)
    try:
        yield
    finally:
        faiss.set_deserialization_vector_byte_limit(usual)
