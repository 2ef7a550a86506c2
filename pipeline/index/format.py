"""An index as bytes in FAISS's own format, and back.

FAISS has no checksum, and its writer can report success on a full disk, so both files and their hashes are storage's
business. Reading refuses a header that claims more than the bytes could hold.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from pipeline.errors import IntegrityError

REBUILD = "run build-index again"
AS_IT_IS = faiss.IO_FLAG_SKIP_PRECOMPUTE_TABLE
"""Reads what the bytes hold; the tables that FAISS makes of it would count as claims of theirs."""
METRICS = {"inner_product": faiss.METRIC_INNER_PRODUCT, "euclidean": faiss.METRIC_L2}


def to_bytes(index: faiss.Index) -> memoryview:
    return memoryview(faiss.serialize_index(index))


def from_bytes(data: bytes | memoryview, name: str, card: Mapping[str, Any]) -> faiss.Index:
    """The index in `data`, checked against its card (`count`, `dim`, `metric`).

    Raises IntegrityError, which calls it `name`, where the bytes are not an index, or not the one of the card.
    """
    return _read(lambda: faiss.deserialize_index(np.frombuffer(data, np.uint8), AS_IT_IS), len(data), name, card)


def view_bytes(data: bytes | memoryview, name: str, card: Mapping[str, Any]) -> faiss.Index:
    """The same index, its codes, lists and links left where they are in `data`: for searching only, since FAISS ends
    the process that adds to it or takes something out."""
    return _read(lambda: _view(np.frombuffer(data, np.uint8)), len(data), name, card)


def map_lists(data: bytes | memoryview, name: str, card: Mapping[str, Any], lists: Path) -> faiss.Index:
    """An index whose inverted lists are in the file `lists`, which it names: FAISS reads what a search needs of it."""
    # FAISS has a flag for files that moved together (IO_FLAG_ONDISK_SAME_DIR), which prints a line among our answers.
    named, here = (len(path).to_bytes(8, "little") + path for path in (lists.name.encode(), os.fsencode(lists)))
    if bytes(data).count(named) != 1:
        raise IntegrityError(f"{name} does not name {lists.name} as its lists; {REBUILD}")
    placed, flags = np.frombuffer(bytes(data).replace(named, here), np.uint8), faiss.IO_FLAG_READ_ONLY | AS_IT_IS
    return _read(lambda: faiss.deserialize_index(placed, flags), len(placed), name, card, lists)


def _view(data: np.ndarray) -> faiss.Index:
    index = faiss.read_index(faiss.ZeroCopyIOReader(faiss.swig_ptr(data), len(data)), AS_IT_IS)
    faiss.class_wrappers.add_to_referenced_objects(index, data)  # which has to last as long
    return index


def _read(
    read: Callable[[], faiss.Index], size: int, name: str, card: Mapping[str, Any], lists: Path | None = None
) -> faiss.Index:
    """What `read` reads, checked against its card; it may have its lists in the file `lists`, and in no other."""
    try:
        with byte_limit(2 * size + 4096):
            index = read()
        _compute_tables(index)
    except (RuntimeError, MemoryError) as error:
        raise IntegrityError(f"{name} is not a readable FAISS index; {REBUILD}") from error
    for file in lists_files(index):  # FAISS writes to it what is added
        if lists is None or Path(file) != lists:
            raise IntegrityError(f"{name} has its lists in {file}, which is not in its bundle; {REBUILD}")
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


def lists_files(index: faiss.Index) -> Iterator[str]:
    """The files of inverted lists that the bytes of an index, or of one inside of it, have named."""
    index = faiss.downcast_index(index)
    if (inverted := getattr(index, "invlists", None)) is not None:
        inverted = faiss.downcast_InvertedLists(inverted)
        if isinstance(inverted, faiss.OnDiskInvertedLists):
            yield inverted.filename
    for part in ("index", "base_index", "refine_index", "quantizer", "storage"):
        inner = getattr(index, part, None)
        if isinstance(inner, faiss.Index):
            yield from lists_files(inner)


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
