"""Feature shards, written part by part so that a killed job loses at most one part; and foreign weights files."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import InputError
from pipeline.storage.batch import remove_own, sweep
from pipeline.storage.commit import Commit, Commits, Provenance, commit_path
from pipeline.storage.shards import FEATURES, Shard, write_shard

PART = "features-part"
PARTS = re.compile(r"\d{7}\.h5(\.json)?")  # files in the folder of a shard's parts


class UnfinishedShard:
    """A feature shard of the images `image_id` (n,) that is written `part_rows` images at a time, to `<path>.parts`.

    Parts that an earlier process published of the same provenance and rows are kept; `missing()` lists the others.
    """

    kind = FEATURES

    def __init__(self, path: Path, provenance: Provenance, image_id: np.ndarray, part_rows: int) -> None:
        self.path = Path(path)
        self.folder = _parts_of(self.path)
        self.provenance, self.image_id, n = provenance, image_id, len(image_id)
        self._parts = [range(start, min(start + part_rows, n)) for start in range(0, n, part_rows)]

    def missing(self) -> list[range]:
        """The ranges of rows that are not yet written."""
        sweep(self.folder)
        return [rows for rows in self._parts if not is_unfinished(self._file(rows), self._of(rows))]

    def write(self, rows: range, features: np.ndarray) -> None:
        """Publish a part: the `features` (len(rows), dim) of `rows`, in their stored dtype."""
        arrays = {"features": features, "image_id": self.image_id[rows.start : rows.stop]}
        write_shard(self._file(rows), PART, arrays, rows=len(rows), provenance=self._of(rows))

    def publish(self, details: Mapping[str, Any]) -> Commit:
        """Publish the shard from its parts, then remove them."""
        features = np.concatenate([Shard(self._file(rows), PART)["features"] for rows in self._parts])
        commit = write_features(self.path, features, self.image_id, self.provenance, details)
        remove_own(self.folder, PARTS)
        return commit

    def _file(self, rows: range) -> Path:
        return self.folder / f"{rows.start:07d}.h5"

    def _of(self, rows: range) -> Provenance:
        """What makes the part of `rows`."""
        return Provenance(self.folder, PART, 1, {"rows": [rows.start, rows.stop], "of": self.provenance.fingerprint})


def is_unfinished(path: Path, provenance: Provenance) -> bool:
    """Whether what a killed job has left at `path` is whole, and of the same work."""
    return Commits(provenance.root).is_done(commit_path(path), provenance)


def remove_unfinished(path: Path) -> None:
    """Remove the parts of the published shard `path`, which a kill just after its publication left behind."""
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
    limits = np.finfo(dtype)
    fits = np.isfinite(stored).all(axis=1) & ((largest == 0) | (largest >= limits.tiny))
    if not fits.all():
        row = np.flatnonzero(~fits)[0]
        raise InputError(
            f"the features of {names[row]} do not fit {dtype} (the largest is {largest[row]:.3g});"
            f" set {key} to float32, or check the encoder's weights"
        )
    return stored


def read_weights(path: Path, sha256: str | None) -> tuple[bytes, str]:
    """The bytes of a weights file and their SHA-256. Raises InputError if that is not `sha256` (None: not known)."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read the weights {path} ({error.strerror}); put the file there or change weights_root or `file`"
        ) from error
    found = hashlib.sha256(data).hexdigest()
    if sha256 is not None and found != sha256.lower():
        raise InputError(f"the sha256 of {path} is {found}, not {sha256}; get the right file or correct `sha256`")
    return data, found
