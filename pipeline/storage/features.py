"""Features of images and of their regions, in shards that are written part by part, so that a killed job loses at most
one part.

A feature shard has `features` (n, dim) and `image_id` (n,). A region shard has the regions of all its images, one after
another: `features` (total, dim), `boxes` (total, 4) float32 x1, y1, x2, y2 in original pixels, `scores` (total,)
float32, `offsets` (n + 1,) int64 and `image_id` (n,): image i has the rows [offsets[i], offsets[i + 1]), the first of
which is the whole image. An unreadable image has no rows; its commit's `rejects` give the reason.
"""

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pipeline.errors import InputError, IntegrityError, RejectLimitError
from pipeline.precision import to_float32
from pipeline.ragged import Ragged, offsets_of, runs
from pipeline.storage.batch import remove_own, sweep
from pipeline.storage.commit import Commit, Commits, Provenance, commit_path
from pipeline.storage.manifest import Manifest, ShardRows
from pipeline.storage.parameters import origin_of
from pipeline.storage.shards import FEATURES, REGIONS, Chained, OpenedOnUse, Shard, shard_path, write_shard

COLUMNS = ("features", "boxes", "scores")
PART = "features-part"
PARTS = re.compile(r"\d{7}\.h5(\.json)?")  # files in the folder of a shard's parts

log = logging.getLogger(__name__)


# --- writing


class UnfinishedShard:
    """A feature shard of the images `image_id` (n,), of which `part_rows` at a time are written to `<path>.parts`.

    Parts that an earlier process published of the same provenance and rows are kept; `missing` are the rows of the
    others, at least one, the last of which goes into the shard at once.
    """

    def __init__(self, path: Path, provenance: Provenance, image_id: np.ndarray, part_rows: int) -> None:
        self.path, self.provenance, self.image_id = Path(path), provenance, image_id
        self.folder = _parts_of(self.path)
        self._parts = [
            range(start, min(start + part_rows, len(image_id))) for start in range(0, len(image_id), part_rows)
        ]
        self._made: dict[range, tuple[Mapping[str, np.ndarray], Mapping[str, Any]]] = {}
        sweep(self.folder)
        commits = Commits(self.folder)
        there = [commits.is_done(commit_path(self._file(rows)), self._of(rows)) for rows in self._parts]
        self.missing = [rows for rows, done in zip(self._parts, there, strict=True) if not done] or self._parts[-1:]

    def keep(self, rows: range, arrays: Mapping[str, np.ndarray], details: Mapping[str, Any] | None = None) -> None:
        """Keep a part: the arrays of the images `rows`, `features` (len(rows), dim) in their stored dtype, and what
        UnfinishedRegions says of its own."""
        self._made[rows] = arrays, details or {}
        if rows != self.missing[-1]:
            write_shard(self._file(rows), PART, arrays, rows=len(rows), provenance=self._of(rows), details=details)

    def publish(self, details: Mapping[str, Any]) -> Commit:
        """Publish the shard, then remove its parts."""
        features = np.concatenate([arrays["features"] for arrays, _ in self._all()])
        commit = write_features(self.path, features, self.image_id, self.provenance, details)
        remove_unfinished(self.path)
        return commit

    def _all(self) -> list[tuple[Mapping[str, np.ndarray] | Shard, Mapping[str, Any]]]:
        """The arrays and details of all parts, of which those of an earlier process are read."""
        shards = {rows: Shard(self._file(rows), PART) for rows in self._parts if rows not in self._made}
        return [self._made.get(rows) or (shards[rows], shards[rows].details) for rows in self._parts]

    def _file(self, rows: range) -> Path:
        return self.folder / f"{rows.start:07d}.h5"

    def _of(self, rows: range) -> Provenance:
        """What makes the part of `rows`."""
        return Provenance(self.folder, PART, 1, {"rows": [rows.start, rows.stop], "of": self.provenance.fingerprint})


