"""Moments shards: the moments of a manifest shard's pairs by fold, and the images of each fold."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import IntegrityError
from pipeline.storage.fingerprint import require_same
from pipeline.storage.gather import Features, SplitRows, read_pairs
from pipeline.storage.manifest import Manifest
from pipeline.storage.provenance import Origin, join_origins, same_origin
from pipeline.storage.reading import is_there
from pipeline.storage.shards import MOMENTS, Shard, shard_path, write_shard
from pipeline.storage.text_shards import Texts

NAMES = ("n", "mean_x", "mean_y", "xx", "xy", "yy")


def write_moments(
    path: Path,
    folds: Mapping[int, Mapping[str, np.ndarray]],
    image_id: np.ndarray,
    fold_of: np.ndarray,
    **about: Any,
) -> None:
    """Publish the arrays of each fold's moments, stacked along a first axis; image `image_id[i]` is in `fold_of[i]`.

    `folds` has only the folds in which the shard has a pair: moments are large, and many shards have no target image.
    `about` has the `fingerprint` and `details`.
    """
    arrays = {"stored": np.array(sorted(folds), np.int64), "image_id": image_id, "fold": fold_of}
    for name in NAMES if folds else ():
        arrays[name] = np.stack([folds[fold][name] for fold in sorted(folds)])
    write_shard(path, MOMENTS, arrays, rows=len(image_id), **about)


def read_moments(path: Path, place: int) -> dict[str, np.ndarray]:
    """The arrays of the moments at `place` among those that a shard stores."""
    shard = Shard(path, MOMENTS)
    return {name: shard[name][place] for name in NAMES}


class PairSet:
    """The target or the auxiliary pairs of a manifest: their moments by fold, and the pairs themselves in blocks.

    `view` is the image view and `text` the text view, `encoders` and `text_encoders` the origins of their blocks.
    Raises IntegrityError if a shard is missing, damaged or of other `pairs`, if shards differ in views, encoders or
    number of folds, or if they were summed from other features or texts than these.
    """

    def __init__(self, features: Features, texts: Texts, folder: Path, pairs: str) -> None:
        self._features, self._texts = features, texts
        self.folder = Path(folder)
        self._shards = [Shard(shard_path(folder, number), MOMENTS) for number in range(features.manifest.n_shards)]
        for what in ("view", "text", "folds"):
            require_same(what, {str(shard.path): str(shard.details[what]) for shard in self._shards})
        self.encoders, self.text_encoders = self._origins("encoders"), self._origins("text_encoders")
        for number, shard in enumerate(self._shards):
            self._require_own(number, shard, pairs)
        self.view: Mapping[str, Any] = self._shards[0].details["view"]
        self.text: Mapping[str, Any] = self._shards[0].details["text"]
        self.n_folds: int = self._shards[0].details["folds"]["count"]

    def _origins(self, key: str) -> dict[str, Origin]:
        return {
            name: same_origin(name, {str(shard.path): shard.details[key][name] for shard in self._shards})
            for name in self._shards[0].details[key]
        }

    def _require_own(self, number: int, shard: Shard, pairs: str) -> None:
        """Raises IntegrityError unless shard `number` was summed from these pairs. Reads only sidecars."""
        if (held := shard.details["pairs"]) != pairs:
            raise IntegrityError(f"{shard.path} is of {held} pairs, not of {pairs}; give the right folder")
        rows, inputs = self.manifest.shard(number), shard.details["inputs"]
        own = {what: (self.manifest.folder, rows.fingerprints[what]) for what in ("images", "splits")}
        for name, texts in self._texts.by_encoder.items():
            own[f"text/{name}"] = (shard_path(texts.folder, number), texts.sidecar(number).fingerprint)
        for name in self.encoders:
            # Moments may cover more encoders than a model, so features may be missing.
            if is_there(self._features.root / name):
                path = shard_path(self._features.root / name, number)
                own[f"features/{name}"] = (path, self._features.sidecar(name, number).fingerprint)
        for what, (path, digest) in own.items():
            if inputs.get(what) != digest:
                raise IntegrityError(f"{shard.path} was summed from other {what} than {path}; run accumulate again")

    @property
    def manifest(self) -> Manifest:
        return self._features.manifest

    @property
    def fold_images(self) -> int:
        """Images in a fold, on average."""
        return sum(shard.rows for shard in self._shards) // self.n_folds

    @property
    def inputs(self) -> dict[str, str]:
        """Fingerprints of the shards."""
        return {str(number): shard.fingerprint for number, shard in enumerate(self._shards)}

    def moments(self, folds: Sequence[int]) -> list[Callable[[], dict[str, np.ndarray]]]:
        """Functions that read the moments of `folds`, one for each shard with pairs in them; they can be pickled.

        Raises IntegrityError for an unknown fold.
        """
        for fold in folds:
            if not 0 <= fold < self.n_folds:
                raise IntegrityError(f"{self._shards[0].path} has {self.n_folds} folds and no fold {fold}")
        return [
            partial(read_moments, shard.path.absolute(), int(place))
            for fold in folds
            for shard in self._shards
            for place in np.flatnonzero(shard["stored"] == fold)
        ]

    def blocks(
        self, folds: Sequence[int], encoders: tuple[str, ...], text_encoders: tuple[str, ...], rows: int
    ) -> Iterator[SplitRows]:
        """The pairs in `folds`, in blocks of at most `rows` images."""
        wanted = {number: partial(self._wanted, number, folds) for number in range(self.manifest.n_shards)}
        return read_pairs(self._features, self._texts.select(text_encoders), encoders, wanted, rows)

    def _wanted(self, number: int, folds: Sequence[int]) -> np.ndarray:
        """(n,) bool, which images of a shard are in `folds`."""
        span, shard = self.manifest.shard(number), self._shards[number]
        ids = shard["image_id"][np.isin(shard["fold"], folds)]
        return np.isin(np.arange(span.first_image, span.last_image), ids)


class JoinedPairs:
    """Two sets of pairs as one: the folds of the first, then those of the second.

    Raises IntegrityError if their views or encoders differ.
    """

    def __init__(self, first: PairSet, second: PairSet) -> None:
        self._parts = (first, second)
        for what in ("view", "text"):
            require_same(what, {str(part.folder): str(getattr(part, what)) for part in self._parts})
        self.view, self.text = first.view, first.text
        self.encoders = join_origins((str(part.folder), part.encoders) for part in self._parts)
        self.text_encoders = join_origins((str(part.folder), part.text_encoders) for part in self._parts)
        self.n_folds = first.n_folds + second.n_folds

    def moments(self, folds: Sequence[int]) -> list[Callable[[], dict[str, np.ndarray]]]:
        return [reader for part, own in self._of(folds) for reader in part.moments(own)]

    def blocks(
        self, folds: Sequence[int], encoders: tuple[str, ...], text_encoders: tuple[str, ...], rows: int
    ) -> Iterator[SplitRows]:
        for part, own in self._of(folds):
            yield from part.blocks(own, encoders, text_encoders, rows)

    def _of(self, folds: Sequence[int]) -> list[tuple[PairSet, list[int]]]:
        """Each part with its own `folds`, in its own numbering."""
        first, second = self._parts
        own = [fold for fold in folds if fold < first.n_folds]
        return [(first, own), (second, [fold - first.n_folds for fold in folds if fold >= first.n_folds])]
