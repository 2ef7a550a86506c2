"""A bundle made from another by adding or removing images and sentences; the first stays as it is."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.arrow_tables import append_rows
from pipeline.errors import IntegrityError, UsageError
from pipeline.multivectors import Items, MultiVectors
from pipeline.storage.bundle import Bundle, BundleWriter
from pipeline.storage.bundle_regions import keep_regions
from pipeline.storage.cards import NUMBER
from pipeline.storage.embeddings import EmbeddedRows, Embeddings
from pipeline.storage.fingerprint import fingerprint, require_same

KEY_COLUMNS = {"images": ("path", "sha256"), "sentences": ("text",)}  # the columns that identify a row in a manifest


@dataclass(frozen=True)
class Modality:
    """One modality of a bundle: its index's name and card, and its table, of which the rows `alive` are not removed.
    `outline` says which vectors belong to which row of a multi-vector model; None for other models."""

    modality: str
    name: str
    card: dict[str, Any]
    table: pa.Table
    outline: MultiVectors | None

    @property
    def ids(self) -> np.ndarray:
        """(n,) each row's id in the manifest."""
        return self.table[NUMBER[self.modality]].to_numpy()

    @property
    def owners(self) -> np.ndarray:
        return self.table["image_id"].to_numpy()

    @property
    def alive(self) -> np.ndarray:
        return np.flatnonzero(~is_removed(self.table))

    @property
    def numbers(self) -> np.ndarray:
        """The ids of the vectors in the index: their rows, or, for a multi-vector model, numbers without gaps."""
        return self.alive if self.outline is None else np.arange(self.outline.offsets[-1])

    def followed_by(self, table: pa.Table, outline: MultiVectors | None) -> "Modality":
        more = None if outline is None else MultiVectors.concatenate([self.outline, outline])
        return replace(self, table=append_rows(self.table, table), outline=more)

    def without(self, rows: np.ndarray) -> "Modality":
        """This modality with only ids left in `rows` (k,)."""
        less = None if self.outline is None else self.outline.without(rows)
        return replace(self, table=forget(self.table, rows), outline=less)


class Revision:
    """The bundle `folder`, to be written to `output` with other indices and tables.

    `embeddings` are a run's, or a pipeline.index.joining.BundleItems. Raises as `open_parts` does, and UsageError if
    `output` is one of the bundles that are read.
    """

    def __init__(self, folder: Path, embeddings: "Embeddings | Any", output: Path) -> None:
        self.bundle, self.parts = open_parts(folder, embeddings)
        if output.resolve() in (self.bundle.folder.resolve(), embeddings.folder.resolve()):
            raise UsageError(f"{output} is a bundle to start from; give --output another folder")
        if any(name.endswith(".lists") for name in self.bundle.card["files"]):
            raise UsageError(f"{folder} has its inverted lists on disk, which cannot change; run build-index again")
        if any(map(self.bundle.pieces, NUMBER)):
            raise UsageError(f"{folder} is in pieces; give one that is whole")
        self.embeddings, self.writer = embeddings, BundleWriter(output)
        self.cards: dict[str, dict[str, Any]] = {}
        self.outlines: dict[str, MultiVectors] = {}

    def vectors(self, part: Modality) -> EmbeddedRows:
        return self.embeddings.rows_of(part.modality, part.ids[part.alive])

    def queries(self, part: Modality, most: int) -> Items:
        """At most `most` items of the other modality, evenly spaced over its rows; where there is none, of its own."""
        other = next((one for one in self.parts if one.modality != part.modality), part)
        chosen = np.linspace(0, len(other.alive) - 1, min(most, len(other.alive))).astype(np.int64)
        return self.embeddings.read(other.modality, other.ids[other.alive[chosen]])

    def put(self, part: Modality, data: memoryview, card: dict[str, Any]) -> None:
        """Write an index and the table of `part`; `card` overrides keys of its card."""
        self.writer.add(f"{part.name}.faiss", data)
        self.writer.add_table(f"{part.modality}.parquet", part.table)
        if part.modality == "images":
            keep_regions(self.writer, self.bundle, np.flatnonzero(is_removed(part.table)))
        self.cards[part.name] = {**part.card, "count": len(part.numbers), "bytes": len(data), **card}
        if part.outline is not None:
            self.outlines[part.modality] = part.outline

    def commit(self, **more: Any) -> None:
        """Copy all other files, and write the card, with `more` on it."""
        if self.outlines:
            self.writer.add_outlines(self.outlines)
        self.writer.copy(self.bundle, but=set(self.writer.files))
        inputs = {**self.bundle.card["inputs"], **self.embeddings.inputs, "bundle": self.bundle.card["fingerprint"]}
        tables = {name: self.writer.files[f"{name}.parquet"]["sha256"] for name in NUMBER}
        digest = fingerprint("revision", 1, tables, inputs)
        card = {name: value for name, value in self.bundle.card.items() if name != "files"}
        self.writer.commit({**card, **more, **self.cards, "inputs": inputs, "fingerprint": digest})


def open_parts(folder: Path, embeddings: "Embeddings | Any") -> tuple[Bundle, list[Modality]]:
    """The bundle `folder`, and its images and sentences.

    Raises IntegrityError unless `embeddings` are of its model, and their manifest has the same ids for its rows.
    """
    bundle, parts = Bundle(folder), []
    require_same("model", {str(folder): bundle.card["inputs"]["model"], str(embeddings.folder): embeddings.model})
    for modality, key in KEY_COLUMNS.items():
        name, given = bundle.index_name(modality), getattr(embeddings.manifest, modality)
        if not bundle.card.get(name):  # photographs without sentences
            continue
        part = Modality(modality, name, bundle.card[name], bundle.table(modality), bundle.outline(modality))
        parts.append(part)
        rows, ids = part.alive, part.ids[part.alive]
        if ids.max(initial=-1) >= given.num_rows or given.select(key).take(ids) != part.table.select(key).take(rows):
            remedy = "give the manifest that the bundle was made from, or one that has grown out of it"
            if "joined" in bundle.card["inputs"]:
                remedy = "no run numbers what was joined: remove without --run, and add with --from"
            raise IntegrityError(
                f"{embeddings.manifest.folder} numbers its {modality} otherwise than {folder}; {remedy}"
            )
    return bundle, parts


def is_removed(table: pa.Table) -> np.ndarray:
    """(n,) which rows of a bundle's table were removed."""
    key = "sha256" if "sha256" in table.column_names else "text"
    return table[key].is_null().to_numpy()


def forget(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """`table` with only ids left in `rows` (k,)."""
    gone = np.zeros(table.num_rows, bool)
    gone[rows] = True
    kept = pa.array(np.arange(table.num_rows), mask=gone)
    columns = {name: table[name] if name in NUMBER.values() else table[name].take(kept) for name in table.column_names}
    return pa.table(columns)
