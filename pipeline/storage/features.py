"""Features of images: shards of `features` (n, dim) and `image_id` (n,), written part by part, so that a killed job
loses at most one part."""

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
PARTS = re.compile(r"\d{7}\.h5(\.json)?")  # files in the folder of a shard's parts


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

    def keep(self, rows: range, arrays: Mapping[str, np.ndarray], details: Mapping[str, Json] | None = None) -> None:
        """Keep a part: the arrays of the images `rows`, `features` (len(rows), dim) in their stored dtype, and what
        UnfinishedRegions says of its own."""
        self._made[rows] = arrays, details or {}
        if rows != self.missing[-1]:
            write_shard(self._file(rows), PART, arrays, rows=len(rows), provenance=self._of(rows), details=details)

    def publish(self, details: Mapping[str, Json]) -> Commit:
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
        """Return the provenance of the part with these `rows`."""
        return Provenance(self.folder, PART, 1, {"rows": [rows.start, rows.stop], "of": self.provenance.fingerprint})


def remove_unfinished(path: Path) -> None:
    """Remove the parts of the published shard `path`; a kill just after its publication leaves them behind."""
    remove_own(_parts_of(Path(path)), PARTS)


def has_unfinished(path: Path) -> bool:
    """Whether there is, or was, work on the shard `path`."""
    return _parts_of(path).is_dir() or commit_path(path).exists()


def _parts_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.parts")


def write_features(
    path: Path, features: np.ndarray, image_id: np.ndarray, provenance: Provenance, details: Mapping[str, Json]
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


# --- reading


class Features:
    """The feature shards of a manifest: `shard-00000.h5` and so on in the folder `folder_of(encoder)`.

    The last shard of each encoder stays open.
    """

    def __init__(self, manifest: Manifest, folder_of: Callable[[str], Path]) -> None:
        self.manifest = manifest
        self.folder_of = folder_of
        self._computed: dict[str, tuple[Path, str]] = {}
        self._last: dict[str, tuple[int, Shard]] = {}

    def open(self, encoder: str, number: int) -> Shard:
        """Shard `number` of `encoder`. Raises IntegrityError where two shards were computed in different precisions."""
        if self._last.get(encoder, (None,))[0] == number:
            return self._last[encoder][1]
        shard = Shard(shard_path(self.folder_of(encoder), number), FEATURES)
        precision = shard.details.get("encoder", {}).get("precision", "their own")
        path, first = self._computed.setdefault(encoder, (shard.path, precision))
        if precision != first:
            raise IntegrityError(
                f"{shard.path} was computed in {precision} and {path} in {first}, since precision auto depends on the"
                " machine; set extract.precision and run extract again"
            )
        self._last[encoder] = number, shard
        return shard


class FeatureRows(ChosenRows):
    """One encoder's features (n, dim) for the images `image_id` (n,): `rows[[3, 1]]` reads no other image.

    `origin` is what made them (pipeline.storage.parameters). Raises as `Features.open` does.
    """

    def __init__(self, features: Features, encoder: str, image_id: np.ndarray) -> None:
        manifest = features.manifest
        parts = OpenedOnUse(manifest.n_shards, lambda number: features.open(encoder, number)["features"])
        super().__init__(Chained(parts, bounds=manifest.bounds("images")), image_id)
        self.origin = origin_of(features.open(encoder, 0).commit)
