"""What the rows of a bundle's indices are, and which of them a condition lets in."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.index.asking import Asker

MOST_KEPT = 1 << 21
"""Rows of a table that is kept in memory."""


class TableReader(Asker):
    """Reads the tables of a bundle; each when it is first needed."""

    def __init__(self, bundle: Any) -> None:
        super().__init__(bundle)
        self._packed: dict[str, Any] = {}
        self._tables: dict[str, pa.Table] = {}

    def table(self, modality: str) -> pa.Table:
        """What the rows of an index are, kept in memory from then on."""
        if modality not in self._tables:  # combined, since rows are taken slowly from many chunks
            self._tables[modality] = self.bundle.table(modality).combine_chunks()
        return self._tables[modality]

    def is_kept(self, modality: str) -> bool:
        """Whether a table is small enough to stay in memory; of a larger one each answer reads its own rows."""
        return self.rows(modality).num_rows <= MOST_KEPT

    def _keep(self, modality: str) -> None:
        """Keep the table in memory, unless it is large."""
        if self.is_kept(modality):
            self.table(modality)

    def rows(self, modality: str) -> Any:
        """The same table as a pipeline.storage.tables.PackedTable, which reads rows on request."""
        if modality not in self._packed:
            self._packed[modality] = self.bundle.packed_table(modality)
        return self._packed[modality]

    def records(self, modality: str, rows: np.ndarray) -> list[dict[str, Any]]:
        """The `rows` (k,) of a table."""
        kept = self._tables.get(modality)
        return self.rows(modality).records(rows) if kept is None else kept.take(rows).to_pylist()

    def groups(self, modality: str) -> Iterator[pa.Table]:
        """All rows of a table, in order: at once where it is kept in memory."""
        self._keep(modality)
        kept = self._tables.get(modality)
        return self.rows(modality).groups() if kept is None else iter([kept])

    def require_condition(self, where: str | None) -> None:
        """Raises UsageError where `where` is no condition on the bundle's images."""
        self.allowed("images", where)

    def allowed(self, modality: str, where: str | None) -> np.ndarray | None:
        """(n,) bool: which rows of a table are, or belong to, images of which `where` is true; None without it."""
        if where is None or not where.strip():
            return None
        from pipeline.index.conditions import Predicate  # and pyarrow.compute, which other queries do without

        condition, allowed, ids = Predicate(where), [], []
        for images in self.groups("images"):
            allowed.append(condition.rows(images) & images["path"].is_valid().to_numpy())  # the others were removed
            ids.append(images["image_id"].to_numpy()[allowed[-1]])
        if modality == "images":
            return np.concatenate(allowed)
        owned, ids = [], np.concatenate(ids)
        for sentences in self.groups(modality):
            known = sentences["text"].is_valid().to_numpy()
            owned.append(np.isin(sentences["image_id"].to_numpy(), ids) & known)
        return np.concatenate(owned)
