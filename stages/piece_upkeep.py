"""Adding to a bundle in pieces, and removing from it, in time and memory that grow with the pieces that change."""

import logging
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.arrow_tables import append_rows
from pipeline.errors import InputError, UsageError
from pipeline.index.format import from_bytes
from pipeline.index.pieces import fill_piece, piece_rows, shrink_piece
from pipeline.index.requirements import MEBI
from pipeline.run import Run
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.pairs import split_ids
from pipeline.storage.piece_revision import PieceRevision
from pipeline.storage.revision import NUMBER

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
            there = {one["image_id"] for one in revision.bundle.packed_table(modality).records(rows)}
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
    revision.commit()


def add(folder: Path, output: Path, run: Run, embeddings: Embeddings) -> None:
    """Write the bundle `folder` to `output` with what its run has beyond it. Raises as PieceRevision does, and
    UsageError for images with other columns than those of the bundle."""
    revision, settings = PieceRevision(folder, output), run.config.index
    shards = revision.changed_shards(embeddings)
    wanted = split_ids(embeddings.manifest, settings.splits)
    for modality in revision.modalities:
        fresh = _fresh(revision, modality, shards, embeddings, wanted[modality])
        table = _table(revision, modality, getattr(embeddings.manifest, modality).take(fresh))
        trained = bytes(revision.bundle.index(modality))
        empty = {**revision.bundle.card[modality], "count": 0}
        most = piece_rows(from_bytes(trained, modality, empty), settings.piece, settings.worker_memory * MEBI)
        last = revision.pieces[modality][-1]["rows"]
        if len(fresh) and last <= GROWS * len(fresh) and last + len(fresh) <= most:
            number, first = len(revision.pieces[modality]) - 1, revision.rows(modality)
            blocks = embeddings.rows_of(modality, fresh).blocks()
            data = fill_piece(trained, blocks, first, revision.index(modality, number))
            revision.put(modality, number, data, append_rows(revision.table(modality, number), table))
        else:
            for part in embeddings.parts_of(modality, fresh, most):
                number, first = len(revision.pieces[modality]), revision.rows(modality)
                data = fill_piece(trained, part.blocks(), first)
                revision.put(modality, number, data, table.slice(part.first, part.count))
        log.info("%d %s added; %d pieces", len(fresh), modality, len(revision.pieces[modality]))
    revision.commit()


def _fresh(
    revision: PieceRevision, modality: str, shards: list[int], embeddings: Embeddings, wanted: np.ndarray
) -> np.ndarray:
    """(k,) the ids among `wanted` (n,) of some shards that the bundle has not, or not any more."""
    found = [np.empty(0, np.int64)]
    for rows in (embeddings.rows[number] for number in shards):
        one = modality[:-1]
        first, last = getattr(rows, f"first_{one}"), getattr(rows, f"last_{one}")
        own = wanted[slice(*np.searchsorted(wanted, [first, last]))]
        table = revision.bundle.packed_table(modality)
        there = table.records(table.find(NUMBER[modality], own)) if len(own) else []
        found.append(np.setdiff1d(own, [record[NUMBER[modality]] for record in there]))
    return np.concatenate(found)


def _table(revision: PieceRevision, modality: str, fresh: pa.Table) -> pa.Table:
    """New rows with the columns of the bundle's, of their types."""
    schema = revision.bundle.packed_table(modality).schema
    if {*fresh.column_names} == {*schema.names}:
        try:
            return fresh.select(schema.names).cast(schema)
        except pa.ArrowInvalid:
            pass
    raise UsageError(f"new {modality} have other columns than those of {revision.bundle.folder}; run build-index again")
