"""The vectors of a bundle and what they are of, in files that other programs open as they are."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.storage.batch import new_folder

VECTOR, OWN = "vector", "own_"
BATCH = 1000
"""Rows of a table that are written as JSON at once."""


@dataclass(frozen=True)
class ExportedSide:
    """The `images` or `sentences` of a bundle: `vectors` (n, c) float32, of which row i is described by row i of
    `table`."""

    vectors: np.ndarray
    table: pa.Table

    @property
    def with_vectors(self) -> pa.Table:
        flat = pa.array(self.vectors.reshape(-1), pa.float32())
        return _with_column(self.table, VECTOR, pa.FixedSizeListArray.from_arrays(flat, self.vectors.shape[1]))

    @property
    def plain(self) -> pa.Table:
        """The table with dates as text, for JSON."""
        table = self.table
        for at, field in enumerate(table.schema):
            if pa.types.is_temporal(field.type):
                table = table.set_column(at, field.name, table[at].cast(pa.string()))
        return table


Sides = Mapping[str, ExportedSide]


def export(kind: str, output: Path, sides: Sides, card: Mapping[str, Any]) -> None:
    """Write `sides` (modality -> ExportedSide) as the `kind`, one of EXPORTS, into the new folder `output`, which is
    there when it is whole; export.json in it has the bundle's `card`: model, metric, dim, data_root, data_roots.

    Raises UsageError where `output` exists, and JointspaceError if it cannot be written.
    """
    with new_folder(output) as folder:
        EXPORTS[kind](folder, sides)
        counts = {modality: len(side.vectors) for modality, side in sides.items()}
        (folder / "export.json").write_text(json.dumps({**card, "kind": kind, "counts": counts}, indent=1) + "\n")


def _write_array(path: Path, array: np.ndarray) -> None:
    """As `np.save`, which can report success on a full disk."""
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(np.ascontiguousarray(array).data)


def _write_npy(folder: Path, sides: Sides) -> None:
    """`images.npy`, and `images.jsonl` with a line for each row."""
    for modality, side in sides.items():
        _write_array(folder / f"{modality}.npy", side.vectors)
        with open(folder / f"{modality}.jsonl", "w", encoding="utf-8") as file:
            for batch in side.plain.to_batches(max_chunksize=BATCH):
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in batch.to_pylist())


def _write_parquet(folder: Path, sides: Sides) -> None:
    """`images.parquet`: the table, and its column `vector`."""
    for modality, side in sides.items():
        pq.write_table(side.with_vectors, folder / f"{modality}.parquet", compression="zstd")


def _with_column(table: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    """`table` with this column; one of the user's own that is called so has OWN before its name."""
    taken, names = name, table.column_names
    while taken in names:
        taken = OWN + taken
    return table.rename_columns([taken if one == name else one for one in names]).append_column(name, column)


EXPORTS: Mapping[str, Callable[[Path, Sides], None]] = {
    "npy": _write_npy,
    "parquet": _write_parquet,
}
"""What a bundle is exported to -> what writes it into an empty folder."""
