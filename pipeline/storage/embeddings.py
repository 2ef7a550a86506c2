"""The joint-space vectors of one row of results, by image and by sentence, over all shards of a manifest."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from pipeline.errors import InputError, IntegrityError, UsageError
from pipeline.storage.fingerprint import require_same
from pipeline.storage.gather import open_shards
from pipeline.storage.manifest import Manifest, ShardRows
from pipeline.storage.shards import EMBEDDINGS, Shard

BLOCK_ROWS = 65536


class Embedded:
    """The shards `<folder>/shard-00000.h5` of `kind`. `row` names the model, `registered` its class and `model` its
    fingerprint; `metric` is how its vectors compare, `dim` is c; `refits` the row of which it is a refit, if it is one;
    `vocabulary` that of its sentences.

    Raises IntegrityError for a shard that is missing, damaged, of another model than the first or than the `row` that
    is asked for, or made from other images or sentences than the manifest's.
    """

    kind: ClassVar[str]

    def __init__(self, manifest: Manifest, folder: Path, row: str | None = None) -> None:
        self.folder = Path(folder)
        self.manifest = manifest
        self.shards = open_shards(folder, self.kind, manifest.n_shards)
        self.rows = [manifest.shard(number) for number in range(manifest.n_shards)]
        for shard, rows in zip(self.shards, self.rows, strict=True):
            _check(shard, rows)
        models = {str(shard.path): shard.details["inputs"]["model"] for shard in self.shards}
        self.model = require_same("model", models)
        details = self.shards[0].details
        self.row: str = details["model"]
        if row is not None and self.row != row:
            raise IntegrityError(f"{self.folder} holds the embeddings of {self.row}, not of {row}; run embed again")
        self.vocabulary: str | None = details.get("vocabulary")
        self.registered: str = details["registered"]
        self.refits: str | None = details.get("refits")
        self.metric: str = details["metric"]
        self.dim: int = details["dim"]

    def require_unseen(self, split: str) -> None:
        """Raises UsageError for the dev split of a refit, which has learned from it."""
        if self.refits and split == "dev":
            raise UsageError(
                f"{self.row} has learned from the dev split and cannot be judged there; take {self.refits}, or test"
            )

    @property
    def inputs(self) -> dict[str, str]:
        """Fingerprints of the manifest and of every shard."""
        shards = {f"embeddings/{number:05d}": shard.fingerprint for number, shard in enumerate(self.shards)}
        return {"manifest": self.manifest.fingerprint, **shards}


class Embeddings(Embedded):
    """One vector an image, one a sentence."""

    kind = EMBEDDINGS

    def read(self, modality: str, ids: np.ndarray) -> np.ndarray:
        """(k, c) float32 of the `images` or `sentences` whose ids are `ids` (k,), ascending."""
        vectors = np.empty((len(ids), self.dim), np.float32)
        for shard, rows in zip(self.shards, self.rows, strict=True):
            first = rows.first_image if modality == "images" else rows.first_sentence
            last = rows.last_image if modality == "images" else rows.last_sentence
            start, stop = np.searchsorted(ids, [first, last])
            vectors[start:stop] = shard[modality][ids[start:stop] - first]
        return vectors

    def rows_of(self, modality: str, ids: np.ndarray) -> "EmbeddedRows":
        """The vectors of some `images` or `sentences`, not yet read."""
        return EmbeddedRows(self, modality, ids)


@dataclass(frozen=True)
class EmbeddedRows:
    """The vectors whose ids are `ids` (n,), read block by block, or by row."""

    embeddings: Embeddings
    modality: str
    ids: np.ndarray

    @property
    def count(self) -> int:
        return len(self.ids)

    @property
    def dim(self) -> int:
        return self.embeddings.dim

    def blocks(self) -> Iterator[np.ndarray]:
        """All of them, as (n_i, c) float32."""
        return (self._read(self.ids[start : start + BLOCK_ROWS]) for start in range(0, self.count, BLOCK_ROWS))

    def take(self, rows: np.ndarray) -> np.ndarray:
        """(k, c) float32 of some `rows` (k,)."""
        return self._read(self.ids[rows])

    def _read(self, ids: np.ndarray) -> np.ndarray:
        if (np.diff(ids) > 0).all():
            return self.embeddings.read(self.modality, ids)
        ascending, places = np.unique(ids, return_inverse=True)
        return self.embeddings.read(self.modality, ascending)[places]


def read_vectors(path: Path, modality: str) -> np.ndarray:
    """All vectors (n, c) float32 of the `images` or `sentences` of one shard."""
    return np.asarray(Shard(path, EMBEDDINGS)[modality], np.float32)


def _check(shard: Shard, rows: ShardRows) -> None:
    for what in ("images", "sentences"):
        if shard.details["inputs"][what] != rows.fingerprints[what]:
            raise IntegrityError(f"{shard.path} was made from other {what} than the manifest's; run embed again")


@dataclass(frozen=True)
class SplitPairs:
    """The images of a split that have sentences, `image_id` (n,), with these, `sentence_id` (m,); sentence j is of
    image `image_id[owners[j]]`."""

    image_id: np.ndarray
    sentence_id: np.ndarray
    owners: np.ndarray

    def first(self, count: int) -> "SplitPairs":
        """Only the first `count` images, with their sentences."""
        m = int(np.searchsorted(self.owners, count))
        return SplitPairs(self.image_id[:count], self.sentence_id[:m], self.owners[:m])

    def blocks(self, images: int) -> Iterator["SplitPairs"]:
        """All pairs in blocks of at most `images` images, with their sentences."""
        for start in range(0, len(self.image_id), images):
            first, last = np.searchsorted(self.owners, [start, start + images])
            chosen = slice(start, start + images)
            yield SplitPairs(self.image_id[chosen], self.sentence_id[first:last], self.owners[first:last] - start)


def split_pairs(manifest: Manifest, *splits: str) -> SplitPairs:
    """The pairs of one split, or of several together. Raises InputError where there is none."""
    sentence_id = np.flatnonzero(np.isin(manifest.splits.astype(str), splits)[manifest.sentence_images])
    image_id, owners = np.unique(manifest.sentence_images[sentence_id], return_inverse=True)
    if not len(image_id):
        counts = ", ".join(f"{name} {count}" for name, count in manifest.summary["splits"].items())
        raise InputError(
            f"the {' and '.join(splits)} split of {manifest.folder} has no image with a sentence (images: {counts});"
            " put some into it and run ingest again, or leave it out of evaluate.splits"
        )
    return SplitPairs(image_id, sentence_id, owners)


def split_ids(manifest: Manifest, splits: Sequence[str]) -> dict[str, np.ndarray]:
    """The ids of all `images` of some splits, with or without sentences, and of all their `sentences`."""
    wanted = np.isin(manifest.splits.astype(str), splits)
    return {"images": np.flatnonzero(wanted), "sentences": np.flatnonzero(wanted[manifest.sentence_images])}
