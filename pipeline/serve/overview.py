"""What a gallery is, at a glance: photographs to begin with, what its columns hold, and what its scores mean."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.index.columns import asked_columns
from pipeline.index.search import Searcher
from pipeline.index.vectors import evenly_spaced

SAMPLE = 256
"""Sentences, with their photographs, that the scale is measured on."""
MOST_VALUES = 20
"""Different texts of a column that are offered as a choice."""


@dataclass(frozen=True)
class Scale:
    """Scores on a sample: `typical`, the median of any sentence with any photograph, and `right`, that of sentences
    with their own photographs; `typical_image` and `same_image` likewise of photographs with each other and
    themselves."""

    typical: float
    right: float
    typical_image: float
    same_image: float


def measure_scale(searcher: Searcher) -> Scale | None:
    """None for a multi-vector model, an index without sentences, or one that is large or cannot give its vectors."""
    if searcher.multi_vector or not searcher.has("sentences") or not searcher.is_kept("images"):
        return None
    sentences, ids = searcher.table("sentences"), searcher.table("images")["image_id"].to_numpy()
    there = np.flatnonzero(sentences["text"].is_valid().to_numpy())
    order = np.argsort(ids, kind="stable")
    sample = there[evenly_spaced(len(there), SAMPLE)]
    owners = sentences["image_id"].to_numpy()[sample]
    rows = order[np.minimum(np.searchsorted(ids, owners, sorter=order), len(ids) - 1)]
    known = (ids[rows] == owners) & searcher.table("images")["path"].is_valid().to_numpy()[rows]
    try:
        texts = searcher.gallery("sentences").reconstruct(sample[known])
        images = searcher.gallery("images").reconstruct(rows[known])
    except RuntimeError:
        return None
    if len(np.unique(rows[known])) < 2:
        return None
    euclidean = searcher.bundle.card["metric"] == "euclidean"
    across, among = (_scores(one, images, euclidean) for one in (texts, images))
    apart = rows[known][:, None] != rows[known]
    return Scale(
        typical=float(np.median(across[apart])),
        right=float(np.median(across.diagonal())),
        typical_image=float(np.median(among[apart])),
        same_image=float(np.median(among.diagonal())),
    )


def _scores(one: np.ndarray, other: np.ndarray, euclidean: bool) -> np.ndarray:
    """(k, k): products, or minus squared distances."""
    products = one @ other.T
    if not euclidean:
        return products
    return 2 * products - (one**2).sum(axis=1)[:, None] - (other**2).sum(axis=1)


def spread(count: int, top: int) -> np.ndarray:
    """At most `top` different places among `count`, far from each other; those for a smaller `top` come first.

    Steps of about the golden section of `count`, without a common divisor, so that every place is met once.
    """
    step = max(1, round(count * (math.sqrt(5) - 1) / 2))
    while math.gcd(step, count) > 1:
        step += 1
    return np.arange(min(top, count), dtype=np.int64) * step % max(count, 1)


def facets(schema: pa.Schema, groups: Iterable[pa.Table]) -> dict[str, dict[str, Any]]:
    """What a filter can offer of each column that conditions are about, of a table in `groups` of rows: its `kind`, and
    its `values` where these are few, or `least` and `most`; columns without any value are left out."""
    kinds = {name: kind for name, kind in asked_columns(schema.empty_table()).items() if kind != "nothing"}
    values: dict[str, set[Any]] = {name: set() for name in kinds}
    for group in groups:
        for name, kind in kinds.items():
            column, seen = group[name].drop_null(), values[name]
            if not len(column):
                continue
            if kind in ("text", "truth"):
                if len(seen) <= MOST_VALUES:
                    seen.update(pc.unique(column).to_pylist())
            else:
                ends = [*seen, *pc.min_max(column).as_py().values()]
                values[name] = {min(ends), max(ends)}
    return {name: {"kind": kind, **facet} for name, kind in kinds.items() if (facet := _facet(values[name], kind))}


def _facet(values: set[Any], kind: str) -> dict[str, Any]:
    if kind in ("text", "truth"):
        return {"values": sorted(values) if len(values) <= MOST_VALUES else []} if values else {}
    if not values:
        return {}
    least, most = min(values), max(values)
    if kind == "dates":
        return {"least": least.isoformat()[:10], "most": most.isoformat()[:10]}
    return {"least": least, "most": most} if math.isfinite(least) and math.isfinite(most) else {}
