"""An index as bytes in FAISS's own format, and back.

FAISS has no checksum, and its writer can report success on a full disk, so both files and their hashes are storage's
business. Reading refuses a header that claims more than the bytes could hold.
"""

import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import faiss
import numpy as np

from pipeline.errors import IntegrityError

REBUILD = "run build-index again"
AS_IT_IS = faiss.IO_FLAG_SKIP_PRECOMPUTE_TABLE
"""Reads what the bytes hold; the tables that FAISS makes of it would count as claims of theirs."""
ON_DISK = re.compile(b"ilod")
"""Before the inverted lists of an index that are in a file."""
CODES = frozenset((
    "IndexFlat", "IndexFlatIP", "IndexFlatL2", "IndexScalarQuantizer", "IndexPQ", "IndexPQFastScan", "IndexRaBitQ",
    "IndexRaBitQFastScan", "IndexLSH",
))  # fmt: skip
GRAPHS = frozenset(("IndexHNSW", "IndexHNSWFlat", "IndexHNSWSQ", "IndexHNSWPQ"))
INVERTED = frozenset((
    "IndexIVFFlat", "IndexIVFScalarQuantizer", "IndexIVFPQ", "IndexIVFPQFastScan", "IndexIVFRaBitQ",
    "IndexIVFRaBitQFastScan",
))  # fmt: skip
WRAPPERS = {
    "IndexIDMap": ("index",), "IndexIDMap2": ("index",), "IndexPreTransform": ("index",),
    "IndexRefine": ("base_index", "refine_index"), "IndexRefineFlat": ("base_index", "refine_index"),
}  # fmt: skip
"""The types of index that factory strings make here (pipeline.index.candidates), and the parts of those around
others. All others are refused: one may hide a file where nobody looks for it."""
METRICS = {"inner_product": faiss.METRIC_INNER_PRODUCT, "euclidean": faiss.METRIC_L2}


def metric_of(index: faiss.Index) -> str:
    """The name of its metric, of METRICS."""
    return next(name for name, kind in METRICS.items() if kind == index.metric_type)


def to_bytes(index: faiss.Index) -> memoryview:
    """Without the second copy that faiss.serialize_index makes."""
    data = bytearray()
    faiss.write_index(index, faiss.PyCallbackIOWriter(data.extend))
    return memoryview(data)


def from_bytes(data: bytes | memoryview, name: str, card: Mapping[str, Any]) -> faiss.Index:
    """The index in `data`, checked against its card (`count`, `dim`, `metric`).

    Raises IntegrityError, which calls it `name`, where the bytes are not an index, or not the one of the card.
    """
    return _read(lambda bytes_: faiss.deserialize_index(bytes_, AS_IT_IS), data, name, card)


def view_bytes(data: bytes | memoryview, name: str, card: Mapping[str, Any]) -> faiss.Index:
    """The same index, its codes, lists and links left where they are in `data`: for searching only, since FAISS ends
    the process that adds to it or takes something out."""

    def view(bytes_: np.ndarray) -> faiss.Index:
        index = faiss.read_index(faiss.ZeroCopyIOReader(faiss.swig_ptr(bytes_), len(bytes_)), AS_IT_IS)
        faiss.class_wrappers.add_to_referenced_objects(index, bytes_)  # which has to last as long
        return index

    return _read(view, data, name, card)


def _read(
    read: Callable[[np.ndarray], faiss.Index], data: bytes | memoryview, name: str, card: Mapping[str, Any]
) -> faiss.Index:
    _require_no_files(data, name)
    try:
        with byte_limit(2 * len(data) + 4096):
            index = read(np.frombuffer(data, np.uint8))
        require_known_types(index, name)
        _compute_tables(index)
    except (RuntimeError, MemoryError) as error:
        raise IntegrityError(f"{name} is not a readable FAISS index; {REBUILD}") from error
    expected = (card["count"], card["dim"], METRICS[card["metric"]])
    if (index.ntotal, index.d, index.metric_type) != expected:
        raise IntegrityError(
            f"{name} holds {index.ntotal} vectors of {index.d} dimensions and FAISS metric {index.metric_type}, not"
            f" {expected} as its card says; {REBUILD}"
        )
    return index


def _compute_tables(index: faiss.Index) -> None:
    """The products of centroids and codes by which product codes are searched faster; FAISS limits their bytes."""
    inverted = faiss.downcast_index(faiss.try_extract_index_ivf(index))
    if isinstance(inverted, faiss.IndexIVFPQ) and inverted.by_residual:
        inverted.precompute_table()


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
            f"{name} has its lists in the file {os.fsdecode(file)!r}, which is not of its bundle; {REBUILD}"
        )


def require_known_types(index: faiss.Index, name: str, quantizer: bool = False) -> None:
    """Raises IntegrityError naming the type of an index, or of a part of it, that this project does not build; a
    `quantizer` finds lists, and has none."""
    typed = faiss.downcast_index(index)  # which lasts as long as `index`
    kind = type(typed).__name__
    if kind in WRAPPERS and not quantizer:
        parts = [(part, False) for part in WRAPPERS[kind]]
    elif kind in INVERTED and not quantizer:
        parts = [("quantizer", True)]
    elif kind in GRAPHS:
        parts = [("storage", True)]
    elif kind in CODES:
        parts = []
    else:
        raise IntegrityError(f"{name} holds an {kind}, which no index of this project has there; {REBUILD}")
    for part, coarse in parts:
        require_known_types(getattr(typed, part), name, coarse)


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
