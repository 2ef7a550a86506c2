"""Region shards: the regions of all images of a shard, one after another.

`features` (total, dim), `boxes` (total, 4) float32 x1, y1, x2, y2 in original pixels, `scores` (total,) float32,
`offsets` (n + 1,) int64 and `image_id` (n,) int64: image i has the rows [offsets[i], offsets[i + 1]), the first of
which is the whole image. An unreadable image has no rows; its commit's `rejects` give the reason.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import InputError, RejectLimitError, UsageError
from pipeline.precision import to_float32
from pipeline.ragged import Ragged, offsets_of
from pipeline.storage.batch import remove_own
from pipeline.storage.commit import Commit, Provenance
from pipeline.storage.features import PART, PARTS, UnfinishedShard
from pipeline.storage.files import is_there
from pipeline.storage.manifest import Manifest, ShardRows
from pipeline.storage.parameters import read_parameters
from pipeline.storage.shards import Shard, shard_path, write_shard

REGIONS = "regions"
CLASSIFIER = "classifier"
COLUMNS = ("features", "boxes", "scores")

log = logging.getLogger(__name__)


def read_box_files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of the file `path`, or of each file in the folder `path` except hidden ones, ordered by name."""
    path = Path(path)
    files = sorted(file for file in path.iterdir() if not file.name.startswith(".")) if path.is_dir() else [path]
    for file in files:
        try:
            yield str(file), file.read_bytes()
        except OSError as error:
            raise InputError(f"cannot read the boxes {file} ({error.strerror}); give a file or a folder") from error


@dataclass(frozen=True)
class PackedRegions(Ragged):
    """Regions of n images: `features` (total, dim), `boxes` (total, 4), `scores` (total,), `offsets` (n + 1,)."""

    features: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    offsets: np.ndarray


class UnfinishedRegions(UnfinishedShard):
    """A region shard in the making, of which a kill loses at most one part."""

    kind = REGIONS

    def write_part(
        self,
        rows: range,
        arrays: Mapping[str, np.ndarray],
        faults: Mapping[int, str],
        names: Sequence[str],
        counts: Mapping[str, int],
    ) -> None:
        """Publish a part: `features`, `boxes` and `scores` of all regions of the images `rows`, and their `lengths`.

        `faults` says why images have no regions, by their place in the part; `names` are those of all its images;
        `counts` are numbers of proposals by outcome.
        """
        ids = self.image_id[rows.start : rows.stop]
        rejects = [{"image_id": int(ids[i]), "name": names[i], "reason": faults[i]} for i in sorted(faults)]
        details = {"rejects": rejects, "counts": dict(counts)}
        write_shard(self._file(rows), PART, arrays, rows=len(rows), provenance=self._of(rows), details=details)

    def publish(self, details: Mapping[str, Any]) -> Commit:
        """Publish the shard from its parts, then remove them."""
        parts = [Shard(self._file(rows), PART) for rows in self._parts]
        # A part whose images are all unreadable has no dimension.
        known = [part for part in parts if len(part["scores"])] or parts[:1]
        arrays = {name: np.concatenate([part[name] for part in known]) for name in COLUMNS}
        lengths = np.concatenate([part["lengths"] for part in parts])
        arrays |= {"offsets": offsets_of(lengths), "image_id": self.image_id}
        counts = sum((Counter(part.details["counts"]) for part in parts), Counter())
        rejects = [reject for part in parts for reject in part.details["rejects"]]
        details = {"dim": arrays["features"].shape[1], "counts": counts, "rejects": rejects, **details}
        about = {"rows": len(lengths), "provenance": self.provenance, "details": details}
        commit = write_shard(self.path, REGIONS, arrays, **about)
        remove_own(self.folder, PARTS)
        return commit


def require_few_rejects(path: Path, commit: Commit, limit: float) -> None:
    """Raises RejectLimitError if more than the share `limit` of a published shard's images have no regions."""
    if not (rejects := commit.details["rejects"]):
        return
    first = f"{rejects[0]['name']}: {rejects[0]['reason']}"
    message = f"{path}: {len(rejects)} of {commit.rows} images have no regions ({first})"
    if len(rejects) > limit * commit.rows:
        raise RejectLimitError(f"{message}; run ingest again, or raise collection.reject_limit")
    log.warning("%s", message)


def read_classifier(folder: Path) -> dict[str, np.ndarray]:
    """`weight` and `bias` of the classifier in an encoder's folder. Raises UsageError if there is none."""
    path = Path(folder) / "classifier.safetensors"
    if not is_there(path):
        raise UsageError(f"{folder} has no classifier: regions.score classifier is for encoders that finetune made")
    parameters = read_parameters(path, CLASSIFIER)
    return dict(parameters.tensors)


def manifest_boxes(manifest: Manifest, rows: ShardRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The manifest's boxes of one shard: the images' places in the shard (n,), corners (n, 4), scores (n,)."""
    part = manifest.table("boxes", rows.number)
    corners = np.stack([part[name].to_numpy() for name in ("x1", "y1", "x2", "y2")], axis=1)
    return part["image_id"].to_numpy() - rows.first_image, corners, part["score"].to_numpy()


class RegionShard(Shard):
    """A published region shard."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, REGIONS)
        self.offsets, self.image_id = np.asarray(self["offsets"]), np.asarray(self["image_id"])
        self.regions = PackedRegions(*(self[name] for name in COLUMNS), self.offsets)

    def packed(self, images: np.ndarray) -> PackedRegions:
        """The regions of `images` (n,), places in `image_id` in any order, with features as float32."""
        block = self.regions.take(images)
        return replace(block, features=to_float32(block.features))

    def with_features(
        self, path: Path, features: np.ndarray, provenance: Provenance, details: Mapping[str, Any]
    ) -> Commit:
        """Publish the same regions with other `features` (total, dim); `details` override this shard's."""
        own = {name: self[name] for name in ("boxes", "scores", "offsets", "image_id")}
        details = {**self.details, "dim": features.shape[1], **details}
        arrays = {"features": features, **own}
        return write_shard(path, REGIONS, arrays, rows=self.rows, provenance=provenance, details=details)


def open_regions(folder: Path, number: int) -> RegionShard:
    """Shard `number` of `folder`."""
    return RegionShard(shard_path(folder, number))
