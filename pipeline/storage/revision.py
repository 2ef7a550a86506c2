"""A bundle made from another by removing images and their sentences; the first stays as it is."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.errors import IntegrityError, UsageError
from pipeline.multivectors import MultiVectors
from pipeline.storage.bundle import Bundle, BundleWriter
from pipeline.storage.bundles import Bundles
from pipeline.storage.card import NUMBER
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.json_files import fingerprint, require_same

KEY_COLUMNS = {"images": ("path", "sha256"), "sentences": ("text",)}
"""The columns that identify a row in a manifest."""


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

    def without(self, rows: np.ndarray) -> "Modality":
        """This modality with only ids left in `rows` (k,)."""
        less = None if self.outline is None else self.outline.without(rows)
        return replace(self, table=forget(self.table, rows), outline=less)


def modalities(bundle: Bundle | Bundles) -> list[Modality]:
    """Those that a bundle has an index of."""
    return [
        Modality(modality, name, bundle.card[name], bundle.table(modality), bundle.outline(modality))
        for modality in KEY_COLUMNS
        if bundle.card.get(name := bundle.index_name(modality))
    ]


def require_numbering(bundle: Bundle | Bundles, parts: list[Modality], embeddings: Embeddings) -> None:
    """Raises IntegrityError unless `embeddings` are of the bundle's model, and their manifest has the same ids for its
    rows."""
    models = {str(bundle.folder): bundle.card["inputs"]["model"], str(embeddings.folder): embeddings.model}
    require_same("model", models)
    for part in parts:
        keys, table = KEY_COLUMNS[part.modality], getattr(embeddings.manifest, part.modality)
        rows, ids = part.alive, part.ids[part.alive]
        known = ids.max(initial=-1) < table.num_rows
        if not known or table.select(keys).take(ids) != part.table.select(keys).take(rows):
            raise IntegrityError(
                f"{embeddings.manifest.folder} numbers its {part.modality} otherwise than {bundle.folder}; give the"
                " manifest that the bundle was made from, or one that has grown out of it"
            )


class Revision:
    """A `bundle`, to be written to the folder `output` with other indices and tables. Raises UsageError where that is
    the bundle itself."""

    def __init__(self, bundle: Bundle, output: Path) -> None:
        if output.resolve() == bundle.folder.resolve():
            raise UsageError(f"{output} is the bundle to start from; give --output another folder")
        self.bundle, self.writer = bundle, BundleWriter(output)
        self.cards: dict[str, dict[str, Any]] = {}
        self.outlines: dict[str, MultiVectors] = {}

    def put(self, part: Modality, data: memoryview, factory: str) -> None:
        """Write an index and the table of `part`."""
        self.writer.add(f"{part.name}.faiss", data)
        self.writer.add_table(f"{part.modality}.parquet", part.table)
        if part.modality == "images":
            self.writer.keep_regions(self.bundle, np.flatnonzero(is_removed(part.table)))
        self.cards[part.name] = {**part.card, "count": len(part.numbers), "bytes": len(data), "factory": factory}
        if part.outline is not None:
            self.outlines[part.modality] = part.outline

    def commit(self) -> None:
        """Link to all other files, and write the card. What was measured of the indices stays on it."""
        if self.outlines:
            self.writer.add_outlines(self.outlines)
        changed = {name: about["sha256"] for name, about in self.writer.files.items()}
        self.writer.link(self.bundle, but=set(self.writer.files))
        card = {name: value for name, value in self.bundle.card.items() if name != "files"}
        digest = fingerprint("revision", 2, changed, {"bundle": card["fingerprint"]})
        inputs = {**card["inputs"], "bundle": card["fingerprint"]}
        self.writer.commit({**card, **self.cards, "inputs": inputs, "fingerprint": digest})


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
