"""The joint-space vectors of one model, by image and by sentence, over all shards of a manifest.

A shard of kind `embeddings` has `images` (n, c) float32, `sentences` (m, c), `image_id` (n,) and `sentence_id` (m,). A
multi-vector model's shard, of kind `fragments`, has `images` (total regions, c), where image i has the rows
[image_offsets[i], image_offsets[i + 1]), the first for the whole image; their `boxes` (total regions, 4) x1, y1, x2, y2
in original pixels; `sentences` (total words, c) with `sentence_offsets` likewise; and, if the model has them,
`image_globals` (n, g) and `sentence_globals` (m, g).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import IntegrityError, UsageError
from pipeline.multivectors import SIDES, Comparison, Items, MultiVectors, ScoreRule, read_outline
from pipeline.ragged import offsets_of, runs
from pipeline.storage.atomic import Sidecar, is_sidecar, read_json, read_sidecar, sidecar_path
from pipeline.storage.fingerprint import require_same
from pipeline.storage.manifest import Manifest, ShardRows
from pipeline.storage.shards import EMBEDDINGS, Chained, OpenedOnUse, Shard, shard_path, write_shard

FRAGMENTS = "fragments"
BLOCK_ROWS = 65536


def write_embeddings(
    path: Path,
    sides: Mapping[str, Items],
    ids: Mapping[str, np.ndarray],
    details: Mapping[str, Any],
    rule: ScoreRule | None = None,
    *,
    fingerprint: str,
) -> Sidecar:
    """Publish the `images` and `sentences` of one shard, and their `ids`; a multi-vector model has a `rule`. `details`
    hold the `inputs`."""
    arrays, kind = {}, FRAGMENTS if rule else EMBEDDINGS
    for name, one in SIDES.items():
        side = sides[name]
        if rule:
            if side.boxes is not None:
                arrays["boxes"] = side.boxes.astype(np.float32)
            if side.globals is not None:
                arrays[f"{one}_globals"] = side.globals
            arrays[f"{one}_offsets"], side = side.offsets, side.vectors
        arrays |= {name: side, f"{one}_id": ids[name]}
    details = {**details, "dim": arrays["images"].shape[1], **({"score": rule._asdict()} if rule else {})}
    return write_shard(path, kind, arrays, rows=len(ids["images"]), fingerprint=fingerprint, details=details)


class Embeddings:
    """The shards `<folder>/shard-00000.h5`. `name` is the model's, `registered` its class and `model` its fingerprint;
    `comparison` is how its vectors compare, `multi_vector` whether an item has several, `dim` is c; `refits` the model
    that it refits, or None; `vocabulary` that of its sentences. `shards` are opened, and hashed, when they are used.

    Raises IntegrityError if the first shard is of another model than `name` (None: any) or of another kind than
    `multi_vector` (None: any); then, whenever one is used, for a shard that is missing or damaged, of another model
    than the first, with offsets that do not fit its vectors, or made from other images or sentences than the
    manifest's. `inputs` looks at the commits of all.
    """

    def __init__(
        self, manifest: Manifest, folder: Path, name: str | None = None, multi_vector: bool | None = None
    ) -> None:
        self.folder, self.manifest = Path(folder), manifest
        if multi_vector is None:
            value = read_json(sidecar_path(shard_path(self.folder, 0)))
            multi_vector = is_sidecar(value) and value["kind"] == FRAGMENTS
        self.multi_vector = multi_vector
        self.kind = FRAGMENTS if multi_vector else EMBEDDINGS
        details = read_sidecar(shard_path(self.folder, 0), self.kind).details
        self.model: str = details["inputs"]["model"]
        self.shards: Sequence[Shard] = OpenedOnUse(manifest.n_shards, self._open)
        self.rows: Sequence[ShardRows] = OpenedOnUse(manifest.n_shards, manifest.shard)
        self.name: str = details["model"]
        if name is not None and self.name != name:
            raise IntegrityError(f"{self.folder} holds the embeddings of {self.name}, not of {name}; run embed again")
        self.vocabulary: str | None = details.get("vocabulary")
        self.registered: str = details["registered"]
        self.refits: str | None = details.get("refits")
        self.metric: str = details["metric"]
        self.dim: int = details["dim"]
        self.score: dict[str, Any] | None = details["score"] if self.multi_vector else None
        self._offsets = {side: self._join_offsets(side) for side in SIDES} if self.multi_vector else {}

    def _open(self, number: int) -> Shard:
        shard = Shard(shard_path(self.folder, number), self.kind)
        self._check(number, shard.sidecar)
        return shard

    def _check(self, number: int, sidecar: Sidecar) -> None:
        path, rows, inputs = shard_path(self.folder, number), self.manifest.shard(number), sidecar.details["inputs"]
        for what in ("images", "sentences"):
            if inputs[what] != rows.fingerprints[what]:
                raise IntegrityError(f"{path} was made from other {what}; run embed again")
        require_same("model", {str(shard_path(self.folder, 0)): self.model, str(path): inputs["model"]})

    @property
    def comparison(self) -> Comparison:
        return ScoreRule.from_dict(self.score) if self.multi_vector else self.metric

    def require_unseen(self, split: str) -> None:
        """Raises UsageError for the dev split of a refit, whose training data includes it."""
        if self.refits and split == "dev":
            raise UsageError(
                f"{self.name} has learned from the dev split and cannot be judged there; take {self.refits}, or test"
            )

    @cached_property
    def inputs(self) -> dict[str, str]:
        shards = {}
        for number in range(len(self.shards)):
            sidecar = read_sidecar(shard_path(self.folder, number), self.kind)
            self._check(number, sidecar)
            shards[f"embeddings/{number:05d}"] = sidecar.fingerprint
        return {"manifest": self.manifest.fingerprint, **shards}

    def read(self, modality: str, ids: np.ndarray) -> Items:
        """The `images` or `sentences` with the `ids` (k,): (k, c) float32, or MultiVectors."""
        vectors = self.rows_of(modality, ids).take(slice(None))
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
        return MultiVectors(None, offsets_of(np.diff(self._offsets[modality])[ids]), globals_, boxes)

    def rows_of(self, modality: str, ids: np.ndarray) -> "EmbeddedRows":
        """The vectors of some `images` or `sentences`, one item after another, not yet read."""
        return EmbeddedRows(self._chained(modality), self._places(modality, ids))

    def parts_of(self, modality: str, ids: np.ndarray, rows: int) -> "list[EmbeddedPart]":
        """The vectors of some `images` or `sentences`, in ascending order and of one each, in parts of at most `rows`
        of them, each of which another process can read."""
        bounds = self.manifest.bounds(modality)
        return [self._part(modality, ids[first : first + rows], first, bounds) for first in range(0, len(ids), rows)]

    def _part(self, modality: str, ids: np.ndarray, first: int, bounds: np.ndarray) -> "EmbeddedPart":
        cuts, own = np.searchsorted(ids, bounds), []
        for number in np.flatnonzero(np.diff(cuts)):
            rows = ids[cuts[number] : cuts[number + 1]] - bounds[number]
            dense = rows[-1] - rows[0] == len(rows) - 1
            own.append(
                (shard_path(self.folder.absolute(), int(number)), range(rows[0], rows[-1] + 1) if dense else rows)
            )
        return EmbeddedPart(modality, first, len(ids), self.dim, tuple(own))

    def _places(self, modality: str, ids: np.ndarray) -> np.ndarray:
        """Where their vectors are in the concatenated shards."""
        if not self.multi_vector:
            return ids
        starts, stops = self._offsets[modality][ids], self._offsets[modality][ids + 1]
        return runs(starts, stops - starts)

    def _chained(self, name: str) -> Chained:
        """The datasets `name` of all shards."""
        bounds = None if self.multi_vector else self.manifest.bounds(name)

        def open_dataset(number: int) -> np.ndarray:
            shard = self.shards[number]
            if bounds is not None and len(shard[name]) != (rows := bounds[number + 1] - bounds[number]):
                raise IntegrityError(f"{shard.path} has {len(shard[name])} {name}, not {rows}; run embed again")
            return shard[name]

        return Chained(OpenedOnUse(len(self.shards), open_dataset), np.float32, bounds)

    def _join_offsets(self, modality: str) -> np.ndarray:
        one, lengths = SIDES[modality], []
        for shard in self.shards:
            arrays = {key: shard.get(key) for key in ("boxes", f"{one}_offsets", f"{one}_globals")}
            outline = read_outline(shard.path, arrays, one, len(shard[f"{one}_id"]), len(shard[modality]))
            lengths.append(outline.lengths)
        return offsets_of(np.concatenate(lengths))


@dataclass(frozen=True)
class EmbeddedRows:
    """The vectors of all shards at `places` (n,), read in blocks or by row."""

    vectors: Chained
    places: np.ndarray

    @property
    def count(self) -> int:
        return len(self.places)

    @property
    def dim(self) -> int:
        return self.vectors.shape[1]

    def blocks(self) -> Iterator[np.ndarray]:
        """All vectors, as blocks (n_i, c) float32."""
        return (self.take(slice(start, start + BLOCK_ROWS)) for start in range(0, self.count, BLOCK_ROWS))

    def take(self, rows: np.ndarray | slice) -> np.ndarray:
        """The vectors (k, c) float32 in `rows` (k,)."""
        return self.vectors[self.places[rows]]


@dataclass(frozen=True)
class EmbeddedPart:
    """`count` vectors of `dim` numbers of a `modality`, the first of which is row `first` of all: some rows of some
    shards, which whoever reads them opens, one at a time. Raises IntegrityError for a damaged shard."""

    modality: str
    first: int
    count: int
    dim: int
    shards: tuple[tuple[Path, range | np.ndarray], ...]

    def blocks(self) -> Iterator[np.ndarray]:
        """All of them in order, as (n_i, c) float32."""
        for path, rows in self.shards:
            vectors = Shard(path, EMBEDDINGS)[self.modality]
            for start in range(0, len(rows), BLOCK_ROWS):
                own = rows[start : start + BLOCK_ROWS]
                chosen = slice(own.start, own.stop) if isinstance(own, range) else own
                yield np.asarray(vectors[chosen], np.float32)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """(k, c) float32 of the ascending `rows` (k,) of the part."""
        found, start = np.empty((len(rows), self.dim), np.float32), 0
        for path, own in self.shards:
            first, last = np.searchsorted(rows, [start, start + len(own)])
            if first < last:
                chosen = np.asarray(own)[rows[first:last] - start]
                found[first:last] = Shard(path, EMBEDDINGS)[self.modality][chosen]
            start += len(own)
        return found


def read_vectors(path: Path, modality: str) -> np.ndarray:
    """All vectors (n, c) float32 of the `images` or `sentences` of one shard."""
    return np.asarray(Shard(path, EMBEDDINGS)[modality], np.float32)
