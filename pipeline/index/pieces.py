"""An index in pieces: one trained index without vectors, and the inverted lists of every range of ids in bytes of their
own, which a worker makes without the others.

A piece is an inverted file of FAISS whose centroids are left out: all pieces share those of the trained index. Put
together, the pieces' lists of a centroid stand one after another, in the order of the pieces, and FAISS searches them
as one list. So the same codes are compared as in one index, and nothing is read before a search visits it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import faiss
import numpy as np

from pipeline.errors import IntegrityError
from pipeline.index.format import REBUILD, byte_limit, code_bytes, require_known_types, require_no_files, to_bytes
from pipeline.index.lists_on_gpu import Adder
from pipeline.index.mapped import MappedCodes
from pipeline.index.ondisk import ID_BYTES
from pipeline.index.tuning import stages_of
from pipeline.precision import require_finite

WORKING_COPIES = 3
"""A worker holds a piece as lists, whose memory grows by doubling, and as bytes."""


def piece_rows(trained: faiss.Index, most: int, memory: float) -> int:
    """How many vectors make a piece: at most `most`, and no more than a worker with so many bytes of `memory` holds."""
    each = WORKING_COPIES * (code_bytes(trained) + ID_BYTES)
    return int(max(1, min(most, memory // each)))


def read_trained(data: bytes | memoryview) -> faiss.Index:
    """An index, or a piece, that can change. FAISS's tables for searching are not computed, which take centroids and
    memory."""
    require_no_files(data, "a piece of an index")
    return faiss.deserialize_index(np.frombuffer(data, np.uint8), faiss.IO_FLAG_SKIP_PRECOMPUTE_TABLE)


def fill_piece(
    trained: bytes | memoryview, blocks: Iterable[np.ndarray], first: int, onto: bytes | memoryview | None = None
) -> memoryview:
    """The piece of the vectors in `blocks` (n_i, c), under the ids `first`, `first` + 1, ..., behind those of the piece
    `onto`, if there is one.

    `trained` are the bytes of the index. Raises IntegrityError naming a row that is not finite.
    """
    index = read_trained(trained)
    adder, inverted = Adder(index), stages_of(index).inverted
    if onto is not None:
        inverted.invlists.merge_from(faiss.downcast_index(before := read_trained(onto)).invlists, 0)
        inverted.ntotal = before.ntotal
    for block in blocks:
        require_finite("embeddings", "vectors", block)
        adder.add(block, np.arange(first, first + len(block)))
        first += len(block)
    return _to_bytes(inverted)


def shrink_piece(data: bytes | memoryview, ids: np.ndarray) -> memoryview:
    """The piece `data` without the `ids` (k,)."""
    piece = read_trained(data)
    piece.remove_ids(np.ascontiguousarray(ids, np.int64))
    return to_bytes(piece)


def assemble(trained: faiss.Index, pieces: Sequence[memoryview], card: Mapping[str, Any], name: str) -> faiss.Index:
    """`trained`, with the vectors of all `pieces`, for searching only; these are left where they are.

    `card` has the `count` of all, and under `pieces` that of each. Raises IntegrityError, which calls the index `name`,
    where a piece is not one of it.
    """
    inverted, recorded, parts = stages_of(trained).inverted, card["pieces"], []
    wanted = inverted and (inverted.nlist, inverted.code_size)
    if inverted is None or len(pieces) != len(recorded):
        raise IntegrityError(f"{name} is not an index in {len(recorded)} pieces; {REBUILD}")
    lists = faiss.InvertedListsPtrVector()
    for number, (data, about) in enumerate(zip(pieces, recorded, strict=True)):
        whole = _view(data)
        part = faiss.downcast_index(whole)
        if type(part) is not type(inverted) or (part.nlist, part.code_size) != wanted or part.ntotal != about["count"]:
            raise IntegrityError(f"piece {number} of {name} does not belong to it; {REBUILD}")
        parts.append((whole, data))
        lists.push_back(part.invlists)
    stacked = faiss.HStackInvertedLists(lists.size(), lists.data())
    inverted.replace_invlists(stacked, False)
    _set_total(trained, inverted, sum(about["count"] for about in recorded))
    for part in (stacked, parts, MappedCodes(inverted, pieces)):  # which have to last as long
        faiss.class_wrappers.add_to_referenced_objects(trained, part)
    if trained.ntotal != card["count"]:
        raise IntegrityError(f"{name} has {trained.ntotal} vectors in its pieces, not {card['count']}; {REBUILD}")
    return trained


def _set_total(index: faiss.Index, inverted: faiss.IndexIVF, count: int) -> None:
    """Have `index`, and what it wraps down to `inverted`, know of `count` vectors."""
    while True:
        index = faiss.downcast_index(index)
        index.ntotal = count
        if index.this == inverted.this or isinstance(index, faiss.IndexIVF):
            return
        index = index.index


def _to_bytes(inverted: faiss.IndexIVF) -> memoryview:
    """An inverted file without its centroids."""
    centroids, owned = inverted.quantizer, inverted.own_fields
    nothing = faiss.IndexFlat(inverted.d, inverted.metric_type)
    inverted.own_fields, inverted.quantizer = False, nothing
    try:
        return to_bytes(inverted)
    finally:
        inverted.quantizer, inverted.own_fields = centroids, owned


def _view(data: memoryview) -> faiss.Index:
    """A piece whose codes stay where they are in `data`; IntegrityError where the bytes are not an index."""
    whole, name = np.frombuffer(data, np.uint8), "a piece of an index"
    require_no_files(data, name)
    try:
        with byte_limit(2 * len(whole) + 4096):
            reader = faiss.ZeroCopyIOReader(faiss.swig_ptr(whole), len(whole))
            index = faiss.read_index(reader, faiss.IO_FLAG_SKIP_PRECOMPUTE_TABLE)
        require_known_types(index, name)
        return index
    except (RuntimeError, MemoryError) as error:
        raise IntegrityError(f"{name} is not readable ({error}); {REBUILD}") from error
