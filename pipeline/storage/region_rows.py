"""Regions of chosen images, of one or several encoders side by side, gathered from the shards of a manifest."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pipeline.errors import IntegrityError
from pipeline.precision import to_float32
from pipeline.ragged import offsets_of, runs
from pipeline.storage.manifest import Manifest
from pipeline.storage.provenance import origin_of, same_origin
from pipeline.storage.regions import Block, RegionShard, open_regions


class RegionRows:
    """The regions of the images `image_id` (n,), n at least 1: `rows.packed([3, 1])` reads no other image's.

    `dims` are those of each encoder's features, `fingerprints` those of the shards; `encoders` are the origins of the
    features (pipeline.storage.provenance), `origins` those of each file, by encoder. Raises IntegrityError where the
    shards are of other images than the manifest's or of different encoders of one name, where the encoders' regions are
    not the same, and, unless `complete` is false, naming the first image that has no region.
    """

    def __init__(
        self, manifest: Manifest, folders: Mapping[str, Path], image_id: np.ndarray, complete: bool = True
    ) -> None:
        self._numbers, within = np.divmod(image_id, manifest.shard_size)
        self._shards = {number: _open(manifest, folders, number) for number in np.unique(self._numbers).tolist()}
        self.fingerprints = {
            f"regions/{name}/{number:05d}": shard.fingerprint
            for number, shards in self._shards.items()
            for name, shard in zip(folders, shards, strict=True)
        }
        by_encoder = zip(folders, zip(*self._shards.values(), strict=True), strict=True)
        self.origins = {
            name: {str(shard.path): origin_of(shard.sidecar) for shard in shards} for name, shards in by_encoder
        }
        self.encoders = {name: same_origin(name, files) for name, files in self.origins.items()}
        shards = next(iter(self._shards.values()))
        self.dims = tuple(shard["features"].shape[1] for shard in shards)
        self._starts = np.empty(len(image_id), np.int64)
        self._lengths = np.empty(len(image_id), np.int64)
        for number, (shard, *_) in self._shards.items():
            own = self._numbers == number
            self._starts[own], self._lengths[own] = shard.offsets[within[own]], shard.regions.lengths[within[own]]
        if complete and not self._lengths.all():
            first = image_id[self._lengths.argmin()]
            raise IntegrityError(
                f"image {first} has no regions in {shards[0].path.parent}; run ingest again, without it"
            )

    def __len__(self) -> int:
        return len(self._numbers)

    def packed(self, rows: np.ndarray) -> Block:
        """The regions of the images `rows` (k,), in that order."""
        lengths = self._lengths[rows]
        sources = runs(self._starts[rows], lengths)
        numbers = np.repeat(self._numbers[rows], lengths)
        features = np.empty((len(sources), sum(self.dims)), np.float32)
        boxes, scores = np.empty((len(sources), 4), np.float32), np.empty(len(sources), np.float32)
        for number in np.unique(numbers).tolist():
            chosen = np.flatnonzero(numbers == number)
            own, shards = sources[chosen], self._shards[number]
            boxes[chosen], scores[chosen] = shards[0]["boxes"][own], shards[0]["scores"][own]
            start = 0
            for shard, dim in zip(shards, self.dims, strict=True):
                features[chosen, start : start + dim] = to_float32(shard["features"][own])
                start += dim
        return Block(features, boxes, scores, offsets_of(lengths))


def _open(manifest: Manifest, folders: Mapping[str, Path], number: int) -> list[RegionShard]:
    """Shard `number` of every encoder."""
    shards = [open_regions(manifest, folder, number, name) for name, folder in folders.items()]
    first = shards[0]
    for shard in shards:
        if not np.array_equal(first["boxes"], shard["boxes"]) or not np.array_equal(first.offsets, shard.offsets):
            raise IntegrityError(f"{first.path} and {shard.path} have different regions; extract them again")
    return shards
