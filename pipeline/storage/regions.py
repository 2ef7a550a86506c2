"""Regions of images with their features: the shards of one encoder, and reading the shards of several encoders.

A region shard contains the regions of n images, one image after another. Its arrays are `features` (total, dim),
`boxes` (total, 4) float32 with x1, y1, x2, y2 in pixels of the original image, `scores` (total,) float32, `offsets`
(n + 1,) int64 and `image_id` (n,). Image i has the rows [offsets[i], offsets[i + 1]), and the first of them is the
whole image. An unreadable image has no rows, and the commit record gives the reason under `rejects`.

`write_phrases` writes the noun phrases and the regions of one split in a model's joint space, as two tables that are
sorted by image. A row of `phrases.parquet` is a noun phrase of a caption: `sentence_id`, `image_id`, its words `text`,
its `head`, and its `vector` (c,) float32. A row of `regions.parquet` is a region: `image_id`, its `number` in the image
(0 is the whole image), `x1`, `y1`, `x2`, `y2` in pixels of the original image, and its `vector`.
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
from pipeline.storage.files import REMEDY, read_bytes
from pipeline.storage.json_files import Json
from pipeline.storage.manifest import Manifest, ShardRows
from pipeline.storage.parameters import origin_of
from pipeline.storage.shards import REGIONS, Shard, shard_path, write_shard
from pipeline.storage.tables import CORNERS, PackedTable, read_table, to_parquet

COLUMNS = ("features", "boxes", "scores")

log = logging.getLogger(__name__)


class UnfinishedRegions(UnfinishedShard):
    """A region shard that is being computed, and whose finished parts are stored as files until it is complete.

    A part contains some images of the shard. Its arrays are `features`, `boxes` and `scores` of all regions of these
    images, and `lengths`, the number of regions of each image. Its details are `counts`, the numbers of proposed
    regions by outcome, and `rejects`, the images without regions.
    """

    def publish(self, details: Mapping[str, Json]) -> Commit:
        """Write the complete shard with its commit record, and then remove its parts.

        `details` are noted in the record, next to the dimension of the features and the details of all parts.
        """
        parts = self._all()
        # A part whose images are all unreadable is left out here, because its empty features do not have the dimension
        # of the others.
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
    """Raise RejectLimitError if more than the share `limit` of a published shard's images have no regions.

    A single image without regions is accepted unless `limit` is 0. `path` and `commit` are the file and the commit
    record of the shard. If images without regions are accepted, this logs a warning.
    """
    if not (rejects := commit.details["rejects"]):
        return
    first = f"{rejects[0]['name']}: {rejects[0]['reason']}"
    message = f"{path}: {len(rejects)} of {commit.rows} images have no regions ({first})"
    if too_many(len(rejects), commit.rows, limit):
        raise RejectLimitError(
            f"{message}. Repair or exclude these photos and run `jointspace run CONFIG`, or raise"
            " collection.reject_limit."
        )
    log.warning(
        "%s. Repair or exclude these photos if you need their regions, and run `jointspace run CONFIG`.", message
    )


def read_box_files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the path and the content of the file `path`, or of each file in the folder `path` in the order of names.

    Hidden files are ignored. Raises InputError if a file cannot be read.
    """
    path = Path(path)
    files = sorted(file for file in path.iterdir() if not file.name.startswith(".")) if path.is_dir() else [path]
    for file in files:
        try:
            yield str(file), file.read_bytes()
        except OSError as error:
            raise InputError(
                f"jointspace cannot read the boxes in {file} ({error.strerror}). Name a readable file, or a folder of"
                " files."
            ) from error


def manifest_boxes(manifest: Manifest, rows: ShardRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read the boxes of the images of one shard from the manifest. `rows` describes the shard.

    Returns for each of the n boxes the position of its image in the shard (n,), its corners x1, y1, x2, y2 in pixels
    (n, 4), and its score (n,).
    """
    table = manifest.table("boxes", rows.number)
    corners = np.stack([table[name].to_numpy() for name in CORNERS], axis=1)
    return table["image_id"].to_numpy() - rows.first_image, corners, table["score"].to_numpy()


@dataclass(frozen=True)
class PackedRegions(Ragged):
    """Regions of n images: `features` (total, dim), `boxes` (total, 4), `scores` (total,), `offsets` (n + 1,)."""

    features: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    offsets: np.ndarray


class RegionShard(Shard):
    """A published region shard of n images, open for reading.

    `regions` has the arrays of all regions, one image after another, as memory maps. The regions of the image
    `image_id[i]` are the rows [offsets[i], offsets[i + 1]) of these arrays.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, REGIONS)
        self.offsets = np.asarray(self["offsets"])
        self.image_id = np.asarray(self["image_id"])
        self.regions = PackedRegions(self["features"], self["boxes"], self["scores"], self.offsets)

    def packed(self, images: np.ndarray) -> PackedRegions:
        """Read the regions of some images of the shard, in the given order.

        `images` (k,) are the positions of these images in `image_id`. The features are converted to float32.
        """
        block = self.regions.take(images)
        return replace(block, features=to_float32(block.features))


