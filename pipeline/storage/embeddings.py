"""The joint-space vectors of one model for the images and the captions of a manifest, in one file per shard.

A shard of the kind `embeddings` has n images and m captions with c dimensions. Its arrays are `images` (n, c) float32,
`sentences` (m, c) float32, `image_id` (n,) and `sentence_id` (m,).

A shard of the kind `fragments` belongs to a multi-vector model. `images` (total regions, c) contains the vectors of all
regions. Image i has the rows [image_offsets[i], image_offsets[i + 1]), and the first of them is the whole image.
`boxes` (total regions, 4) contains x1, y1, x2, y2 of each region in pixels of the original image. `sentences` (total
words, c) contains the vectors of all words, with `sentence_offsets` in the same way. If the model has global vectors,
these are `image_globals` (n, g) and `sentence_globals` (m, g). `image_id` and `sentence_id` are as above.
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
    """Write the vectors of one shard with their commit record, and return the record.

    `sides` has the vectors of the shard's images and captions under the keys `images` and `sentences`. `ids` has their
    ids (n,) and (m,) under the same keys. `rule` scores the items of a multi-vector model and is None for other models.
    `details` are noted in the record, and must have the keys `model`, `registered`, `metric` and `made_of`, which
    Embeddings reads.
    """
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
    """The embeddings of a model in the files `<folder>/shard-00000.h5` and so on.

    `name` is the name of the model in the configuration, `registered` is its model type, and `model` is the digest of
    its files. `multi_vector` says whether an item has several vectors, `dim` is the number of dimensions of a vector,
    and `metric`, or `rule` for a multi-vector model, compares the items. `refits` is the name of the other model that
    this model refits on more data, or None. `vocabulary` is the digest of the vocabulary of its captions, or None.

    The constructor checks the commit record of the first shard. A shard is opened, and its hash is checked, when it is
    first used. With a multi-vector model, the constructor opens all shards, because the number of vectors of each item
    is needed. Raises IntegrityError if an opened shard is not valid.
    """

    def __init__(self, manifest: Manifest, folder: Path) -> None:
        self.folder = Path(folder)
        self.manifest = manifest
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
        """The scoring rule of a multi-vector model, or the metric of any other model."""
        return self.rule or self.metric

    def require_unseen(self, split: str) -> None:
        """Raise UsageError if `split` is dev and the model is a refit, because a refit is trained on dev too."""
        if self.refits and split == "dev":
            raise UsageError(
                f"The model {self.name} was trained on the dev split, so it cannot be evaluated on dev. Evaluate"
                f" {self.refits} instead, or use the test split."
            )

    @cached_property
    def inputs(self) -> dict[str, str]:
        """The inputs of an index of these embeddings: `manifest` -> the fingerprint of the manifest, and
        `embeddings/00000` and so on -> the digest of the shard."""
        shards = {}
        for number in range(len(self.shards)):
            commit = open_commit(shard_path(self.folder, number), self.kind, hashed=False)
            shards[f"embeddings/{number:05d}"] = commit.digest
        return {"manifest": self.manifest.fingerprint, **shards}

    def read(self, modality: str, ids: np.ndarray) -> Items:
        """Read the vectors of the `images` or `sentences` with these ids (k,).

        Returns (k, c) float32, or MultiVectors for a multi-vector model.
        """
        vectors = self.rows_of(modality, ids)[:]
        outline = self.outline(modality, ids)
        return vectors if outline is None else replace(outline, vectors=vectors)

    def outline(self, modality: str, ids: np.ndarray) -> MultiVectors | None:
        """Read the offsets, global vectors and boxes of the items with these ids (k,), but not their vectors.

        Captions have no boxes. Returns None for a model with one vector per item.
        """
        if not self.multi_vector:
            return None
        whole = f"{SIDES[modality]}_globals"
        boxes = None
        if modality == "images":
            boxes = self._chained("boxes")[self._vector_rows(modality, ids)]
        globals_ = self._chained(whole)[ids] if whole in self.shards[0] else None
        return MultiVectors(None, offsets_of(self._lengths(modality, ids)), globals_, boxes)

    def rows_of(self, modality: str, ids: np.ndarray) -> ChosenRows:
        """Return the vectors (n, c) of the `images` or `sentences` with these ids (k,), one item after another.

        The vectors are read from the shards when the result is indexed. n is k if each item has one vector. With a
        multi-vector model, n is the number of all vectors of these items.
        """
        return ChosenRows(self._chained(modality), self._vector_rows(modality, ids))

    def _vector_rows(self, modality: str, ids: np.ndarray) -> np.ndarray:
        """Return the row numbers, in the concatenated shards, of the vectors of the items with these ids."""
        if not self.multi_vector:
            return ids
        lengths = self._lengths(modality, ids)
        return runs(self._offsets[modality][ids], lengths)

    def _lengths(self, modality: str, ids: np.ndarray) -> np.ndarray:
        """Return the number of vectors (k,) of each item of a multi-vector model.

        Raises IndexError if there is no item with one of the ids.
        """
        return Chained([np.diff(self._offsets[modality])])[ids]

    def _chained(self, name: str) -> Chained:
        """Return the datasets `name` of all shards as one array, which reads only the requested rows."""
        bounds = None if self.multi_vector else self.manifest.bounds(name)
        arrays = OpenedOnUse(len(self.shards), lambda number: self.shards[number][name])
        return Chained(arrays, np.float32, bounds)