class UnfinishedRegions(UnfinishedShard):
    """A region shard in the making. A part has `features`, `boxes` and `scores` of all regions of its images, and their
    `lengths`; its details are `counts` of proposals by outcome, and `rejects`, the images without regions."""

    def publish(self, details: Mapping[str, Any]) -> Commit:
        """Publish the shard, then remove its parts."""
        parts = self._all()
        # A part whose images are all unreadable has no dimension.
        described = [arrays for arrays, _ in parts if len(arrays["scores"])] or [parts[0][0]]
        arrays = {name: np.concatenate([part[name] for part in described]) for name in COLUMNS}
        lengths = np.concatenate([part["lengths"] for part, _ in parts])
        arrays |= {"offsets": offsets_of(lengths), "image_id": self.image_id}
        counts = sum((Counter(about["counts"]) for _, about in parts), Counter())
        rejects = [reject for _, about in parts for reject in about["rejects"]]
        details = {"dim": arrays["features"].shape[1], "counts": counts, "rejects": rejects, **details}
        about = {"rows": len(lengths), "provenance": self.provenance, "details": details}
        commit = write_shard(self.path, REGIONS, arrays, **about)
        remove_unfinished(self.path)
        return commit


def remove_unfinished(path: Path) -> None:
    """Remove the parts of the published shard `path`; a kill just after its publication leaves them behind."""
    remove_own(_parts_of(Path(path)), PARTS)


def has_unfinished(path: Path) -> bool:
    """Whether there is, or was, work on the shard `path`."""
    return _parts_of(path).is_dir() or commit_path(path).exists()


def _parts_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.parts")


def write_features(
    path: Path, features: np.ndarray, image_id: np.ndarray, provenance: Provenance, details: Mapping[str, Any]
) -> Commit:
    """Publish a whole feature shard."""
    arrays, details = {"features": features, "image_id": image_id}, {"dim": features.shape[1], **details}
    return write_shard(path, FEATURES, arrays, rows=len(features), provenance=provenance, details=details)


def to_stored(features: np.ndarray, dtype: str, names: Sequence[str], key: str = "extract.storage") -> np.ndarray:
    """Features (n, dim) float32 as `dtype`. Raises InputError naming the first image whose features are not finite, or
    do not fit it, and the `key` of the configuration that chooses another."""
    if len(bad := np.flatnonzero(~np.isfinite(features).all(axis=1))):
        raise InputError(f"the features of {names[bad[0]]} are not finite; check the encoder's weights")
    with np.errstate(over="ignore", under="ignore"):
        stored = features.astype(dtype)
    largest = np.abs(features).max(axis=1, initial=0)
    fits = np.isfinite(stored).all(axis=1) & ((largest == 0) | (largest >= np.finfo(dtype).tiny))
    if not fits.all():
        row = np.flatnonzero(~fits)[0]
        raise InputError(
            f"the features of {names[row]} do not fit {dtype} (the largest is {largest[row]:.3g});"
            f" set {key} to float32, or check the encoder's weights"
        )
    return stored


def require_few_rejects(path: Path, commit: Commit, limit: float) -> None:
    """Raises RejectLimitError if more than the share `limit` of a published shard's images have no regions."""
    if not (rejects := commit.details["rejects"]):
        return
    first = f"{rejects[0]['name']}: {rejects[0]['reason']}"
    message = f"{path}: {len(rejects)} of {commit.rows} images have no regions ({first})"
    if len(rejects) > limit * commit.rows:
        raise RejectLimitError(f"{message}; run ingest again, or raise collection.reject_limit")
    log.warning("%s", message)


# --- what a person brings, and what the manifest has


def read_box_files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of the file `path`, or of each file in the folder `path` except hidden ones, ordered by name."""
    path = Path(path)
    files = sorted(file for file in path.iterdir() if not file.name.startswith(".")) if path.is_dir() else [path]
    for file in files:
        try:
            yield str(file), file.read_bytes()
        except OSError as error:
            raise InputError(f"cannot read the boxes {file} ({error.strerror}); give a file or a folder") from error


def manifest_boxes(manifest: Manifest, rows: ShardRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The manifest's boxes of one shard: the images' places in the shard (n,), corners (n, 4), scores (n,)."""
    part = manifest.table("boxes", rows.number)
    corners = np.stack([part[name].to_numpy() for name in ("x1", "y1", "x2", "y2")], axis=1)
    return part["image_id"].to_numpy() - rows.first_image, corners, part["score"].to_numpy()


