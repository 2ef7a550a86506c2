"""Regions of chosen images, of one or several encoders side by side, gathered from the shards of a manifest."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pipeline.errors import IntegrityError
from pipeline.precision import to_float32
from pipeline.ragged import offsets_of, runs
from pipeline.storage.chained import Chained
from pipeline.storage.manifest import Manifest
from pipeline.storage.provenance import origin_of, same_origin
from pipeline.storage.regions import PackedRegions, RegionShard, open_regions


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
        numbers, within = np.divmod(image_id, manifest.shard_size)
        opened = {number: _open(manifest, folders, number) for number in np.unique(numbers).tolist()}
        self.fingerprints = {
            f"regions/{name}/{number:05d}": shard.fingerprint
            for number, shards in opened.items()
            for name, shard in zip(folders, shards, strict=True)
        }
        by_encoder = list(zip(*opened.values(), strict=True))
        self.origins = {
            name: {str(shard.path): origin_of(shard.sidecar) for shard in shards}
            for name, shards in zip(folders, by_encoder, strict=True)
        }
        self.encoders = {name: same_origin(name, files) for name, files in self.origins.items()}
        self._features = [Chained([shard["features"] for shard in shards]) for shards in by_encoder]
        self._boxes, self._scores = (Chained([shard[name] for shard in by_encoder[0]]) for name in ("boxes", "scores"))
        self.dims = tuple(features.shape[1] for features in self._features)
        firsts = offsets_of([len(shard["scores"]) for shard in by_encoder[0]])
        self._starts, self._lengths = np.empty((2, len(image_id)), np.int64)
        for number, first, shard in zip(opened, firsts, by_encoder[0], strict=False):
            own = numbers == number
            self._starts[own] = first + shard.offsets[within[own]]
            self._lengths[own] = shard.regions.lengths[within[own]]
        if complete and not self._lengths.all():
            missing = image_id[self._lengths.argmin()]
            raise IntegrityError(
                f"image {missing} has no regions in {by_encoder[0][0].path.parent}; run ingest again, without it"
            )

    def __len__(self) -> int:
        return len(self._starts)

    def packed(self, rows: np.ndarray) -> PackedRegions:
        """The regions of the images `rows` (k,), in that order."""
        lengths = self._lengths[rows]
        places = runs(self._starts[rows], lengths)
        features = np.hstack([to_float32(own[places]) for own in self._features])
        return PackedRegions(features, self._boxes[places], self._scores[places], offsets_of(lengths))


def _open(manifest: Manifest, folders: Mapping[str, Path], number: int) -> list[RegionShard]:
    """Shard `number` of every encoder."""
    shards = [open_regions(manifest, folder, number, name) for name, folder in folders.items()]
    first = shards[0]
    for shard in shards:
        if not np.array_equal(first["boxes"], shard["boxes"]) or not np.array_equal(first.offsets, shard.offsets):
            raise IntegrityError(f"{first.path} and {shard.path} have different regions; extract them again")
    return shards