class RegionRows:
    """The regions of the images with the ids `image_id` (n,). At least one id is needed.

    The constructor opens the shards, and `packed` reads regions. `folders` maps each encoder to the folder of its
    region shards. A region has the concatenated features of all encoders. `dims` has the dimension of the features of
    each encoder, and `encoders` maps each encoder to the origin of its features: {"encoder": digest}, or
    {"imported": fingerprint} for precomputed features. Raises IntegrityError if a shard is not valid, if the encoders
    do not have the same regions, and, with `complete`, if an image has no regions.
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
            missing = image_id[self._lengths.argmin()]
            folder = first[0].path.parent
            raise IntegrityError(
                f"The image with the id {missing} has no regions in {folder}. Repair this image or exclude it from the"
                " collection, and run `jointspace run CONFIG`."
            )

    def __len__(self) -> int:
        return len(self._starts)

    def packed(self, rows: np.ndarray) -> PackedRegions:
        """Read the regions of some images, in the given order. `rows` (k,) are the positions of these images in the
        `image_id` with which this object was constructed. The features are float32."""
        lengths = self._lengths[rows]
        regions = runs(self._starts[rows], lengths)
        features = np.hstack([to_float32(chained[regions]) for chained in self._features])
        return PackedRegions(features, self._boxes[regions], self._scores[regions], offsets_of(lengths))


def _open_alike(folders: Mapping[str, Path], number: int) -> list[RegionShard]:
    """Open the shard `number` of each encoder. Raises IntegrityError if the encoders have different boxes."""
    shards = [RegionShard(shard_path(folder, number)) for folder in folders.values()]
    first = shards[0]
    for shard in shards:
        if not np.array_equal(first["boxes"], shard["boxes"]) or not np.array_equal(first.offsets, shard.offsets):
            raise IntegrityError(f"{first.path} and {shard.path} have different regions. {REMEDY}")
    return shards


# --- noun phrases and regions in a joint space

PHRASES_TABLE = "phrases.parquet"
REGIONS_TABLE = "regions.parquet"
EMBEDDED_PHRASES = "embedded-phrases"
"""The kind of the artefact that consists of PHRASES_TABLE and REGIONS_TABLE."""


def write_phrases(folder: Path, regions: pa.Table, phrases: pa.Table, **about: Unpack[About]) -> None:
    """Write the tables `regions` and `phrases` into `folder`, with one commit record for both tables.

    `about` has the provenance and the details. PhraseVectors reads `model`, `split` and `dim` from the details.
    """
    beside = {REGIONS_TABLE: to_parquet(regions)}
    path = Path(folder) / PHRASES_TABLE
    publish(path, to_parquet(phrases), kind=EMBEDDED_PHRASES, rows=phrases.num_rows, beside=beside, **about)


class PhraseVectors:
    """The noun phrases and regions that `embed-phrases` has written for one `model` and one `split`.

    `regions` and `phrases` are the tables without their vectors. `region_vectors` (r, c) and `phrase_vectors` (p, c)
    are their vectors in the joint space of `dim` = c dimensions, and `boxes` (r, 4) are the corners of the regions.
    `fingerprint` is the digest of the commit record of both tables. Raises IntegrityError if the tables are damaged.
    """

    def __init__(self, folder: Path) -> None:
        phrases, commit = read_table(Path(folder) / PHRASES_TABLE, EMBEDDED_PHRASES)
        regions = PackedTable(read_bytes(Path(folder) / REGIONS_TABLE), Path(folder) / REGIONS_TABLE).unpack()
        self.fingerprint = commit.digest
        details = commit.details
        self.model = details["model"]
        self.split = details["split"]
        self.dim: int = details["dim"]
        self.region_vectors, self.phrase_vectors = (self._vectors(table) for table in (regions, phrases))
        self.regions, self.phrases = (table.drop_columns("vector") for table in (regions, phrases))
        self.boxes = np.stack([regions[name].to_numpy() for name in CORNERS], axis=1)

    def _vectors(self, table: pa.Table) -> np.ndarray:
        column = table["vector"].combine_chunks()
        return column.values.to_numpy().reshape(len(table), self.dim)


def read_names(path: Path) -> dict[str, frozenset[str]]:
    """Read the file that lists for each label of a box the names that captions use, and return the names by label.

    A line has a label, a tab, and names that are separated by commas. Labels and names are converted to lower case.
    Empty lines are ignored. Raises InputError if the file cannot be read, or if a line does not have this form.
    """
    found = {}
    for number, line in enumerate(read_lines(path), start=1):
        label, tab, names = line.lower().partition("\t")
        known = frozenset(" ".join(name.split()) for name in names.split(",")) - {""}
        if line.strip() and not (tab and known):
            raise InputError(
                f"{path}, line {number} must be a label, a tab, and names that are separated by commas, such as"
                " dog<TAB>dog, puppy. Correct the line."
            )
        if known:
            found[label.strip()] = known
    return found
