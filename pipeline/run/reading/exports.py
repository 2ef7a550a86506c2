"""The vectors of an index and what they are of, in files that other programs open as they are."""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import UsageError, brief
from pipeline.index.filtering import is_exact
from pipeline.index.gallery import open_faiss, open_gallery
from pipeline.storage.batch import new_folder
from pipeline.storage.card import Modality
from pipeline.storage.index_changes import is_removed
from pipeline.storage.index_shard import MODALITIES
from pipeline.storage.stored_index import StoredIndex, open_index
from pipeline.storage.tables import vectors_column

log = logging.getLogger(__name__)
VECTOR, OWN = "vector", "own_"
BATCH = 1000
"""Rows of a table that are written as JSON at once."""


def export(index: Path, kind: str, output: Path) -> dict[str, int]:
    """Write the index as `npy` or `parquet` into the new folder `output`, which is there when it is whole; returns how
    many images and sentences it has. export.json says of which model they are.

    Raises UsageError where `output` exists, and JointspaceError if it cannot be written.
    """
    stored, counts = open_index(index), {}
    card = stored.card
    if card.kind == "fragments":
        raise UsageError(
            f"{card.model} has several vectors per image, which these programs cannot compare; export another model"
        )
    about = {
        "model": card.model,
        "metric": card.metric,
        "dim": card.dim,
        "data_root": card.data_root,
        "fingerprint": card.fingerprint,
        "data_roots": [shard.card.data_root for shard in stored.shards],
    }
    with new_folder(output) as folder:
        for modality in MODALITIES:
            if card.index_of(modality):
                vectors, table = _read(stored, modality)
                WRITERS[kind](folder / modality, vectors, table)
                counts[modality] = len(vectors)
        (folder / "export.json").write_text(json.dumps({**about, "kind": kind, "counts": counts}, indent=1) + "\n")
    return counts


def _read(index: StoredIndex, modality: Modality) -> tuple[np.ndarray, pa.Table]:
    """Return the vectors (n, c) float32 of a modality, and their rows, without what was removed."""
    table = index.table(modality)
    rows = np.flatnonzero(~is_removed(table))
    for shard in index.shards:
        card = shard.card.index_of(modality)
        if card and not is_exact(open_faiss(shard, modality)):
            log.warning(
                "%s has rounded its %s (%s), so the exported vectors are rounded too",
                shard.folder, modality, card.factory,
            )  # fmt: skip
    try:
        return open_gallery(index, modality).reconstruct(rows), table.take(rows)
    except RuntimeError as error:
        raise UsageError(
            f"{index.folder} cannot give the vectors of its {modality} back ({brief(error)}); build the index again"
            " with another of index.candidates, such as Flat, and export that"
        ) from error


def _write_npy(path: Path, vectors: np.ndarray, table: pa.Table) -> None:
    """`images.npy`, and `images.jsonl` with a line for each row, where dates are texts."""
    for at, field in enumerate(table.schema):
        if pa.types.is_temporal(field.type):
            table = table.set_column(at, field.name, table[at].cast(pa.string()))
    with open(path.with_suffix(".npy"), "wb") as file:  # np.save can report success on a full disk
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(vectors))
        file.write(np.ascontiguousarray(vectors).data)
    with open(path.with_suffix(".jsonl"), "w", encoding="utf-8") as file:
        for batch in table.to_batches(max_chunksize=BATCH):
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in batch.to_pylist())


def _write_parquet(path: Path, vectors: np.ndarray, table: pa.Table) -> None:
    """`images.parquet`: the table, and its column `vector`; one of the user's own that is called so has OWN before its
    name."""
    taken = VECTOR
    while taken in table.column_names:
        taken = OWN + taken
    table = table.rename_columns([taken if name == VECTOR else name for name in table.column_names])
    table = table.append_column(VECTOR, vectors_column(vectors))
    pq.write_table(table, path.with_suffix(".parquet"), compression="zstd")


WRITERS: Mapping[str, Callable[[Path, np.ndarray, pa.Table], None]] = {"npy": _write_npy, "parquet": _write_parquet}
"""What an index is exported to -> what writes a modality's vectors and rows, to the path without its suffix."""
