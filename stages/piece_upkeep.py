"""Adding to a bundle in pieces, and removing from it, in time and memory that grow with the pieces that change."""

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.arrow_tables import append_rows, with_columns
from pipeline.config.schema.results import IndexSettings
from pipeline.errors import InputError, UsageError
from pipeline.index.format import from_bytes
from pipeline.index.joining import AddedItems
from pipeline.index.pieces import fill_piece, piece_rows, shrink_piece
from pipeline.index.requirements import MEBI
from pipeline.index.vectors import BLOCK_ROWS, Vectors
from pipeline.run import Run
from pipeline.storage.bundle import Bundle
from pipeline.storage.bundle_regions import keep_regions
from pipeline.storage.cards import NUMBER
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.pairs import split_ids
from pipeline.storage.piece_revision import PieceRevision
from pipeline.storage.sources import ROOT

GROWS = 8
"""A last piece of at most so many times the rows that are added takes them, so that pieces do not become many."""
log = logging.getLogger(__name__)


def remove(folder: Path, output: Path, named: np.ndarray) -> None:
    """Write the bundle `folder` to `output` without the images `named` (k,) and their sentences.

    Raises InputError for one that it does not have, and UsageError where nothing would be left.
    """
    revision = PieceRevision(folder, output)
    gone = {modality: revision.alive(modality, named) for modality in revision.modalities}
    for modality, rows in gone.items():
        if modality == "images" and len(rows) < len(named):
            there = {one["image_id"] for one in revision.packed_table(modality).records(rows)}
            raise InputError(f"image {min(set(named.tolist()) - there)} is not in {folder}; name one that is")
        if len(rows) == revision.bundle.card[modality]["count"]:
            raise UsageError(f"no {modality} would be left in {folder}; delete the bundle instead")
    for modality, rows in gone.items():
        pieces = list(revision.by_piece(modality, rows))
        for number, own in pieces:
            start = sum(piece["rows"] for piece in revision.pieces[modality][:number])
            data = shrink_piece(revision.index(modality, number), own + start)
            revision.forget(modality, number, own, data)
        log.info("%d %s removed from %d of %d pieces", len(rows), modality, len(pieces), len(revision.pieces[modality]))
    keep_regions(revision.writer, revision.bundle, gone["images"])
    revision.commit()


def add(folder: Path, output: Path, run: Run, embeddings: Embeddings) -> None:
    """Write the bundle `folder` to `output` with what its run has beyond it. Raises as PieceRevision does, and
    UsageError for images with other columns than those of the bundle."""
    revision, settings = PieceRevision(folder, output), run.config.index
    shards = revision.changed_shards(embeddings)
    wanted = split_ids(embeddings.manifest, settings.splits, shards)
    for modality in revision.modalities:
        fresh = _fresh(revision, modality, wanted[modality][:])
        for vectors in embeddings.parts_of(modality, fresh, max(1, len(fresh))):
            table = _table(revision, modality, embeddings.manifest.rows(modality, fresh))
            _append(revision, modality, table, vectors, settings)
        log.info("%d %s added; %d pieces", len(fresh), modality, len(revision.pieces[modality]))
    revision.commit()


def join(folder: Path, output: Path, other: Path, settings: IndexSettings) -> None:
    """Write the bundle `folder` to `output` with what the bundle `other` has beyond it. Raises as AddedItems and
    PieceRevision do, and UsageError for a column of another type than that of the bundle."""
    revision = PieceRevision(folder, output)
    ends = {modality: revision.end(modality) for modality in NUMBER}
    added = AddedItems(revision.bundle, Bundle(other), ROOT, partial(revision.find, "images", "sha256"), ends)
    for modality in revision.modalities:
        table = _table(revision, modality, added.tables[modality], joined=True)
        if table.num_rows:
            _append(revision, modality, table, added.items.rows_of(modality, added.ids[modality]), settings)
        log.info("%d %s added; %d pieces", table.num_rows, modality, len(revision.pieces[modality]))
    revision.inputs = added.inputs
    revision.commit(more_roots=added.roots)


def _append(revision: PieceRevision, modality: str, table: pa.Table, vectors: Vectors, settings: IndexSettings) -> None:
    """Add the items of `table`, at least one, which have these `vectors`: to the last piece, or in new ones."""
    trained, count = bytes(revision.bundle.index(modality)), table.num_rows
    empty = {**revision.bundle.card[modality], "count": 0}
    most = piece_rows(from_bytes(trained, modality, empty), settings.piece, settings.worker_memory * MEBI)
    last = revision.pieces[modality][-1]["rows"]
    if last <= GROWS * count and last + count <= most:
        number, first = len(revision.pieces[modality]) - 1, revision.rows(modality)
        data = fill_piece(trained, vectors.blocks(), first, revision.index(modality, number))
        revision.put(modality, number, data, append_rows(revision.table(modality, number), table))
    else:
        for start in range(0, count, most):
            number, own = len(revision.pieces[modality]), table.slice(start, most)
            data = fill_piece(trained, _blocks(vectors, start, start + own.num_rows), revision.rows(modality))
            revision.put(modality, number, data, own)


def _blocks(vectors: Vectors, first: int, last: int) -> Iterator[np.ndarray]:
    """The vectors of some rows."""
    return (vectors.take(np.arange(at, min(at + BLOCK_ROWS, last))) for at in range(first, last, BLOCK_ROWS))


def _fresh(revision: PieceRevision, modality: str, wanted: np.ndarray) -> np.ndarray:
    """(k,) the ids among `wanted` (n,) that the bundle has not, or not any more."""
    table = revision.packed_table(modality)
    there = table.records(table.find(NUMBER[modality], wanted))
    return np.setdiff1d(wanted, [record[NUMBER[modality]] for record in there])


def _table(revision: PieceRevision, modality: str, fresh: pa.Table, joined: bool = False) -> pa.Table:
    """New rows with the columns of the bundle's, of their types; of `joined` ones, further columns may follow, and some
    of the bundle's be missing."""
    schema = revision.packed_table(modality).schema
    more = [field for field in fresh.schema if field.name not in schema.names]
    if joined or not more and len(fresh.schema) == len(schema):
        try:
            return with_columns(fresh, pa.schema([*schema, *more]))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pass
    raise UsageError(f"new {modality} have other columns than those of {revision.bundle.folder}; run build-index again")
