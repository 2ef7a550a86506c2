"""Region shards: the regions of all images of a shard, one after another.

`features` (total, dim), `boxes` (total, 4) float32 x1, y1, x2, y2 in original pixels, `scores` (total,) float32,
`offsets` (n + 1,) int64 and `image_id` (n,) int64: image i has the rows [offsets[i], offsets[i + 1]), the first of
which is the whole image. An unreadable image has no rows; the sidecar's `rejects` give the reason.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import InputError, IntegrityError, RejectLimitError, UsageError
from pipeline.precision import to_float32
from pipeline.ragged import Ragged, divides, offsets_of
from pipeline.storage.atomic import Sidecar
from pipeline.storage.batch import remove_own
from pipeline.storage.features import PART, PARTS, UnfinishedShard
from pipeline.storage.fingerprint import require_same
from pipeline.storage.gather import require_encoder_name
from pipeline.storage.manifest import Manifest, ShardRows
from pipeline.storage.parameters import read_parameters
from pipeline.storage.reading import is_there
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
        write_shard(self._file(rows), PART, arrays, rows=len(rows), fingerprint=self._digest(rows), details=details)

    def publish(self, details: Mapping[str, Any]) -> Sidecar:
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
        about = {"rows": len(lengths), "fingerprint": self.fingerprint, "details": details}
        sidecar = write_shard(self.path, REGIONS, arrays, **about)
        remove_own(self.folder, PARTS)
        return sidecar


def require_few_rejects(path: Path, sidecar: Sidecar, limit: float) -> None:
    """Raises RejectLimitError if more than the share `limit` of a published shard's images have no regions."""
    if not (rejects := sidecar.details["rejects"]):
        return
    first = f"{rejects[0]['name']}: {rejects[0]['reason']}"
    message = f"{path}: {len(rejects)} of {sidecar.rows} images have no regions ({first})"
    if len(rejects) > limit * sidecar.rows:
        raise RejectLimitError(f"{message}; run ingest again, or raise collection.reject_limit")
    log.warning("%s", message)


def read_classifier(folder: Path, encoder: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """`weight` and `bias` of the classifier in an encoder's folder, and its fingerprint.

    Raises UsageError if there is none, and IntegrityError if it belongs to an encoder of another fingerprint.
    """
    path = Path(folder) / "classifier.safetensors"
    if not is_there(path):
        raise UsageError(f"{folder} has no classifier: regions.score classifier is for encoders that finetune made")
    parameters = read_parameters(path, CLASSIFIER)
    require_same("encoder", {str(folder): encoder, str(path): parameters.settings["encoder"]})
    return dict(parameters.tensors), {"classifier": parameters.fingerprint}


def manifest_boxes(manifest: Manifest, rows: ShardRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The manifest's boxes of one shard: the images' places in the shard (n,), corners (n, 4), scores (n,)."""
    part = manifest.table("boxes", rows.number)
    corners = np.stack([part[name].to_numpy() for name in ("x1", "y1", "x2", "y2")], axis=1)
    return part["image_id"].to_numpy() - rows.first_image, corners, part["score"].to_numpy()


class RegionShard(Shard):
    """A published region shard. Raises IntegrityError if its offsets do not fit its rows."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, REGIONS)
        self.offsets, self.image_id = np.asarray(self["offsets"]), np.asarray(self["image_id"])
        if not all(divides(self.offsets, len(self.image_id), len(self[name])) for name in COLUMNS):
            raise IntegrityError(f"{path}: its offsets do not fit its rows; run extract-regions again")
        self.regions = PackedRegions(*(self[name] for name in COLUMNS), self.offsets)

    def packed(self, images: np.ndarray) -> PackedRegions:
        """The regions of `images` (n,), places in `image_id` in any order, with features as float32."""
        block = self.regions.take(images)
        return replace(block, features=to_float32(block.features))

    def with_features(self, path: Path, features: np.ndarray, fingerprint: str, details: Mapping[str, Any]) -> Sidecar:
        """Publish the same regions with other `features` (total, dim); `details` override this shard's."""
        own = {name: self[name] for name in ("boxes", "scores", "offsets", "image_id")}
        details = {**self.details, "dim": features.shape[1], **details}
        arrays = {"features": features, **own}
        return write_shard(path, REGIONS, arrays, rows=self.rows, fingerprint=fingerprint, details=details)


def open_regions(manifest: Manifest, folder: Path, number: int, encoder: str | None = None) -> RegionShard:
    """Shard `number` of `folder`. Raises IntegrityError unless `encoder` (None: any) made it from these images."""
    shard = RegionShard(shard_path(folder, number))
    if encoder is not None:
        require_encoder_name(shard.path, shard.sidecar, encoder)
    if shard.details["inputs"]["images"] != manifest.shard(number).fingerprints["images"]:
        raise IntegrityError(f"{shard.path} was made from other images than the manifest's; extract it again")
    return shard
