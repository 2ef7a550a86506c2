"""An index in pieces, for the commands that build one: every piece is a file that whoever has made it commits, so that
a lost worker or a killed job costs one piece."""

import hashlib
import os
import re
import shutil
import time
from dataclasses import dataclass
from operator import add
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from pipeline.index.candidates import Built, Progress, train_factory, training_rows
from pipeline.index.exact import Neighbours
from pipeline.index.format import from_bytes, to_bytes
from pipeline.index.ondisk import goes_on_disk
from pipeline.index.pieces import assemble, fill_piece, piece_rows, read_trained
from pipeline.index.places import Memory
from pipeline.index.requirements import MEBI
from pipeline.index.shard_search import search_parts
from pipeline.index.tuning import stages_of
from pipeline.index.vectors import Vectors
from pipeline.mapreduce import map_reduce
from pipeline.storage.batch import remove_own
from pipeline.storage.bundle import BundleWriter
from pipeline.storage.bundle_folders import piece_file
from pipeline.storage.commit import Provenance, publish, read_verified
from pipeline.storage.embeddings import EmbeddedPart, Embeddings
from pipeline.storage.features import is_unfinished
from pipeline.storage.fingerprint import fingerprint
from pipeline.storage.reading import map_file
from pipeline.storage.sharded_ids import ShardedIds

PIECE, TRAINED = "index-piece", "trained-index"
"""Kinds of the files that are kept until the bundle is complete."""


@dataclass(frozen=True)
class PieceTask:
    """The piece of one part, to be written to `path`."""

    path: Path
    part: EmbeddedPart
    fingerprint: str


def make_piece(task: PieceTask, trained: bytes) -> list[int]:
    """Write the piece, unless it is there; returns its number of vectors."""
    provenance = Provenance(task.path.parent, PIECE, 1, {"of": task.fingerprint})
    if not is_unfinished(task.path, provenance):
        data = fill_piece(trained, task.part.blocks(), task.part.first)
        publish(task.path, data, kind=PIECE, rows=task.part.count, provenance=provenance)
    return [task.part.count]


class Pieces(Memory):
    """In pieces, in files of the `folder` until `deliver` gives them to a bundle.

    They are of the vectors of the `ids` of a `modality`, at most `rows` in each, and are made where `scheduler`
    says, by processes of `memory` MiB each.
    """

    any_kind = False

    def __init__(
        self, folder: Path, embeddings: Embeddings, modality: str, ids: ShardedIds, rows: int, memory: int,
        scheduler: str, device: str, counted: bool,
    ) -> None:  # fmt: skip
        self.folder, self.embeddings, self.modality, self.ids = folder, embeddings, modality, ids
        self.rows, self.memory, self.scheduler, self.device = rows, memory * MEBI, scheduler, device
        self.counted, self.counts = counted, []

    @property
    def vectors(self) -> EmbeddedPart:
        """All of them, of which one shard is open at a time."""
        return self.embeddings.parts_of(self.modality, self.ids, len(self.ids))[0]

    def suits(self, factory: str) -> bool:
        """Whether it has lists that pieces can share, and can be trained in the memory of one process."""
        training = 2 * 4 * training_rows(factory) * self.embeddings.dim  # the sample, and what a rotation makes of it
        return goes_on_disk(factory) and training <= self.memory

    def build(self, factory: str, vectors: Vectors, metric: str, progress: Progress) -> Built:
        start = time.perf_counter()
        digest = fingerprint("trained index", 1, {"factory": factory, "ids": _digest(self.ids)}, self.embeddings.inputs)
        path = self.folder / f"{self.modality}.faiss"
        provenance = Provenance(self.folder, TRAINED, 1, {"of": digest})
        if not is_unfinished(path, provenance):
            data = to_bytes(train_factory(factory, vectors, metric))
            publish(path, data, kind=TRAINED, rows=0, provenance=provenance)
        self._trained, made = read_verified(path, TRAINED)
        trained = from_bytes(self._trained, str(path), {"count": 0, "dim": vectors.dim, "metric": metric})
        middle = time.perf_counter()
        rows = piece_rows(trained, self.rows, self.memory)
        inputs = {"trained": digest, "bytes": made.digest}
        tasks = [
            PieceTask(self._path(number), part, fingerprint("piece", 1, {"first": part.first, "rows": rows}, inputs))
            for number, part in enumerate(self.embeddings.parts_of(self.modality, self.ids, rows))
        ]
        shown = lambda items: progress(items, f"adding to {factory}")  # noqa: E731
        self.counts = map_reduce(make_piece, tasks, add, self.scheduler, (self._trained,), shown)
        pieces, card = [map_file(task.path) for task in tasks], {"count": len(self.ids), "pieces": self.piece_cards}
        index = assemble(trained, pieces, card, str(path))
        return Built(index, middle - start, time.perf_counter() - middle)

    def to_bytes(self, index: faiss.Index) -> memoryview:
        trained = read_trained(self._trained)
        stages_of(trained).inverted.nprobe = stages_of(index).inverted.nprobe
        return to_bytes(trained)

    @property
    def beside(self) -> int:
        return sum(self._path(number).stat().st_size for number in range(len(self.counts)))

    def nearest(
        self, queries: np.ndarray, vectors: Vectors, k: int, metric: str, progress: Progress, gpu: Any
    ) -> Neighbours:
        """The same, where the scheduler says."""
        parts = self.embeddings.parts_of(self.modality, self.ids, self.rows)
        return search_parts(queries, parts, k, metric, self.scheduler, self.device)

    @property
    def piece_cards(self) -> list[dict[str, int]]:
        """What the card says of the pieces."""
        return [{"rows": count, "count": count} for count in self.counts]

    def deliver(self, writer: BundleWriter, name: str) -> dict[str, Any]:
        for number in range(len(self.counts)):
            file = piece_file(name, number, ".faiss")
            place = writer.place_for(file)
            try:
                os.link(self._path(number), place)
            except OSError:  # a file system without links
                shutil.copyfile(self._path(number), place)
            writer.adopt(file)
        return {"pieces": self.piece_cards}

    def _path(self, number: int) -> Path:
        return self.folder / piece_file(self.modality, number, ".faiss")


def remove_pieces(folder: Path) -> None:
    """Remove the files that building an index in pieces has left."""
    remove_own(folder, re.compile(r"(images|sentences)(-\d{5,})?\.faiss(\.json)?"))


def _digest(ids: ShardedIds) -> str:
    digest = hashlib.sha256()
    for _, own in ids:
        digest.update(np.ascontiguousarray(own, np.int64))
    return digest.hexdigest()
