"""Exporting the vectors of an index, and the rows of its tables, to files that other programs can open."""

import json
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import UsageError, brief
from pipeline.foreign.image_names import listed_name
from pipeline.index.codes import build_codes
from pipeline.index.filtering import is_exact
from pipeline.index.format import write_index
from pipeline.index.gallery import open_faiss, open_gallery
from pipeline.storage.batch import new_folder
from pipeline.storage.card import Modality
from pipeline.storage.index_changes import is_removed
from pipeline.storage.index_shard import MODALITIES
from pipeline.storage.stored_index import StoredIndex, open_index
from pipeline.storage.tables import vectors_column

log = logging.getLogger(__name__)
VECTOR_COLUMN = "vector"
"""Name of the column of vectors in an exported Parquet file."""
OWN_PREFIX = "own_"
"""Prefix with which a column of the user is renamed if its name is VECTOR_COLUMN. The prefix is repeated until the new
name is free."""
JSON_BATCH_ROWS = 1000
"""Number of rows of a table that are converted to JSON at once."""


def export(index: Path, kind: str, output: Path, code: str, dims: int | None) -> dict[str, int]:
    """Export the vectors and the rows of an index to the new folder `output`.

    Returns the number of written rows under `images`. If the index has vectors of captions, the result also has the
    number of their rows under `sentences`.

    `kind` is `npy`, `parquet` or `faiss`. With `faiss`, the vectors are stored as codes of the type `code`, on `dims`
    axes, or on the usual number of axes if `dims` is None (see pipeline.index.codes). The folder appears under its name
    only when all files in it are complete. The file export.json in the folder describes the model of the vectors.
    Raises UsageError if `output` exists, if the vectors cannot be exported, or if they have fewer than `dims`
    dimensions. Raises JointspaceError if the files cannot be written.
    """
    stored = open_index(index)
    counts = {}
    card = stored.card
    if dims and dims > card.dim:
        raise UsageError(
            f"--dims is {dims}, but the vectors have {card.dim} dimensions. Give a number from 1 to {card.dim}."
        )
    about = {
        "model": card.model,
        "metric": card.metric,
        "dim": card.dim,
        "data_root": card.data_root,
        "fingerprint": card.fingerprint,
        "data_roots": [shard.card.data_root for shard in stored.shards],
    }
    corrected = "hubness" in stored.first.model().settings
    build = partial(build_codes, metric=card.metric, code=code, dims=dims, corrected=corrected)
    writers = {**WRITERS, "faiss": partial(_write_faiss, build=build)}
    about |= {"type": code} if kind == "faiss" else {}
    with new_folder(output) as folder:
        for modality in MODALITIES:
            if card.index_of(modality):
                vectors, table = read_vectors(stored, modality)
                writers[kind](folder / modality, vectors, table)
                if kind == "npy":
                    _write_names(folder / f"{modality}.txt", stored.table("images"), table)
                counts[modality] = len(vectors)
        (folder / "export.json").write_text(json.dumps({**about, "kind": kind, "counts": counts}, indent=1) + "\n")
    return counts


def read_vectors(index: StoredIndex, modality: Modality) -> tuple[np.ndarray, pa.Table]:
    """Return the vectors (n, c) float32 of a modality and the table of their rows, without removed rows.

    If a shard stores the vectors compressed, the returned vectors are approximate, and a warning is logged.
    Raises UsageError if the model has several vectors per image, or if the index cannot return its vectors.
    """
    if index.card.kind == "fragments":
        raise UsageError(
            f"The model {index.card.model} has several vectors per image, which other programs cannot compare. Use the"
            " index of another model."
        )
    table = index.table(modality)
    rows = np.flatnonzero(~is_removed(table))
    for shard in index.shards:
        card = shard.card.index_of(modality)
        if card and not is_exact(open_faiss(shard, modality)):
            log.warning(
                "%s stores the vectors of its %s in compressed form (%s), so the exported vectors are approximate. For"
                " exact vectors, set index.candidates to [Flat] and build the index again.",
                shard.folder, modality, card.factory,
            )  # fmt: skip
    try:
        return open_gallery(index, modality).reconstruct(rows), table.take(rows)
    except RuntimeError as error:
        raise UsageError(
            f"The vectors of the {modality} cannot be read back from {index.folder} ({brief(error)}). Set"
            " index.candidates to another type of index, such as [Flat], and build the index again."
        ) from error


def _write_faiss(path: Path, vectors: np.ndarray, table: pa.Table, build: Callable[[np.ndarray], faiss.Index]) -> None:
    """Write the index that `build` makes of vectors (n, c) to `path`.faiss, and the rows of `table` to `path`.jsonl."""
    with open(path.with_suffix(".faiss"), "wb") as file:
        write_index(build(vectors), file.write)
    _write_rows(path, table)


def _write_npy(path: Path, vectors: np.ndarray, table: pa.Table) -> None:
    """Write vectors (n, c) to the file `path`.npy, and the n rows of `table` to `path`.jsonl."""
    # The file is written by Python, because np.save can report success on a full disk.
    with open(path.with_suffix(".npy"), "wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(vectors))
        file.write(np.ascontiguousarray(vectors).data)
    _write_rows(path, table)


def _write_names(path: Path, images: pa.Table, table: pa.Table) -> None:
    """Write a line for each row of `table` to the file `path`, in the form in which `open_foreign` reads names.

    `images` is the table of all images. `table` is the same table, or the table of captions. A line is the name of the
    photo. If the row is a caption, the name is followed by a tab and the text. Line breaks in a name or text become
    spaces. A photo inside another file has a name such as `a.tar/b.jpg`.
    """
    rows = images.select(["image_id", "path", "member"]).to_pylist()
    names = {image["image_id"]: listed_name(image) for image in rows}
    lines = [names[image_id] for image_id in table["image_id"].to_pylist()]
    if "text" in table.column_names:
        lines = [f"{name}\t{text}" for name, text in zip(lines, table["text"].to_pylist(), strict=True)]
    path.write_text("".join(" ".join(line.splitlines()) + "\n" for line in lines), "utf-8")


def _write_rows(path: Path, table: pa.Table) -> None:
    """Write the rows of `table` to the file `path`.jsonl, with dates as text."""
    for at, field in enumerate(table.schema):
        if pa.types.is_temporal(field.type):
            table = table.set_column(at, field.name, table[at].cast(pa.string()))
    with open(path.with_suffix(".jsonl"), "w", encoding="utf-8") as file:
        for batch in table.to_batches(max_chunksize=JSON_BATCH_ROWS):
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in batch.to_pylist())


def _write_parquet(path: Path, vectors: np.ndarray, table: pa.Table) -> None:
    """Write the table with an additional column VECTOR_COLUMN of the vectors (n, c) to `path`.parquet.

    If a column of the user has this name already, the prefix OWN_PREFIX is added to its name.
    """
    new_name = VECTOR_COLUMN
    while new_name in table.column_names:
        new_name = OWN_PREFIX + new_name
    table = table.rename_columns([new_name if name == VECTOR_COLUMN else name for name in table.column_names])
    table = table.append_column(VECTOR_COLUMN, vectors_column(vectors))
    pq.write_table(table, path.with_suffix(".parquet"), compression="zstd")


WRITERS: Mapping[str, Callable[[Path, np.ndarray, pa.Table], None]] = {"npy": _write_npy, "parquet": _write_parquet}
"""Kind of export -> the function that writes it. The function gets the path without a suffix, the vectors (n, c) and
the table of their rows. `export` adds the kind `faiss`."""
