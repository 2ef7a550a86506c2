"""Searching an index whose codes are in mapped files, without leaving all of them mapped.

The pages that a search reads count as memory of the process until the system takes them back, which it does only when
memory is short. They are given back here, and stay in the system's cache of files.
"""

import math
import mmap
from collections.abc import Sequence
from typing import Any

import faiss
import numpy as np

MOST = 1 << 30
"""Bytes of codes that may be mapped before they are given back; a batch of queries that reads more is divided."""


class MappedCodes:
    """The `files`, memory maps, in which an index has the codes of its `lists`."""

    def __init__(self, lists: faiss.IndexIVF, files: Sequence[memoryview]) -> None:
        self.lists, self.files, self.bytes, self.read = lists, files, sum(map(len, files)), 0.0

    def use(self, size: float) -> None:
        """Count that a search read about `size` bytes; where that is too much in all, give everything back."""
        self.read += size
        if self.read >= MOST and hasattr(mmap, "MADV_DONTNEED"):
            self.read = 0.0
            for file in self.files:
                if isinstance(file.obj, mmap.mmap):
                    file.obj.madvise(mmap.MADV_DONTNEED)


def search_index(
    index: faiss.Index, queries: np.ndarray, k: int, share: float = 1.0, **more: Any
) -> tuple[np.ndarray, np.ndarray]:
    """What `index.search(queries, k, **more)` gives, scores and rows (q, k). It visits all lists where `share` is 0,
    and otherwise 1 / `share` times as many as the index usually does."""
    codes = codes_of(index)
    if codes is None or codes.bytes <= MOST or not len(queries):
        return index.search(queries, k, **more)
    visited = min(1.0, codes.lists.nprobe / codes.lists.nlist / share) if share else 1.0
    portion, found = max(1, math.floor(MOST / (visited * codes.bytes))), []
    for start in range(0, len(queries), portion):
        part = queries[start : start + portion]
        found.append(index.search(part, k, **more))
        codes.use(len(part) * visited * codes.bytes)
    scores, rows = zip(*found, strict=True)
    return np.concatenate(scores), np.concatenate(rows)


def codes_of(index: faiss.Index) -> MappedCodes | None:
    """Where the codes of an index are; None where they are not in mapped files."""
    kept = getattr(index, "referenced_objects", ())
    return next((one for one in kept if isinstance(one, MappedCodes)), None)


def downcast(index: faiss.Index) -> faiss.Index:
    """`index` as the class that it is."""
    found, codes = faiss.downcast_index(index), codes_of(index)
    if codes is not None:
        faiss.class_wrappers.add_to_referenced_objects(found, codes)
    return found
