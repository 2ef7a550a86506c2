"""Moments shards: the moments of a manifest shard's pairs by fold, and the images of each fold."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.storage.commit import Commit, Commits, Provenance, combined, commit_path, open_commit
from pipeline.storage.features import Features
from pipeline.storage.json_files import require_same
from pipeline.storage.manifest import Manifest
from pipeline.storage.pairs import SplitRows, read_pairs
from pipeline.storage.parameters import Origin
from pipeline.storage.shards import MOMENTS, OpenedOnUse, Shard, shard_path, write_shard
from pipeline.storage.texts import Texts

SUM = "sum.h5"  # of the moments of all shards beside it
NAMES = ("n", "mean_x", "mean_y", "xx", "xy", "yy")


def write_moments(
    path: Path,
    folds: Mapping[int, Mapping[str, np.ndarray]],
    image_id: np.ndarray,
    fold_of: np.ndarray,
    *,
    details: Mapping[str, Any],
    provenance: Provenance | None = None,
) -> None:
    """Publish the arrays of each fold's moments, stacked along a first axis; image `image_id[i]` is in `fold_of[i]`.

    `folds` has only the folds in which the shard has a pair: moments are large, and many shards have no target image.
    """
    arrays = {"stored": np.array(sorted(folds), np.int64), "image_id": image_id, "fold": fold_of}
    for name in NAMES if folds else ():
        arrays[name] = np.stack([folds[fold][name] for fold in sorted(folds)])
    details = {**details, "stored": sorted(folds)}
    write_shard(path, MOMENTS, arrays, rows=len(image_id), provenance=provenance, details=details)


def read_moments(path: Path, fold: int) -> dict[str, np.ndarray]:
    """The arrays of the moments of one of the folds that a shard stores, or the sum of a part."""
    shard = Shard(path, MOMENTS)
    (place,) = np.flatnonzero(shard["stored"] == fold)
    return {name: shard[name][place] for name in NAMES}


def sum_path(folder: Path) -> Path:
    return Path(folder) / SUM


def write_sum(folder: Path, numbers: range, add_up: Callable[[list[Callable]], Mapping]) -> None:
    """Publish the sum of the moments of the shards, unless it is there. `add_up` makes the arrays of one fold from
    functions that read those of its shards."""
    shards = [_open(shard_path(folder, number)) for number in numbers]
    if _is_summed(shards):
        return
    folds = {fold: add_up(_readers(shards, [fold])) for fold in sorted({fold for s in shards for fold in _folds(s)})}
    none = np.empty(0, np.int64)
    write_moments(sum_path(folder), folds, none, none, provenance=_sum_of(shards), details={})


def _open(path: Path) -> Commit:
    return open_commit(path, MOMENTS, hashed=False)


def _folds(stored: Commit) -> Sequence[int]:
    """Those of which the file of a commit has moments."""
    return stored.details["stored"]


def _readers(stored: Sequence[Commit], folds: Sequence[int]) -> list[Callable[[], dict[str, np.ndarray]]]:
    """Functions that read the moments of `folds`, fold by fold; they can be pickled."""
    return [
        partial(read_moments, commit.path.with_suffix("").absolute(), fold)
        for fold in folds
        for commit in stored
        if fold in _folds(commit)
    ]


def _sum_of(shards: Sequence[Commit]) -> Provenance:
    """What makes the sum of these shards."""
    return Provenance(shards[0].root, "sum of moments", 1, {"shards": [shard.digest for shard in shards]})


def _is_summed(shards: Sequence[Commit]) -> bool:
    path = commit_path(sum_path(shards[0].path.parent))
    return Commits(path.parent).is_done(path, _sum_of(shards))


class PairSet:
    """The target or the auxiliary pairs of a manifest: their moments by fold, and the pairs themselves in blocks.

    `view` is the image view and `text` the text view, `encoders` and `text_encoders` the origins of their blocks.
    Raises IntegrityError if a shard is missing or not valid, and, when it is read, if one is damaged.
    """

    def __init__(self, features: Features, texts: Texts, folder: Path) -> None:
        self._features, self._texts = features, texts
        self.folder = Path(folder)
        self._stored = [_open(shard_path(self.folder, number)) for number in range(features.manifest.n_shards)]
        details = self._stored[0].details
        self.view: Mapping[str, Any] = details["view"]
        self.text: Mapping[str, Any] = details["text"]
        self.n_folds: int = details["folds"]["count"]
        self.encoders: Mapping[str, Origin] = details["encoders"]
        self.text_encoders: Mapping[str, Origin] = details["text_encoders"]
        self._shards = OpenedOnUse(len(self._stored), lambda number: Shard(shard_path(self.folder, number), MOMENTS))

    @property
    def manifest(self) -> Manifest:
        return self._features.manifest

    @property
    def fold_images(self) -> int:
        """Images in a fold, on average."""
        return sum(shard.rows for shard in self._stored) // self.n_folds

    @property
    def digest(self) -> str:
        """Of all shards."""
        return combined(shard.digest for shard in self._stored)

    def moments(self, folds: Sequence[int]) -> list[Callable[[], dict[str, np.ndarray]]]:
        """Functions that read the moments of `folds`: of their sum over all shards where that is there, or else one for
        each shard with pairs in them; they can be pickled."""
        return _readers(self._summed, folds)

    @cached_property
    def _summed(self) -> list[Commit]:
        """The files that add up to all moments."""
        return [_open(sum_path(self.folder))] if _is_summed(self._stored) else self._stored

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

    Raises IntegrityError if their views differ: they were made by two configurations.
    """

    def __init__(self, first: PairSet, second: PairSet) -> None:
        self._parts = (first, second)
        for what in ("view", "text"):
            require_same(what, {str(part.folder): str(getattr(part, what)) for part in self._parts})
        self.view, self.text = first.view, first.text
        self.encoders, self.text_encoders = first.encoders, first.text_encoders
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
