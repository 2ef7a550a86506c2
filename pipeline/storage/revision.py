"""A bundle made from another one by adding or removing images and sentences; both stay whole."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.errors import IntegrityError, UsageError
from pipeline.multivectors import Items, MultiVectors
from pipeline.storage.bundle import Bundle, BundleWriter
from pipeline.storage.embeddings import EmbeddedRows, Embeddings
from pipeline.storage.fingerprint import fingerprint, require_same

NUMBER = {"images": "image_id", "sentences": "sentence_id"}
TELLING = {"images": ("path", "sha256"), "sentences": ("text",)}
"""The columns by which a row is recognised in a manifest."""


@dataclass(frozen=True)
class Modality:
    """One modality of a bundle: the name of its index and its card, its table, and which rows of it are `alive`, not
    removed. `outline` says which vectors are of which row of a multi-vector model; others have one each."""

    modality: str
    name: str
    card: dict[str, Any]
    table: pa.Table
    outline: MultiVectors | None

    @property
    def ids(self) -> np.ndarray:
        """(n,) the manifest's number of each row."""
        return self.table[NUMBER[self.modality]].to_numpy()

    @property
    def owners(self) -> np.ndarray:
        """(n,) the image of each row."""
        return self.table["image_id"].to_numpy()

    @property
    def alive(self) -> np.ndarray:
        return np.flatnonzero(~is_removed(self.table))

    @property
    def numbers(self) -> np.ndarray:
        """What the index calls its vectors: the row of each, or, where rows have several, numbers without gaps."""
        return self.alive if self.outline is None else np.arange(self.outline.offsets[-1])

    def followed_by(self, table: pa.Table, outline: MultiVectors | None) -> "Modality":
        """This with more rows."""
        more = None if outline is None else MultiVectors.concatenate([self.outline, outline])
        return replace(self, table=pa.concat_tables([self.table, table]), outline=more)

    def without(self, rows: np.ndarray) -> "Modality":
        """This with nothing but numbers left in `rows` (k,)."""
        less = None if self.outline is None else self.outline.without(rows)
        return replace(self, table=forget(self.table, rows), outline=less)


class Revision:
    """The bundle `folder`, to be written to `output` with other indices and tables.

    Raises as `open_parts` does, and UsageError where the two folders are one.
    """

    def __init__(self, folder: Path, embeddings: Embeddings, output: Path) -> None:
        if folder.resolve() == output.resolve():
            raise UsageError(f"{output} is the bundle to start from; give --output another folder")
        self.bundle, self.parts = open_parts(folder, embeddings)
        if any(name.endswith(".lists") for name in self.bundle.card["files"]):
            raise UsageError(f"{folder} has its inverted lists on disk, which are not changed; run build-index again")
        self.embeddings, self.writer = embeddings, BundleWriter(output)
        self.cards: dict[str, dict[str, Any]] = {}
        self.outlines: dict[str, MultiVectors] = {}

    def vectors(self, part: Modality) -> EmbeddedRows:
        """All vectors that the index of `part` holds."""
        return self.embeddings.rows_of(part.modality, part.ids[part.alive])

    def queries(self, part: Modality, most: int) -> Items:
        """At most `most` items of the other modality, at even distances through its rows."""
        other = next(one for one in self.parts if one.modality != part.modality)
        chosen = np.linspace(0, len(other.alive) - 1, min(most, len(other.alive))).astype(np.int64)
        return self.embeddings.read(other.modality, other.ids[other.alive[chosen]])

    def put(self, part: Modality, data: memoryview, card: dict[str, Any]) -> None:
        """Write an index and the table of `part`; `card` holds what is no longer as in its card."""
        self.writer.add(f"{part.name}.faiss", data)
        self.writer.add_table(f"{part.modality}.parquet", part.table)
        self.cards[part.name] = {**part.card, "count": len(part.numbers), "bytes": len(data), **card}
        if part.outline is not None:
            self.outlines[part.modality] = part.outline

    def commit(self) -> None:
        """Copy all else, and write the card."""
        if self.outlines:
            self.writer.add_outlines(self.outlines)
        self.writer.copy(self.bundle, but=set(self.writer.files))
        inputs = {**self.bundle.card["inputs"], **self.embeddings.inputs, "bundle": self.bundle.card["fingerprint"]}
        told = {name: self.writer.files[f"{name}.parquet"]["sha256"] for name in NUMBER}
        card = {name: value for name, value in self.bundle.card.items() if name != "files"}
        self.writer.commit(
            {**card, **self.cards, "inputs": inputs, "fingerprint": fingerprint("revision", 1, told, inputs)}
        )


def open_parts(folder: Path, embeddings: Embeddings) -> tuple[Bundle, list[Modality]]:
    """The bundle `folder` and its images and sentences.

    Raises IntegrityError unless `embeddings` are of its model, and their manifest numbers what it holds as it does.
    """
    bundle = Bundle(folder)
    require_same("model", {str(folder): bundle.card["inputs"]["model"], str(embeddings.folder): embeddings.model})
    names = {modality: bundle.index_name(modality) for modality in NUMBER}
    parts = [
        Modality(modality, name, bundle.card[name], bundle.table(modality), bundle.outline(modality))
        for modality, name in names.items()
    ]
    for part in parts:
        given, told = getattr(embeddings.manifest, part.modality), TELLING[part.modality]
        rows, ids = part.alive, part.ids[part.alive]
        if ids.max(initial=-1) >= given.num_rows or given.select(told).take(ids) != part.table.select(told).take(rows):
            raise IntegrityError(
                f"{embeddings.manifest.folder} numbers its {part.modality} otherwise than {folder}; give the manifest"
                " that the bundle was made from, or one that has grown out of it"
            )
    return bundle, parts


def is_removed(table: pa.Table) -> np.ndarray:
    """(n,) which rows of a bundle's table are of what was removed."""
    told = "sha256" if "sha256" in table.column_names else "text"
    return table[told].is_null().to_numpy()


def forget(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """`table` with nothing but numbers left in `rows` (k,)."""
    gone = np.zeros(table.num_rows, bool)
    gone[rows] = True
    told = pa.array(np.arange(table.num_rows), mask=gone)
    columns = {name: table[name] if name in NUMBER.values() else table[name].take(told) for name in table.column_names}
    return pa.table(columns)