# --- reading


class Features:
    """The feature shards `<root>/<encoder>/shard-00000.h5` of a manifest; the last of each encoder stays open."""

    def __init__(self, manifest: Manifest, root: Path) -> None:
        self.manifest, self.root = manifest, Path(root)
        self._computed: dict[str, tuple[Path, str]] = {}
        self._last: dict[str, tuple[int, Shard]] = {}

    def open(self, encoder: str, number: int) -> Shard:
        """Shard `number` of `encoder`. Raises IntegrityError where two shards were computed in different precisions."""
        if self._last.get(encoder, (None,))[0] == number:
            return self._last[encoder][1]
        shard = Shard(shard_path(self.root / encoder, number), FEATURES)
        precision = shard.details.get("encoder", {}).get("precision", "their own")
        path, first = self._computed.setdefault(encoder, (shard.path, precision))
        if precision != first:
            raise IntegrityError(
                f"{shard.path} was computed in {precision} and {path} in {first}, since precision auto depends on the"
                " machine; set extract.precision and run extract again"
            )
        self._last[encoder] = number, shard
        return shard


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


@dataclass(frozen=True)
class PackedRegions(Ragged):
    """Regions of n images: `features` (total, dim), `boxes` (total, 4), `scores` (total,), `offsets` (n + 1,)."""

    features: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    offsets: np.ndarray


class RegionShard(Shard):
    """A published region shard."""

    kind: ClassVar[str] = REGIONS

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.offsets, self.image_id = np.asarray(self["offsets"]), np.asarray(self["image_id"])
        self.regions = PackedRegions(*(self[name] for name in COLUMNS), self.offsets)

    def packed(self, images: np.ndarray) -> PackedRegions:
        """The regions of `images` (n,), places in `image_id` in any order, with features as float32."""
        block = self.regions.take(images)
        return replace(block, features=to_float32(block.features))


def open_regions(folder: Path, number: int) -> RegionShard:
    """Shard `number` of `folder`."""
    return RegionShard(shard_path(folder, number))


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
        opened = {number: _open_alike(folders, number) for number in np.unique(numbers).tolist()}
        by_encoder = dict(zip(folders, zip(*opened.values(), strict=True), strict=True))
        self.encoders = {name: origin_of(shards[0].commit) for name, shards in by_encoder.items()}
        self._features = [Chained([shard["features"] for shard in shards]) for shards in by_encoder.values()]
        self.dims = tuple(features.shape[1] for features in self._features)
        first = next(iter(by_encoder.values()))
        self._boxes, self._scores = (Chained([shard[name] for shard in first]) for name in ("boxes", "scores"))
        self._starts, self._lengths = np.empty((2, len(image_id)), np.int64)
        for number, start, shard in zip(opened, self._scores.bounds, first, strict=False):
            here = numbers == number
            self._starts[here] = start + shard.offsets[within[here]]
            self._lengths[here] = shard.regions.lengths[within[here]]
        if complete and not self._lengths.all():
            missing, folder = image_id[self._lengths.argmin()], first[0].path.parent
            raise IntegrityError(f"image {missing} has no regions in {folder}; run ingest again, without it")

    def __len__(self) -> int:
        return len(self._starts)

    def packed(self, rows: np.ndarray) -> PackedRegions:
        """The regions of the images `rows` (k,), in that order."""
        lengths = self._lengths[rows]
        places = runs(self._starts[rows], lengths)
        features = np.hstack([to_float32(chained[places]) for chained in self._features])
        return PackedRegions(features, self._boxes[places], self._scores[places], offsets_of(lengths))


def _open_alike(folders: Mapping[str, Path], number: int) -> list[RegionShard]:
    """Shard `number` of each encoder, whose regions have to be the same."""
    shards = [open_regions(folder, number) for folder in folders.values()]
    first = shards[0]
    for shard in shards:
        if not np.array_equal(first["boxes"], shard["boxes"]) or not np.array_equal(first.offsets, shard.offsets):
            raise IntegrityError(f"{first.path} and {shard.path} have different regions; extract them again")
    return shards
