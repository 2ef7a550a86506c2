"""Moments shards: the moments of a manifest shard's pairs by fold, and the images of each fold."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.errors import IntegrityError
from pipeline.storage.commit import Commits, Provenance, combined, commit_path, open_commit
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


class Stored(NamedTuple):
    """A file of the moments of some `folds`: of a shard, or the sum of all."""

    path: Path
    root: Path
    digest: str
    rows: int
    folds: Sequence[int]


def stored_moments(path: Path) -> Stored:
    """What the commit of a file says of it."""
    commit = open_commit(path, MOMENTS, hashed=False)
    return Stored(path, commit.root, commit.digest, commit.rows, commit.details["stored"])


def sum_path(folder: Path) -> Path:
    return Path(folder) / SUM


def _sum_of(shards: Sequence[Stored]) -> Provenance:
    """What makes the sum of these shards."""
    return Provenance(shards[0].root, "sum of moments", 1, {"shards": [shard.digest for shard in shards]})


def _is_summed(shards: Sequence[Stored]) -> bool:
    path = commit_path(sum_path(shards[0].path.parent))
    return Commits(path.parent).is_done(path, _sum_of(shards))


def write_sum(folder: Path, numbers: range, add_up: Callable[[list[Callable]], Mapping]) -> None:
    """Publish the sum of the moments of the shards, unless it is there. `add_up` makes the arrays of one fold from
    functions that read those of its shards."""
    shards = [stored_moments(shard_path(folder, number)) for number in numbers]
    if _is_summed(shards):
        return
    readers = {
        fold: [partial(read_moments, shard.path.absolute(), fold) for shard in shards if fold in shard.folds]
        for fold in sorted({fold for shard in shards for fold in shard.folds})
    }
    folds = {fold: add_up(each) for fold, each in readers.items()}
    none = np.empty(0, np.int64)
    write_moments(sum_path(folder), folds, none, none, provenance=_sum_of(shards), details={})


class PairSet:
    """The target or the auxiliary pairs of a manifest: their moments by fold, and the pairs themselves in blocks.

    `view` is the image view and `text` the text view, `encoders` and `text_encoders` the origins of their blocks.
    Raises IntegrityError if a shard is missing or not valid, and, when it is read, if one is damaged.
    """

    def __init__(self, features: Features, texts: Texts, folder: Path) -> None:
        self._features, self._texts = features, texts
        self.folder = Path(folder)
        count, first = features.manifest.n_shards, open_commit(shard_path(folder, 0), MOMENTS, hashed=False)
        self.view: Mapping[str, Any] = first.details["view"]
        self.text: Mapping[str, Any] = first.details["text"]
        self.n_folds: int = first.details["folds"]["count"]
        self.encoders: Mapping[str, Origin] = first.details["encoders"]
        self.text_encoders: Mapping[str, Origin] = first.details["text_encoders"]
        self._files = [stored_moments(shard_path(self.folder, number)) for number in range(count)]
        self._shards = OpenedOnUse(count, lambda number: Shard(self._files[number].path, MOMENTS))

    @property
    def manifest(self) -> Manifest:
        return self._features.manifest

    @property
    def fold_images(self) -> int:
        """Images in a fold, on average."""
        return sum(shard.rows for shard in self._files) // self.n_folds

    @property
    def digest(self) -> str:
        """Of all shards."""
        return combined(shard.digest for shard in self._files)

    def moments(self, folds: Sequence[int]) -> list[Callable[[], dict[str, np.ndarray]]]:
        """Functions that read the moments of `folds`: of their sum over all shards, or one for each shard with pairs in
        them; they can be pickled.

        Raises IntegrityError for an unknown fold.
        """
        for fold in folds:
            if not 0 <= fold < self.n_folds:
                raise IntegrityError(f"{self._files[0].path} has {self.n_folds} folds and no fold {fold}")
        return [
            partial(read_moments, stored.path.absolute(), fold)
            for fold in folds
            for stored in self._summed
            if fold in stored.folds
        ]

    @cached_property
    def _summed(self) -> list[Stored]:
        """The files that add up to all moments: the sum of these shards, or the shards where there is none of them."""
        return [stored_moments(sum_path(self.folder))] if _is_summed(self._files) else self._files

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
