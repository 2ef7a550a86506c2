"""An index as bytes in FAISS's own format, and back.

FAISS has no checksum, and its writer can report success on a full disk, so both files and their hashes are storage's
business. Reading refuses a header that claims more than the bytes could hold.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import faiss
import numpy as np

from pipeline.errors import IntegrityError

METRICS = {"inner_product": faiss.METRIC_INNER_PRODUCT, "euclidean": faiss.METRIC_L2}


def to_bytes(index: faiss.Index) -> memoryview:
    return memoryview(faiss.serialize_index(index))


def from_bytes(data: bytes | memoryview, name: str, card: Mapping[str, Any]) -> faiss.Index:
    """The index in `data`, checked against its card (`count`, `dim`, `metric`).

    Raises IntegrityError, which calls it `name`, when the bytes are no index or not the one of the card.
    """
    return _read(data, name, card, faiss.deserialize_index)


def view_bytes(data: bytes | memoryview, name: str, card: Mapping[str, Any]) -> faiss.Index:
    """The same index, its codes, lists and links left where they are in `data`: for searching only, since FAISS ends
    the process that adds to it or takes something out."""
    return _read(data, name, card, _view)


def _view(data: np.ndarray) -> faiss.Index:
    index = faiss.read_index(faiss.ZeroCopyIOReader(faiss.swig_ptr(data), len(data)))
    faiss.class_wrappers.add_to_referenced_objects(index, data)  # which has to last as long
    return index


def _read(
    data: bytes | memoryview, name: str, card: Mapping[str, Any], read: Callable[[np.ndarray], faiss.Index]
) -> faiss.Index:
    try:
        with _byte_limit(2 * len(data) + 4096):
            index = read(np.frombuffer(data, np.uint8))
    except (RuntimeError, MemoryError) as error:
        raise IntegrityError(f"{name} is not a readable FAISS index; run build-index again") from error
    expected = (card["count"], card["dim"], METRICS[card["metric"]])
    if (index.ntotal, index.d, index.metric_type) != expected:
        raise IntegrityError(
            f"{name} holds {index.ntotal} vectors of {index.d} dimensions and FAISS metric {index.metric_type}, not"
            f" {expected} as its card says; run build-index again"
        )
    return index


@contextmanager
def _byte_limit(limit: int) -> Iterator[None]:
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
