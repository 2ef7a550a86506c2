"""Regions of a bundle's images: `image_regions.parquet`, of a model with one vector a region and one a noun phrase.

A row is a region: the `row` of its image in the bundle's table, its corners `x1`, `y1`, `x2`, `y2` in original pixels,
and its `vector` (c,) float32. Images without a row have no region that was embedded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pipeline.errors import IntegrityError
from pipeline.storage.phrases import CORNERS, PhraseVectors, vectors_column
from pipeline.storage.tables import PackedTable, require_columns

if TYPE_CHECKING:
    from pipeline.storage.bundle import Bundle, BundleWriter

NAME = "image_regions.parquet"
REBUILD = "run build-index again"


@dataclass(frozen=True)
class BundleRegions:
    """The image's row (r,), the `boxes` (r, 4) and the `vectors` (r, c) of each region."""

    rows: np.ndarray
    boxes: np.ndarray
    vectors: np.ndarray


def add_regions(writer: "BundleWriter", image_id: np.ndarray, embedded: Sequence[PhraseVectors]) -> None:
    """Write the regions, without whole images, of those of the bundle's images `image_id` (n,), ascending, that are
    among `embedded`."""
    tables = []
    for one in embedded:
        owners = one.regions["image_id"].to_numpy()
        chosen = np.flatnonzero(np.isin(owners, image_id) & (one.regions["number"].to_numpy() > 0))
        columns = dict(zip(CORNERS, one.boxes[chosen].astype(np.float32).T, strict=True))
        vectors = vectors_column(one.region_vectors[chosen])
        tables.append(pa.table({"row": np.searchsorted(image_id, owners[chosen]), **columns, "vector": vectors}))
    writer.add_table(NAME, pa.concat_tables(tables))


def keep_regions(writer: "BundleWriter", bundle: "Bundle", gone: np.ndarray) -> None:
    """Write those of `bundle`, if it has any, without the rows `gone` (k,) of its images."""
    if NAME in bundle.card["files"]:
        table = _open(bundle)
        writer.add_table(NAME, table.filter(pa.array(~np.isin(table["row"].to_numpy(), gone))))


def read_regions(bundle: "Bundle") -> BundleRegions | None:
    """The regions of a bundle; None where it has none. Raises IntegrityError for those that do not fit its images."""
    if NAME not in bundle.card["files"]:
        return None
    table = _open(bundle)
    rows = table["row"].to_numpy()
    vectors = table["vector"].combine_chunks().flatten().to_numpy().reshape(len(rows), bundle.card["dim"])
    boxes = np.stack([table[name].to_numpy() for name in CORNERS], axis=1)
    if len(rows) and not (0 <= rows.min() <= rows.max() < bundle.packed_table("images").num_rows):
        raise IntegrityError(f"{bundle.folder / NAME} names rows beyond those of the images; {REBUILD}")
    if not (np.isfinite(vectors).all() and np.isfinite(boxes).all()):
        raise IntegrityError(f"{bundle.folder / NAME} has numbers that are not finite; {REBUILD}")
    return BundleRegions(rows, boxes, vectors)


def _open(bundle: "Bundle") -> pa.Table:
    packed = PackedTable(bundle.map(NAME), bundle.folder / NAME)
    vector = pa.list_(pa.float32(), bundle.card["dim"])
    needed = [("row", pa.int64()), *((name, pa.float32()) for name in CORNERS), ("vector", vector)]
    require_columns(packed.path, packed.schema, pa.schema(needed), REBUILD)
    table = packed.unpack()
    if any(column.null_count for column in table.columns):
        raise IntegrityError(f"{packed.path} has empty cells; {REBUILD}")
    return table
