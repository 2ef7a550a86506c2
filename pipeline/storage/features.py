"""Feature shards: files with the arrays `features` (n, dim) and `image_id` (n,).

While features are computed, each finished part of a shard is stored, except the last part, with which the whole shard
is written. After a killed job, only the parts that were not stored yet are computed again.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.compute.lazy_rows import Chained, ChosenRows
from pipeline.errors import InputError, IntegrityError
from pipeline.storage.batch import remove_own, sweep
from pipeline.storage.commit import Commit, Commits, Provenance, commit_path
from pipeline.storage.json_files import Json
from pipeline.storage.manifest import Manifest
from pipeline.storage.parameters import origin_of
from pipeline.storage.shards import FEATURES, OpenedOnUse, Shard, shard_path, write_shard

PART = "features-part"
PARTS = re.compile(r"\d{7}\.h5(\.json)?")
"""Pattern of the file names in the folder of the parts."""


class UnfinishedShard:
    """A feature shard that is being computed. Its parts of `part_rows` images each are stored in `<path>.parts`.

    `image_id` (n,) are the images of the shard. Parts that an earlier process stored with the same provenance and rows
    are used again. `missing` lists the row ranges of all other parts. If all parts are stored, `missing` lists the last
    part, which is then computed again. The last missing part is not stored separately but goes directly into the
    published shard.
    """

    def __init__(self, path: Path, provenance: Provenance, image_id: np.ndarray, part_rows: int) -> None:
        self.path = Path(path)
        self.provenance = provenance
        self.image_id = image_id
        self.folder = _parts_of(self.path)
        self._parts = [
            range(start, min(start + part_rows, len(image_id))) for start in range(0, len(image_id), part_rows)
        ]
        self._made: dict[range, tuple[Mapping[str, np.ndarray], Mapping[str, Any]]] = {}
        sweep(self.folder)
        commits = Commits(self.folder)
        stored = [commits.is_done(commit_path(self._file(rows)), self._provenance_of(rows)) for rows in self._parts]
        self.missing = [rows for rows, done in zip(self._parts, stored, strict=True) if not done] or self._parts[-1:]

    def keep(self, rows: range, arrays: Mapping[str, np.ndarray], details: Mapping[str, Json] | None = None) -> None:
        """Keep the finished part with these `rows` in memory, and also store it unless it is the last missing part.

        `arrays` has `features` (len(rows), dim) in the dtype in which they are stored. A part of a region shard has
        the arrays and details that UnfinishedRegions describes. Other parts need no `details`.
        """
        self._made[rows] = arrays, details or {}
        if rows != self.missing[-1]:
            provenance = self._provenance_of(rows)
            write_shard(self._file(rows), PART, arrays, rows=len(rows), provenance=provenance, details=details)

    def publish(self, details: Mapping[str, Json]) -> Commit:
        """Write the complete shard with its commit record, and then remove its parts.

        `details` are noted in the record, next to the dimension of the features.
        """
        features = np.concatenate([arrays["features"] for arrays, _ in self._all()])
        commit = write_features(self.path, features, self.image_id, self.provenance, details)
        remove_unfinished(self.path)
        return commit

    def _all(self) -> list[tuple[Mapping[str, np.ndarray] | Shard, Mapping[str, Any]]]:
        """Return the arrays and the details of all parts. The parts of an earlier process are read from disk."""
        shards = {rows: Shard(self._file(rows), PART) for rows in self._parts if rows not in self._made}
        return [self._made.get(rows) or (shards[rows], shards[rows].details) for rows in self._parts]

    def _file(self, rows: range) -> Path:
        return self.folder / f"{rows.start:07d}.h5"

    def _provenance_of(self, rows: range) -> Provenance:
        """Return the provenance of the part with these `rows`."""
        return Provenance(self.folder, PART, 1, {"rows": [rows.start, rows.stop], "of": self.provenance.fingerprint})


def remove_unfinished(path: Path) -> None:
    """Remove the parts of the published shard `path`. A process that is killed just after publishing leaves them."""
    remove_own(_parts_of(Path(path)), PARTS)


def has_unfinished(path: Path) -> bool:
    """Return whether work on the shard `path` has begun: the folder of its parts or its commit record exists. The
    result is also true for a finished shard."""
    return _parts_of(path).is_dir() or commit_path(path).exists()


def _parts_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.parts")


def write_features(
    path: Path, features: np.ndarray, image_id: np.ndarray, provenance: Provenance, details: Mapping[str, Json]
) -> Commit:
    """Write a complete feature shard with its commit record: `features` (n, dim) of the images `image_id` (n,).

    `details` are noted in the record, next to the dimension of the features.
    """
    arrays = {"features": features, "image_id": image_id}
    details = {"dim": features.shape[1], **details}
    return write_shard(path, FEATURES, arrays, rows=len(features), provenance=provenance, details=details)


def to_stored(features: np.ndarray, dtype: str, names: Sequence[str], key: str = "extract.storage") -> np.ndarray:
    """Convert features (n, dim) from float32 to the stored `dtype`.

    `names` are the names of the n images or texts. Raises InputError that names the first image or text whose features
    cannot be stored: they are not finite, they overflow in this type, or the largest of them is not zero but smaller
    than the smallest normal number of this type. In the last two cases, the message also names `key`, the configuration
    key that chooses the type.
    """
    if len(bad := np.flatnonzero(~np.isfinite(features).all(axis=1))):
        raise InputError(
            f"The features of {names[bad[0]]} are not finite (NaN or infinity). Download the encoder's weights again."
        )
    with np.errstate(over="ignore", under="ignore"):
        stored = features.astype(dtype)
    largest = np.abs(features).max(axis=1, initial=0)
    fits = np.isfinite(stored).all(axis=1) & ((largest == 0) | (largest >= np.finfo(dtype).tiny))
    if not fits.all():
        row = np.flatnonzero(~fits)[0]
        raise InputError(
            f"The features of {names[row]} are too large or too small for {dtype} (the largest absolute"
            f" value is {largest[row]:.3g}). Set {key} to float32, or check the weights of the encoder or the file of"
            " the vectors."
        )
    return stored


# --- reading


class Features:
    """The feature shards of a manifest: the files `shard-00000.h5` and so on in the folder `folder_of(encoder)`.

    For each encoder, the shard that was opened last stays open.
    """

    def __init__(self, manifest: Manifest, folder_of: Callable[[str], Path]) -> None:
        self.manifest = manifest
        self.folder_of = folder_of
        self._computed: dict[str, tuple[Path, str]] = {}
        self._last: dict[str, tuple[int, Shard]] = {}

    def open(self, encoder: str, number: int) -> Shard:
        """Open the shard `number` of `encoder`.

        Raises IntegrityError if the shard is missing or damaged, or if it was computed in another precision than the
        first shard of this encoder that was opened.
        """
        if self._last.get(encoder, (None,))[0] == number:
            return self._last[encoder][1]
        shard = Shard(shard_path(self.folder_of(encoder), number), FEATURES)
        precision = shard.details.get("encoder", {}).get("precision", "their own")
        path, first = self._computed.setdefault(encoder, (shard.path, precision))
        if precision != first:
            raise IntegrityError(
                f"{shard.path} was computed in {precision} and {path} in {first}, because precision auto depends on"
                " the machine. Set extract.precision in the configuration, and extract the features again with"
                " `jointspace run CONFIG`."
            )
        self._last[encoder] = number, shard
        return shard


class FeatureRows(ChosenRows):
    """One encoder's features (n, dim) of the images `image_id` (n,). `rows[[3, 1]]` reads only these two images.

    `origin` names the source of the features: {"encoder": digest} for a stored encoder, or {"imported": fingerprint}
    for precomputed features. Raises IntegrityError if a shard is missing or was changed, or if it was computed in
    another precision than the other shards.
    """

    def __init__(self, features: Features, encoder: str, image_id: np.ndarray) -> None:
        manifest = features.manifest
        parts = OpenedOnUse(manifest.n_shards, lambda number: features.open(encoder, number)["features"])
        super().__init__(Chained(parts, bounds=manifest.bounds("images")), image_id)
        self.origin = origin_of(features.open(encoder, 0).commit)
