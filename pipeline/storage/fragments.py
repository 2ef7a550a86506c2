"""Embedding shards of models whose images and sentences are sets of fragments: one vector a region, one a word.

`images` (total regions, c) float32, `image_offsets` (n + 1,), `image_id` (n,): image i has the rows [image_offsets[i],
image_offsets[i + 1]), of which the first is the whole image; `boxes` (total regions, 4) x1, y1, x2, y2 in original
pixels. `sentences` (total words, c), `sentence_offsets` (m + 1,), `sentence_id` (m,) alike. `image_globals` (n, g) and
`sentence_globals` (m, g) only where the model has them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.precision import require_sets
from pipeline.storage.atomic import Sidecar, is_sidecar, read_json, sidecar_path
from pipeline.storage.embeddings import Embedded, Embeddings
from pipeline.storage.gather import shard_path
from pipeline.storage.manifest import Manifest
from pipeline.storage.shards import Shard, write_shard

FRAGMENTS = "fragments"
SIDES = {"images": "image", "sentences": "sentence"}


@dataclass(frozen=True)
class StoredSets:
    """Sets by id: set i has the rows [offsets[i], offsets[i + 1]) of `vectors` (total, c) float32. `globals` (k, g) is
    None where the model has none, `boxes` (total, 4) None for sentences."""

    vectors: np.ndarray
    offsets: np.ndarray
    globals: np.ndarray | None
    boxes: np.ndarray | None


def write_fragments(
    path: Path,
    sides: Mapping[str, Any],
    ids: Mapping[str, np.ndarray],
    boxes: np.ndarray,
    *,
    fingerprint: str,
    details: Mapping[str, Any],
) -> Sidecar:
    """Publish the sets of one shard: under `images` and `sentences`, `sides` are what has `vectors`, `offsets` and
    `globals`, and `ids` (n,) theirs; `boxes` are the regions'."""
    arrays = {"boxes": boxes.astype(np.float32)}
    for name, one in SIDES.items():
        arrays |= {name: sides[name].vectors, f"{one}_offsets": sides[name].offsets, f"{one}_id": ids[name]}
        if sides[name].globals is not None:
            arrays[f"{one}_globals"] = sides[name].globals
    return write_shard(path, FRAGMENTS, arrays, rows=len(ids["images"]), fingerprint=fingerprint, details=details)


class Fragments(Embedded):
    """The shards `<folder>/shard-00000.h5` of kind `fragments`. All of Embedded, and `score`, how sets compare.

    Raises as Embedded does, and IntegrityError where offsets do not fit their vectors.
    """

    kind = FRAGMENTS

    def __init__(self, manifest: Manifest, folder: Path, row: str | None = None) -> None:
        super().__init__(manifest, folder, row)
        self.score: dict[str, Any] = self.shards[0].details["score"]
        for shard in self.shards:
            for name, one in SIDES.items():
                whole = shard.get(f"{one}_globals")
                sizes = len(shard[f"{one}_id"]), len(shard[name])
                require_sets(shard.path, *sizes, shard[f"{one}_offsets"], whole)

    def read_sets(self, modality: str, ids: np.ndarray) -> StoredSets:
        """The sets of the `images` or `sentences` whose ids are `ids` (k,), ascending."""
        one = SIDES[modality]
        parts = []
        for shard in self.shards:
            own = np.asarray(shard[f"{one}_id"])
            start, stop = np.searchsorted(ids, [own[0], own[-1] + 1]) if len(own) else (0, 0)
            parts.append(_take(shard, modality, ids[start:stop] - own[0] if len(own) else ids[:0]))
        lengths = np.concatenate([np.diff(part.offsets) for part in parts])
        joined = [
            None if getattr(parts[0], name) is None else np.concatenate([getattr(part, name) for part in parts])
            for name in ("globals", "boxes")
        ]
        vectors = np.concatenate([part.vectors for part in parts])
        return StoredSets(vectors, np.concatenate([[0], np.cumsum(lengths)]), *joined)


def _take(shard: Shard, modality: str, rows: np.ndarray) -> StoredSets:
    one = SIDES[modality]
    starts = np.asarray(shard[f"{one}_offsets"])
    lengths = starts[rows + 1] - starts[rows]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    inside = np.arange(offsets[-1]) + np.repeat(starts[rows] - offsets[:-1], lengths)
    whole = shard[f"{one}_globals"][rows] if shard.details["score"]["global_weight"] else None
    return StoredSets(shard[modality][inside], offsets, whole, shard["boxes"][inside] if one == "image" else None)


def open_embedded(manifest: Manifest, folder: Path, row: str | None = None) -> Embeddings | Fragments:
    """The embeddings in `folder`, whichever kind of row they are of. Raises as Embedded does."""
    return (Fragments if holds_fragments(folder) else Embeddings)(manifest, folder, row)


def holds_fragments(folder: Path) -> bool:
    """Whether the embeddings in `folder` are sets of fragments: what the first shard's commit says."""
    value = read_json(sidecar_path(shard_path(folder, 0)))
    return is_sidecar(value) and value["kind"] == FRAGMENTS
