"""Regions of images, with their features: shards, the boxes that people bring, and the rows of several encoders.

A region shard has the regions of all its images, one after another: `features` (total, dim), `boxes` (total, 4) float32
x1, y1, x2, y2 in original pixels, `scores` (total,) float32, `offsets` (n + 1,) int64 and `image_id` (n,): image i has
the rows [offsets[i], offsets[i + 1]), the first of which is the whole image. An unreadable image has no rows; its
commit's `rejects` give the reason.

`write_phrases` publishes noun phrases and regions of one split in a model's joint space, as two tables. A row of
`phrases.parquet` is a noun phrase of a sentence: `sentence_id`, `image_id`, its words `text`, its `head`, and `vector`
(c,) float32. A row of `regions.parquet` is a region: `image_id`, its `number` in the image (0 is the whole image),
`x1`, `y1`, `x2`, `y2` in original pixels, and `vector`. Both are ordered by image.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import numpy as np
import pyarrow as pa

from pipeline.compute.lazy_rows import Chained
from pipeline.compute.precision import to_float32
from pipeline.compute.ragged import Ragged, offsets_of, runs
from pipeline.errors import InputError, IntegrityError, RejectLimitError, too_many
from pipeline.foreign.files import read_lines
from pipeline.storage.commit import About, Commit, publish
from pipeline.storage.features import UnfinishedShard, remove_unfinished
from pipeline.storage.files import read_bytes
from pipeline.storage.json_files import Json
from pipeline.storage.manifest import Manifest, ShardRows
from pipeline.storage.parameters import origin_of
from pipeline.storage.shards import REGIONS, Shard, shard_path, write_shard
from pipeline.storage.tables import CORNERS, PackedTable, read_table, to_parquet

COLUMNS = ("features", "boxes", "scores")

log = logging.getLogger(__name__)


class UnfinishedRegions(UnfinishedShard):
    """A region shard in the making. A part has `features`, `boxes` and `scores` of all regions of its images, and their
    `lengths`; its details are `counts` of proposals by outcome, and `rejects`, the images without regions."""

    def publish(self, details: Mapping[str, Json]) -> Commit:
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
        commit = write_shard(self.path, REGIONS, arrays, rows=len(lengths), provenance=self.provenance, details=details)
        remove_unfinished(self.path)
        return commit


def require_few_rejects(path: Path, commit: Commit, limit: float) -> None:
    """Raises RejectLimitError if more than the share `limit` of a published shard's images have no regions."""
    if not (rejects := commit.details["rejects"]):
        return
    first = f"{rejects[0]['name']}: {rejects[0]['reason']}"
    message = f"{path}: {len(rejects)} of {commit.rows} images have no regions ({first})"
    if too_many(len(rejects), commit.rows, limit):
        raise RejectLimitError(f"{message}; run ingest again, or raise collection.reject_limit")
    log.warning("%s", message)


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


@dataclass(frozen=True)
class PackedRegions(Ragged):
    """Regions of n images: `features` (total, dim), `boxes` (total, 4), `scores` (total,), `offsets` (n + 1,)."""

    features: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    offsets: np.ndarray


class RegionShard(Shard):
    """A published region shard."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, REGIONS)
        self.offsets, self.image_id = np.asarray(self["offsets"]), np.asarray(self["image_id"])
        self.regions = PackedRegions(self["features"], self["boxes"], self["scores"], self.offsets)

    def packed(self, images: np.ndarray) -> PackedRegions:
        """The regions of `images` (n,), places in `image_id` in any order, with features as float32."""
        block = self.regions.take(images)
        return replace(block, features=to_float32(block.features))


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
    shards = [RegionShard(shard_path(folder, number)) for folder in folders.values()]
    first = shards[0]
    for shard in shards:
        if not np.array_equal(first["boxes"], shard["boxes"]) or not np.array_equal(first.offsets, shard.offsets):
            raise IntegrityError(f"{first.path} and {shard.path} have different regions; extract them again")
    return shards


# --- noun phrases and regions in a joint space

PHRASES_TABLE = "phrases.parquet"
REGIONS_TABLE = "regions.parquet"
EMBEDDED_PHRASES = "embedded-phrases"
"""The kind of the artefact that has both tables."""


def write_phrases(folder: Path, regions: pa.Table, phrases: pa.Table, **about: Unpack[About]) -> None:
    """Publish both tables together; `about` has the `provenance` and `details`."""
    beside = {REGIONS_TABLE: to_parquet(regions)}
    path = Path(folder) / PHRASES_TABLE
    publish(path, to_parquet(phrases), kind=EMBEDDED_PHRASES, rows=phrases.num_rows, beside=beside, **about)


class PhraseVectors:
    """The vectors that `embed-phrases` wrote for one `model` and `split`: the tables `regions` and `phrases` without
    their vectors, `region_vectors` (r, c), `phrase_vectors` (p, c), and `boxes` (r, 4).

    Raises IntegrityError if the tables are damaged.
    """

    def __init__(self, folder: Path) -> None:
        phrases, commit = read_table(Path(folder) / PHRASES_TABLE, EMBEDDED_PHRASES)
        regions = PackedTable(read_bytes(Path(folder) / REGIONS_TABLE), Path(folder) / REGIONS_TABLE).unpack()
        self.fingerprint, details = commit.digest, commit.details
        self.model, self.split = details["model"], details["split"]
        self.dim: int = details["dim"]
        self.region_vectors, self.phrase_vectors = (self._vectors(table) for table in (regions, phrases))
        self.regions, self.phrases = (table.drop_columns("vector") for table in (regions, phrases))
        self.boxes = np.stack([regions[name].to_numpy() for name in CORNERS], axis=1)

    def _vectors(self, table: pa.Table) -> np.ndarray:
        column = table["vector"].combine_chunks()
        return column.values.to_numpy().reshape(len(table), self.dim)


def read_names(path: Path) -> dict[str, frozenset[str]]:
    """Label -> its names, in lower case, from lines of a label, a tab, and names separated by commas.

    Raises InputError naming the file, or the first line of another form.
    """
    found = {}
    for number, line in enumerate(read_lines(path), start=1):
        label, tab, names = line.lower().partition("\t")
        known = frozenset(" ".join(name.split()) for name in names.split(",")) - {""}
        if line.strip() and not (tab and known):
            raise InputError(f"{path}, line {number}: write a label, a tab, and names separated by commas")
        if known:
            found[label.strip()] = known
    return found
