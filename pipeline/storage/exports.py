"""The vectors of a bundle and what they are of, in files that other programs open as they are."""

import glob
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import UsageError
from pipeline.storage.batch import TEMPORARY, cannot_write
from pipeline.storage.sources import ROOT

VECTOR, OWN = "vector", "own_"
BATCH = 1000
"""Points that are handed to a database at once."""


@dataclass(frozen=True)
class ExportedSide:
    """The `images` or `sentences` of a bundle: `vectors` (n, c) float32, of which row i is described by row i of
    `table`; `index` makes the bytes of a Flat index of them in FAISS's format."""

    vectors: np.ndarray
    table: pa.Table
    index: Callable[[], memoryview]

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
    there when it is whole; export.json in it has the bundle's `card`: model, metric, dim, data_root, more_roots.

    Raises UsageError where `output` exists, or a package is missing, and JointspaceError if it cannot be written.
    """
    with new_folder(output) as folder:
        EXPORTS[kind](folder, sides, card)
        counts = {modality: len(side.vectors) for modality, side in sides.items()}
        (folder / "export.json").write_text(json.dumps({**card, "kind": kind, "counts": counts}, indent=1) + "\n")


@contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """A folder that becomes `output` if the block succeeds, and is removed otherwise. The caller holds the lock of
    `output`, so what has a temporary name is a killed one's, and is removed.

    Raises UsageError where `output` exists, and JointspaceError if it cannot be written.
    """
    if os.path.lexists(output):
        raise UsageError(f"{output} exists; give --output a new folder")
    for path in output.parent.glob(f".{glob.escape(output.name)}.tmp.*"):
        if TEMPORARY.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
    folder = output.with_name(f".{output.name}.tmp.{os.getpid()}")
    try:
        folder.mkdir(parents=True)
        yield folder
        for path in _files(folder):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        os.rename(folder, output)
    except OSError as error:
        raise cannot_write(output, sum(path.stat().st_size for path in _files(folder)), error, "output") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _write_array(path: Path, array: np.ndarray) -> None:
    """As `np.save`, which can report success on a full disk."""
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(np.ascontiguousarray(array).data)


def _write_npy(folder: Path, sides: Sides, card: Mapping[str, Any]) -> None:
    """`images.npy`, and `images.jsonl` with a line for each row."""
    for modality, side in sides.items():
        _write_array(folder / f"{modality}.npy", side.vectors)
        with open(folder / f"{modality}.jsonl", "w", encoding="utf-8") as file:
            for batch in side.plain.to_batches(max_chunksize=BATCH):
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in batch.to_pylist())


def _write_parquet(folder: Path, sides: Sides, card: Mapping[str, Any]) -> None:
    """`images.parquet`: the table, and its column `vector`."""
    for modality, side in sides.items():
        pq.write_table(side.with_vectors, folder / f"{modality}.parquet", compression="zstd")


def _write_clip_retrieval(folder: Path, sides: Sides, card: Mapping[str, Any]) -> None:
    """A folder for each side as `clip-retrieval inference` and `index` write it, and `indices_paths.json` of both, for
    `clip-retrieval back`, started in this folder. Row i of the metadata is of vector i."""
    for modality, side in sides.items():
        kind = {"images": ("img_emb", "image"), "sentences": ("text_emb", "text")}[modality]
        place, metadata = folder / modality, folder / modality / "metadata"
        for one in (place / kind[0], metadata):
            one.mkdir(parents=True)
        _write_array(place / kind[0] / f"{kind[0]}_0.npy", side.vectors)
        (place / f"{kind[1]}.index").write_bytes(side.index())
        table = side.plain
        if modality == "images":
            table = _with_column(table, "image_path", pa.array(_paths(table, card), pa.string()))
        else:
            table = _with_column(table, "caption", table["text"])
        pq.write_table(table, metadata / "metadata_0.parquet")
    paths = {f"{card['model']}-{modality}": modality for modality in sides}
    (folder / "indices_paths.json").write_text(json.dumps(paths, indent=1) + "\n")


def _paths(images: pa.Table, card: Mapping[str, Any]) -> list[str]:
    """Where each photograph is."""
    roots = [card["data_root"], *card["more_roots"]]
    numbers = images[ROOT].to_pylist() if ROOT in images.column_names else [None] * images.num_rows
    paths = images["path"].to_pylist()
    return [os.path.join(roots[number or 0], path) for number, path in zip(numbers, paths, strict=True)]


def _with_column(table: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    """`table` with this column; one of the user's own that is called so has OWN before its name."""
    taken, names = name, table.column_names
    while taken in names:
        taken = OWN + taken
    return table.rename_columns([taken if one == name else one for one in names]).append_column(name, column)


def _write_lancedb(folder: Path, sides: Sides, card: Mapping[str, Any]) -> None:
    """A database with a table for each side, searched by its column `vector`."""
    try:
        import lancedb
    except ImportError as error:
        raise UsageError("this needs LanceDB: pip install 'jointspace[lancedb]'") from error
    database = lancedb.connect(str(folder))
    for modality, side in sides.items():
        database.create_table(modality, side.with_vectors)


def _write_qdrant(folder: Path, sides: Sides, card: Mapping[str, Any]) -> None:
    """A local database, `QdrantClient(path=...)`, with a collection for each side; what a table says of a row is its
    payload."""
    try:
        from qdrant_client import QdrantClient, models
    except ImportError as error:
        raise UsageError("this needs Qdrant's client: pip install 'jointspace[qdrant]'") from error
    distance = models.Distance.DOT if card["metric"] == "inner_product" else models.Distance.EUCLID
    client = QdrantClient(path=str(folder))
    try:
        for modality, side in sides.items():
            size = side.vectors.shape[1]
            client.create_collection(modality, vectors_config=models.VectorParams(size=size, distance=distance))
            table = side.plain
            for start in range(0, len(side.vectors), BATCH):
                vectors, rows = side.vectors[start : start + BATCH], table.slice(start, BATCH).to_pylist()
                given = enumerate(zip(vectors, rows, strict=True), start)
                points = [models.PointStruct(id=at, vector=one.tolist(), payload=row) for at, (one, row) in given]
                client.upsert(modality, points)
    finally:
        client.close()


EXPORTS: Mapping[str, Callable[[Path, Sides, Mapping[str, Any]], None]] = {
    "npy": _write_npy,
    "parquet": _write_parquet,
    "clip-retrieval": _write_clip_retrieval,
    "lancedb": _write_lancedb,
    "qdrant": _write_qdrant,
}
"""What a bundle is exported to -> what writes it into an empty folder."""
