"""Rows of all shards of a manifest by their ids: features and regions through memory maps, sentences in memory."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pipeline.errors import IntegrityError
from pipeline.precision import to_float32
from pipeline.ragged import offsets_of, runs
from pipeline.storage.gather import Features, Matrix, stack_rows
from pipeline.storage.manifest import Manifest
from pipeline.storage.parameters import origin_of
from pipeline.storage.regions import PackedRegions, RegionShard, open_regions
from pipeline.storage.shards import Chained, OpenedOnUse
from pipeline.storage.text_shards import TextShards, TextVectors, TokenShards
from pipeline.storage.trees import FIELDS, TreeShards


class FeatureRows:
    """One encoder's features (n, dim) for the images `image_id` (n,): `rows[[3, 1]]` reads no other image.

    `origin` is what made them (pipeline.storage.parameters). Raises as `Features.open` does.
    """

    def __init__(self, features: Features, encoder: str, image_id: np.ndarray) -> None:
        manifest = features.manifest
        self.origin = origin_of(features.open(encoder, 0).commit)
        parts = OpenedOnUse(manifest.n_shards, lambda number: features.open(encoder, number)["features"])
        self._features, self._image_id = Chained(parts, bounds=manifest.bounds("images")), image_id
        self.shape = (len(image_id), self._features.shape[1])

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        return self._features[self._image_id[rows]]


class RegionRows:
    """The regions of the images `image_id` (n,), n at least 1: `rows.packed([3, 1])` reads no other image's.

    The features of several encoders stand side by side; `dims` are their dimensions, and `encoders` their origins
    (pipeline.storage.parameters). Raises IntegrityError if the encoders' regions differ, and, if `complete`, for an
    image without regions.
    """

    def __init__(
        self, manifest: Manifest, folders: Mapping[str, Path], image_id: np.ndarray, complete: bool = True
    ) -> None:
        numbers, within = np.divmod(image_id, manifest.shard_size)
        opened = {number: _open_regions(folders, number) for number in np.unique(numbers).tolist()}
        by_encoder = dict(zip(folders, zip(*opened.values(), strict=True), strict=True))
        self.encoders = {name: origin_of(shards[0].commit) for name, shards in by_encoder.items()}
        self._features = [Chained([shard["features"] for shard in shards]) for shards in by_encoder.values()]
        self.dims = tuple(features.shape[1] for features in self._features)
        first = next(iter(by_encoder.values()))
        self._boxes, self._scores = (Chained([shard[name] for shard in first]) for name in ("boxes", "scores"))
        self._starts, self._lengths = np.empty((2, len(image_id)), np.int64)
        for number, start, shard in zip(opened, self._scores.bounds, first, strict=False):
            own = numbers == number
            self._starts[own] = start + shard.offsets[within[own]]
            self._lengths[own] = shard.regions.lengths[within[own]]
        if complete and not self._lengths.all():
            missing, folder = image_id[self._lengths.argmin()], first[0].path.parent
            raise IntegrityError(f"image {missing} has no regions in {folder}; run ingest again, without it")

    def __len__(self) -> int:
        return len(self._starts)

    def packed(self, rows: np.ndarray) -> PackedRegions:
        """The regions of the images `rows` (k,), in that order."""
        lengths = self._lengths[rows]
        places = runs(self._starts[rows], lengths)
        features = np.hstack([to_float32(own[places]) for own in self._features])
        return PackedRegions(features, self._boxes[places], self._scores[places], offsets_of(lengths))


def _open_regions(folders: Mapping[str, Path], number: int) -> list[RegionShard]:
    shards = [open_regions(folder, number) for folder in folders.values()]
    first = shards[0]
    for shard in shards:
        if not np.array_equal(first["boxes"], shard["boxes"]) or not np.array_equal(first.offsets, shard.offsets):
            raise IntegrityError(f"{first.path} and {shard.path} have different regions; extract them again")
    return shards


class _TextRows:
    """All sentences by sentence_id, from `shards`."""

    def __init__(self, opened: TextShards) -> None:
        self.shards = [opened.open(number) for number in range(opened.manifest.n_shards)]


class TokenRows(_TextRows):
    """`ids` (total,) and `offsets` (m + 1,) of all sentences."""

    def __init__(self, manifest: Manifest, folder: Path | None) -> None:
        super().__init__(TokenShards(manifest, folder))
        self.ids = np.concatenate([shard.ids for shard in self.shards])
        self.offsets = offsets_of(np.concatenate([np.diff(shard.offsets) for shard in self.shards]))


class VectorRows(_TextRows):
    """`matrix` (m, d) of all sentences by one text encoder, whose `origin` is as that of FeatureRows."""

    def __init__(self, manifest: Manifest, folder: Path) -> None:
        super().__init__(TextVectors(manifest, folder))
        self.origin = origin_of(self.shards[0].commit)
        self.matrix: Matrix = stack_rows([shard.matrix for shard in self.shards])


class TreeRows(_TextRows):
    """All trees of one `kind`, as the packed arrays of pipeline.text.trees.Trees by name."""

    def __init__(self, kind: str, manifest: Manifest, folder: Path | None) -> None:
        super().__init__(TreeShards(manifest, folder))
        packed = [getattr(shard, kind) for shard in self.shards]
        self.trees = {name: np.concatenate([arrays[name] for arrays in packed]) for name in FIELDS}
        self.trees["offsets"] = offsets_of(np.concatenate([np.diff(arrays["offsets"]) for arrays in packed]))


def open_rows(view: str, manifest: Manifest, folder: Path) -> TokenRows | TreeRows:
    """All sentences as tokens or trees, from the folder of their shards."""
    if view.endswith("-trees"):
        return TreeRows(view.removesuffix("-trees"), manifest, folder)
    return TokenRows(manifest, folder)
