"""Inverted lists that need not fit into memory: filled part by part, merged into one file, and searched there.

FAISS maps the file of the lists by its name, so that, unlike elsewhere in this package, paths are taken.
"""

import ctypes
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import faiss
import numpy as np
from faiss.contrib.ondisk import merge_ondisk

from pipeline.errors import JointspaceError, UsageError
from pipeline.index.candidates import INVERTED, Built, Progress, train_factory
from pipeline.index.format import code_bytes, to_bytes
from pipeline.index.lists_on_gpu import Adder
from pipeline.index.places import Memory
from pipeline.index.vectors import Vectors
from pipeline.precision import require_finite

ID_BYTES = 8
"""Of each vector in a list, beside its code."""


@dataclass(frozen=True)
class ListsFile(Memory):
    """In a file of lists that is written to `path`, and will then have the `name` beside its index."""

    path: Path
    name: str

    any_kind = counted = False

    def suits(self, factory: str) -> bool:
        return goes_on_disk(factory)

    def build(self, factory: str, vectors: Vectors, metric: str, progress: Progress) -> Built:
        return build_on_disk(factory, vectors, metric, self.path, progress)

    def to_bytes(self, index: faiss.Index) -> memoryview:
        return to_bytes_naming(index, self.name)

    @property
    def beside(self) -> int:
        return self.path.stat().st_size

    def deliver(self, writer: Any, name: str) -> dict[str, Any]:
        writer.adopt(self.name)
        return {}


def goes_on_disk(factory: str) -> bool:
    """Whether FAISS can leave the lists of such an index in a file: not those of 4-bit blocks, nor a refinement."""
    refined = any(word in factory for word in ("fs", "Refine", "RFlat"))
    return bool(INVERTED.search(factory)) and not refined


def require_on_disk(factories: Sequence[str]) -> None:
    """Raises UsageError naming the first that does not go on disk."""
    for factory in factories:
        if not goes_on_disk(factory):
            raise UsageError(
                f"index.candidates: {factory} has no inverted lists that can be on disk or in pieces; name one such as"
                " IVF1024,Flat or IVF1024,SQ8, or set index.on_disk to false and index.piece to more vectors"
            )


def build_on_disk(factory: str, vectors: Vectors, metric: str, lists: Path, progress: Progress) -> Built:
    """Train an index as pipeline.index.candidates.build does, and put all vectors into lists in the file `lists`.

    In memory are one block of vectors and the training sample. On the disk every vector's code stands twice for a
    while, beside `lists` in a folder that goes away. Raises IntegrityError naming a row that is not finite, and
    JointspaceError where the disk has too little room.
    """
    start = time.perf_counter()
    index = train_factory(factory, vectors, metric)
    trained = time.perf_counter()
    _require_room(lists, 2 * vectors.count * (code_bytes(index) + ID_BYTES))
    lists.unlink(missing_ok=True)
    empty, parts, first = np.frombuffer(to_bytes(index), np.uint8), [], 0
    with TemporaryDirectory(dir=lists.parent, prefix=f"{lists.name}.") as folder:
        for block in progress(vectors.blocks(), f"adding to {factory}"):
            require_finite("embeddings", "vectors", block)
            part = faiss.deserialize_index(empty)
            Adder(part).add(block, np.arange(first, first + len(block)))
            parts.append(Path(folder) / f"{first}.faiss")
            parts[-1].write_bytes(to_bytes(part))
            first += len(block)
        with _stdout_to_stderr():
            merge_ondisk(index, [str(part) for part in parts], str(lists))
    return Built(index, trained - start, time.perf_counter() - trained)


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Redirect what C code prints to stderr: FAISS reports how it resizes the file on stdout."""
    libc = ctypes.CDLL(None)
    sys.stdout.flush()
    libc.fflush(None)  # what was printed before belongs to stdout
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        libc.fflush(None)
        os.dup2(kept, 1)
        os.close(kept)


def to_bytes_naming(index: faiss.Index, name: str) -> memoryview:
    """The index without its lists, as bytes, which say that these are in the file `name` of the same folder."""
    inverted = faiss.downcast_InvertedLists(faiss.extract_index_ivf(index).invlists)
    path, inverted.filename = inverted.filename, name
    try:
        return to_bytes(index)
    finally:
        inverted.filename = path


def _require_room(path: Path, needed: int) -> None:
    """FAISS writes the file through a memory map, and the process is killed where the disk is full."""
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise JointspaceError(
            f"{path.parent} has {free:,} bytes free and lists on disk need {needed:,} while they are merged; make room"
            " or choose another results_root"
        )
