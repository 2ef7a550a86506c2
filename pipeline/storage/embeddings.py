"""The joint-space vectors of one row of results, by image and by sentence, over all shards of a manifest."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.errors import InputError, IntegrityError
from pipeline.storage.fingerprint import require_same
from pipeline.storage.gather import open_shards
from pipeline.storage.manifest import Manifest, ShardRows
from pipeline.storage.shards import EMBEDDINGS, Shard


class Embeddings:
    """The shards `<folder>/shard-00000.h5`. `row` names the model, `registered` its class and `model` its
    fingerprint; `metric` is how its vectors compare, `dim` is c.

    Raises IntegrityError for a shard that is missing, damaged, of another model than the first, or made from other
    images or sentences than the manifest's.
    """

    def __init__(self, manifest: Manifest, folder: Path) -> None:
        self.folder = Path(folder)
        self.manifest = manifest
        self.shards = open_shards(folder, EMBEDDINGS, manifest.n_shards)
        self.rows = [manifest.shard(number) for number in range(manifest.n_shards)]
        for shard, rows in zip(self.shards, self.rows, strict=True):
            _check(shard, rows)
        models = {str(shard.path): shard.details["inputs"]["model"] for shard in self.shards}
        self.model = require_same("model", models)
        details = self.shards[0].details
        self.row: str = details["model"]
        self.registered: str = details["registered"]
        self.metric: str = details["metric"]
        self.dim: int = details["dim"]

    @property
    def inputs(self) -> dict[str, str]:
        """Fingerprints of the manifest and of every shard."""
        shards = {f"embeddings/{number:05d}": shard.fingerprint for number, shard in enumerate(self.shards)}
        return {"manifest": self.manifest.fingerprint, **shards}

    def read(self, modality: str, ids: np.ndarray) -> np.ndarray:
        """(k, c) float32 of the `images` or `sentences` whose ids are `ids` (k,), ascending."""
        vectors = np.empty((len(ids), self.dim), np.float32)
        for shard, rows in zip(self.shards, self.rows, strict=True):
            first = rows.first_image if modality == "images" else rows.first_sentence
            last = rows.last_image if modality == "images" else rows.last_sentence
            start, stop = np.searchsorted(ids, [first, last])
            vectors[start:stop] = shard[modality][ids[start:stop] - first]
        return vectors


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


def split_pairs(manifest: Manifest, split: str) -> SplitPairs:
    """The pairs of `split`. Raises InputError where there is none."""
    sentence_id = np.flatnonzero((manifest.splits == split)[manifest.sentence_images])
    image_id, owners = np.unique(manifest.sentence_images[sentence_id], return_inverse=True)
    if not len(image_id):
        counts = ", ".join(f"{name} {count}" for name, count in manifest.summary["splits"].items())
        raise InputError(
            f"the {split} split of {manifest.folder} has no image with a sentence (images: {counts}); put some into it"
            " and run ingest again, or leave it out of evaluate.splits"
        )
    return SplitPairs(image_id, sentence_id, owners)


def split_ids(manifest: Manifest, splits: Sequence[str]) -> dict[str, np.ndarray]:
    """The ids of all `images` of some splits, with or without sentences, and of all their `sentences`."""
    wanted = np.isin(manifest.splits.astype(str), splits)
    return {"images": np.flatnonzero(wanted), "sentences": np.flatnonzero(wanted[manifest.sentence_images])}
