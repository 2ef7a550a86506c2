"""The joint-space vectors of one model, by image and by sentence, over all shards of a manifest.

A shard of kind `embeddings` has `images` (n, c) float32, `sentences` (m, c), `image_id` (n,) and `sentence_id` (m,). A
multi-vector model's shard, of kind `fragments`, has `images` (total regions, c), where image i has the rows
[image_offsets[i], image_offsets[i + 1]), the first for the whole image; their `boxes` (total regions, 4) x1, y1, x2, y2
in original pixels; `sentences` (total words, c) with `sentence_offsets` likewise; and, if the model has them,
`image_globals` (n, g) and `sentence_globals` (m, g).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from pipeline.compute.lazy_rows import Chained, ChosenRows
from pipeline.compute.multivectors import SIDES, Comparison, Items, MultiVectors, ScoreRule
from pipeline.compute.ragged import offsets_of, runs
from pipeline.errors import UsageError
from pipeline.storage.commit import Commit, Provenance, commit_path, open_commit
from pipeline.storage.json_files import Json
from pipeline.storage.manifest import Manifest
from pipeline.storage.shards import (
    EMBEDDINGS,
    FRAGMENTS,
    OpenedOnUse,
    Shard,
    shard_path,
    write_shard,
)


def write_embeddings(
    path: Path,
    sides: Mapping[str, Items],
    ids: Mapping[str, np.ndarray],
    details: Mapping[str, Json],
    rule: ScoreRule | None = None,
    *,
    provenance: Provenance | None = None,
) -> Commit:
    """Publish the `images` and `sentences` of one shard, and their `ids`; a multi-vector model has a `rule`. `details`
    hold the digest of the model under `made_of`."""
    arrays: dict[str, np.ndarray] = {}
    for name, one in SIDES.items():
        side = sides[name]
        arrays[f"{one}_id"] = ids[name]
        if isinstance(side, np.ndarray):
            arrays[name] = side
            continue
        arrays |= {name: side.array, f"{one}_offsets": side.offsets}
        if side.boxes is not None:
            arrays["boxes"] = side.boxes.astype(np.float32)
        if isinstance(side.globals, np.ndarray):
            arrays[f"{one}_globals"] = side.globals
    details = {**details, "dim": arrays["images"].shape[1], **({"score": rule._asdict()} if rule else {})}
    kind = FRAGMENTS if rule else EMBEDDINGS
    return write_shard(path, kind, arrays, rows=len(ids["images"]), provenance=provenance, details=details)


class Embeddings:
    """The shards `<folder>/shard-00000.h5`. `name` is the model's in the configuration, `registered` its name in the
    registry, `model` the digest of its files; `comparison` is how its vectors compare, `multi_vector` whether an item
    has several, `dim` is c; `refits` the model that it refits, or None; `vocabulary` that of its sentences. `shards`
    are opened, and hashed, when they are used.

    Raises IntegrityError if a shard is not valid when it is opened.
    """

    def __init__(self, manifest: Manifest, folder: Path) -> None:
        self.folder, self.manifest = Path(folder), manifest
        first = open_commit(commit_path(shard_path(self.folder, 0)), hashed=False)
        details = first.details
        self.kind = first.kind
        self.multi_vector = self.kind == FRAGMENTS
        self.model: str = details["made_of"]
        self.name: str = details["model"]
        self.vocabulary: str | None = details.get("vocabulary")
        self.registered: str = details["registered"]
        self.refits: str | None = details.get("refits")
        self.metric: str = details["metric"]
        self.dim: int = details["dim"]
        self.rule = ScoreRule.from_dict(details["score"]) if self.multi_vector else None
        self.shards: Sequence[Shard] = OpenedOnUse(
            manifest.n_shards, lambda number: Shard(shard_path(self.folder, number), self.kind)
        )
        self._offsets = {}
        for side, one in SIDES.items() if self.multi_vector else ():
            lengths = [np.diff(shard[f"{one}_offsets"]) for shard in self.shards]
            self._offsets[side] = offsets_of(np.concatenate(lengths))

    @property
    def comparison(self) -> Comparison:
        return self.rule or self.metric

    def require_unseen(self, split: str) -> None:
        """Raises UsageError for the dev split of a refit, whose training data includes it."""
        if self.refits and split == "dev":
            raise UsageError(
                f"{self.name} learned from the dev split and cannot be evaluated there; use {self.refits}, or test"
            )

    @cached_property
    def inputs(self) -> dict[str, str]:
        """The inputs of an index: the manifest, and the digest of each shard."""
        shards = {}
        for number in range(len(self.shards)):
            commit = open_commit(shard_path(self.folder, number), self.kind, hashed=False)
            shards[f"embeddings/{number:05d}"] = commit.digest
        return {"manifest": self.manifest.fingerprint, **shards}

    def read(self, modality: str, ids: np.ndarray) -> Items:
        """The `images` or `sentences` with the `ids` (k,): (k, c) float32, or MultiVectors."""
        vectors = self.rows_of(modality, ids)[:]
        outline = self.outline(modality, ids)
        return vectors if outline is None else replace(outline, vectors=vectors)

    def outline(self, modality: str, ids: np.ndarray) -> MultiVectors | None:
        """All but the vectors of a multi-vector model's items; None for other models."""
        if not self.multi_vector:
            return None
        whole, boxes = f"{SIDES[modality]}_globals", None
        if modality == "images":
            boxes = self._chained("boxes")[self._places(modality, ids)]
        globals_ = self._chained(whole)[ids] if whole in self.shards[0] else None
        return MultiVectors(None, offsets_of(self._lengths(modality, ids)), globals_, boxes)

    def rows_of(self, modality: str, ids: np.ndarray) -> ChosenRows:
        """(n, c) the vectors of some `images` or `sentences`, one item after another, not yet read."""
        return ChosenRows(self._chained(modality), self._places(modality, ids))

    def _places(self, modality: str, ids: np.ndarray) -> np.ndarray:
        """Return the places of the vectors of some items in the concatenated shards."""
        if not self.multi_vector:
            return ids
        lengths = self._lengths(modality, ids)
        return runs(self._offsets[modality][ids], lengths)

    def _lengths(self, modality: str, ids: np.ndarray) -> np.ndarray:
        """Return how many vectors each item of a multi-vector model has. Raises IndexError as Chained."""
        return Chained([np.diff(self._offsets[modality])])[ids]

    def _chained(self, name: str) -> Chained:
        """The datasets `name` of all shards."""
        bounds = None if self.multi_vector else self.manifest.bounds(name)
        arrays = OpenedOnUse(len(self.shards), lambda number: self.shards[number][name])
        return Chained(arrays, np.float32, bounds)
