"""Pairs of images and captions of splits: their ids, their features and text vectors, and the moments of these vectors.

Moments are the means and second-moment matrices from which linear models are fitted. One file has the moments of a
chunk of shards, separately for each cross-validation fold, with the images of each fold.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import InputError, IntegrityError
from pipeline.storage.commit import Commit, Commits, Provenance, combine_digests, commit_path, open_commit
from pipeline.storage.features import Features
from pipeline.storage.json_files import Json
from pipeline.storage.manifest import Manifest, ShardRows
from pipeline.storage.parameters import Origin
from pipeline.storage.shards import MOMENTS, OpenedOnUse, Shard, chunk_path, write_shard
from pipeline.storage.texts import Matrix, Texts, open_texts, stack_rows


@dataclass(frozen=True)
class SplitPairs:
    """The ids of the captioned images of a split, `image_id` (n,), and of their captions, `sentence_id` (m,).

    Caption j belongs to the image `image_id[owners[j]]`.
    """

    image_id: np.ndarray
    sentence_id: np.ndarray
    owners: np.ndarray

    def first(self, count: int) -> "SplitPairs":
        """Return the first `count` images with their captions."""
        m = int(np.searchsorted(self.owners, count))
        return SplitPairs(self.image_id[:count], self.sentence_id[:m], self.owners[:m])

    def blocks(self, images: int) -> Iterator["SplitPairs"]:
        """Yield all pairs in blocks of at most `images` images with their captions."""
        for start in range(0, len(self.image_id), images):
            first, last = np.searchsorted(self.owners, [start, start + images])
            image_id = self.image_id[start : start + images]
            yield SplitPairs(image_id, self.sentence_id[first:last], self.owners[first:last] - start)


def split_pairs(manifest: Manifest, *splits: str) -> SplitPairs:
    """Return the pairs of one or several splits. Raises InputError if the splits have no captioned image."""
    shards = list(described_rows(manifest, splits))
    if not sum(len(sentence_id) for sentence_id, _ in shards):
        counts = ", ".join(f"{name} {count}" for name, count in manifest.summary["splits"].items())
        raise InputError(
            f"The {' and '.join(splits)} split of {manifest.folder} has no photo with a caption (photos: {counts})."
            " Add photos with captions to this split and run `jointspace run CONFIG`, or remove the split from"
            " evaluate.splits."
        )
    sentence_id, sentence_images = map(np.concatenate, zip(*shards, strict=True))
    image_id, owners = np.unique(sentence_images, return_inverse=True)
    return SplitPairs(image_id, sentence_id, owners)


def split_ids(manifest: Manifest, splits: Sequence[str], shards: Sequence[int] | None = None) -> dict[str, np.ndarray]:
    """Return the ids of the images and of the captions of some splits, under the keys `images` and `sentences`.

    The ids ascend and include images without captions. With `shards`, only the tables of these shards are read, and
    only ids of images and captions in these shards are returned.
    """
    ids = {"images": [np.empty(0, np.int64)], "sentences": [np.empty(0, np.int64)]}
    for number in range(manifest.n_shards) if shards is None else shards:
        wanted, (sentence_id, _) = _described(manifest, splits, number)
        ids["images"].append(manifest.shard(number).first_image + np.flatnonzero(wanted))
        ids["sentences"].append(sentence_id)
    return {modality: np.concatenate(parts) for modality, parts in ids.items()}


def described_rows(manifest: Manifest, splits: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield for each shard the ids of the captions of some splits, and the ids of their images: (m,) and (m,) int64."""
    return (_described(manifest, splits, number)[1] for number in range(manifest.n_shards))


def _described(
    manifest: Manifest, splits: Sequence[str], number: int
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Return which images of a shard belong to some splits, as (n,) bool, and the ids that `described_rows` yields for
    this shard."""
    wanted = np.isin(manifest.shard_splits(number).astype(str), splits)
    rows = manifest.shard(number)
    owners = manifest.owners(number) if wanted.any() else np.empty(0, np.int64)
    here = wanted[owners - rows.first_image]
    return wanted, (rows.first_sentence + np.flatnonzero(here), owners[here])


@dataclass(frozen=True)
class SplitRows:
    """The captioned images of a split with their captions: ids, features and text vectors.

    `image_id` (n,) and `sentence_id` (m,) are the ids. `features` has an array (n, dim) for each image encoder, and
    `sentences` has a dense or sparse array (m, dim) for each text encoder. The arrays have their stored dtypes. Caption
    j belongs to the image in row `owners[j]` of the n images.
    """

    image_id: np.ndarray
    features: dict[str, np.ndarray]
    sentences: dict[str, Matrix]
    sentence_id: np.ndarray
    owners: np.ndarray

    def first(self, count: int) -> "SplitRows":
        """Return the first `count` images with their captions."""
        m = int(np.searchsorted(self.owners, count))
        features = {name: block[:count] for name, block in self.features.items()}
        sentences = {name: block[:m] for name, block in self.sentences.items()}
        return SplitRows(self.image_id[:count], features, sentences, self.sentence_id[:m], self.owners[:m])


def read_split(features: Features, sentences: Texts, encoders: tuple[str, ...], split: str, limit: int) -> SplitRows:
    """Read the features of the first `limit` captioned images of `split`, and the text vectors of their captions. If
    the split has fewer captioned images, all of them are read.

    `features` has the features of the image encoders `encoders`, and `sentences` has the shards of text vectors by text
    encoder. Raises IntegrityError if the split has no captioned image.
    """
    parts: list[SplitRows] = []
    manifest = features.manifest
    for part in read_pairs(features, sentences, encoders, lambda n: manifest.shard_splits(n) == split, limit):
        parts.append(part.first(limit))
        limit -= len(parts[-1].image_id)
        if not limit:
            break
    if not parts:
        raise IntegrityError(
            f"The {split} split of {manifest.folder} has no photo with a caption. Add photos with captions to this"
            " split, and run `jointspace run CONFIG`."
        )
    starts = np.cumsum([0] + [len(part.image_id) for part in parts])
    return SplitRows(
        np.concatenate([part.image_id for part in parts]),
        {name: np.concatenate([part.features[name] for part in parts]) for name in encoders},
        {name: stack_rows([part.sentences[name] for part in parts]) for name in parts[0].sentences},
        np.concatenate([part.sentence_id for part in parts]),
        np.concatenate([part.owners + start for part, start in zip(parts, starts, strict=False)]),
    )


def images_in(rows: ShardRows, image_id: np.ndarray) -> np.ndarray:
    """Return for each image of a shard (n,) whether its id is in `image_id`."""
    return np.isin(np.arange(rows.first_image, rows.last_image), image_id)


def read_pairs(
    features: Features,
    sentences: Texts,
    encoders: tuple[str, ...],
    wanted: Callable[[int], np.ndarray],
    rows: int,
    shards: Iterable[int] | None = None,
) -> Iterator[SplitRows]:
    """Yield the wanted captioned images in blocks of at most `rows` images. The images of a block are in one shard.

    `features` has the features of the image encoders `encoders`, and `sentences` has the shards of text vectors by text
    encoder. `wanted(number)` says which images of the shard `number` are wanted, as (n,) bool. `shards` are the numbers
    of the shards that are read, by default all.
    """
    for number in range(features.manifest.n_shards) if shards is None else shards:
        here = wanted(number)
        if not here.any():
            continue
        first_image = features.manifest.shard(number).first_image
        texts = open_texts(sentences, number)
        shard = next(iter(texts.values()))
        chosen = np.flatnonzero(here[shard.image_id - first_image])
        image_id = np.unique(shard.image_id[chosen])
        opened = {name: features.open(name, number)["features"] for name in encoders}
        for start in range(0, len(image_id), rows):
            ids = image_id[start : start + rows]
            first, last = np.searchsorted(shard.image_id[chosen], [ids[0], ids[-1] + 1])
            block = chosen[first:last]
            yield SplitRows(
                ids,
                {name: stored[ids - first_image] for name, stored in opened.items()},
                {name: vectors.matrix[block] for name, vectors in texts.items()},
                shard.sentence_id[block],
                np.searchsorted(ids, shard.image_id[block]),
            )


SUM = "sum.h5"
"""Name of the file with the sum of the moments of all chunks in the same folder."""
MOMENT_ARRAYS = ("n", "mean_x", "mean_y", "xx", "xy", "yy")
"""The arrays of the moments of one fold, as in pipeline.models.linear.moments: the number n of pairs, the means (D,) of
the image vectors x and (d,) of the text vectors y, and their centred products (D, D), (D, d) and (d, d)."""


def write_moments(
    path: Path,
    folds: Mapping[int, Mapping[str, np.ndarray]],
    image_id: np.ndarray,
    fold_of: np.ndarray,
    *,
    details: Mapping[str, Json],
    provenance: Provenance | None = None,
) -> None:
    """Write the moments of one chunk, in which the image `image_id[i]` belongs to the fold `fold_of[i]`.

    `folds` maps a fold to its moments, which are the arrays MOMENT_ARRAYS by name. It has only the folds in which the
    chunk has a pair, because moments are large. For each name, the arrays of these folds are stored as one array, with
    the folds along a new first axis. The array `stored` has the numbers of the folds, in ascending order. `details` are
    noted in the commit record. Moments without `provenance` do not belong to a run.
    """
    arrays = {"stored": np.array(sorted(folds), np.int64), "image_id": image_id, "fold": fold_of}
    for name in MOMENT_ARRAYS if folds else ():
        arrays[name] = np.stack([folds[fold][name] for fold in sorted(folds)])
    details = {**details, "stored": sorted(folds)}
    write_shard(path, MOMENTS, arrays, rows=len(image_id), provenance=provenance, details=details)


def read_moments(path: Path, fold: int) -> dict[str, np.ndarray]:
    """Read the moments of `fold` from the file `path` of a chunk or of the sum, as the arrays MOMENT_ARRAYS by name.

    The file must have this fold.
    """
    shard = Shard(path, MOMENTS)
    (row,) = np.flatnonzero(shard["stored"] == fold)
    return {name: shard[name][row] for name in MOMENT_ARRAYS}


def sum_path(folder: Path) -> Path:
    """Return the path of the file in `folder` with the sum of the moments of all chunks. The file need not exist."""
    return Path(folder) / SUM


def write_sum(folder: Path, numbers: range, sum_fold: Callable[[list[Callable]], Mapping]) -> None:
    """Write the sum of the moments of the chunks `numbers` in `folder`, fold by fold, unless the file is up to date.

    The file is `sum_path(folder)`. `sum_fold(readers)` must return the sum of the moments of one fold. Each of the
    `readers` is a function without arguments, which reads the moments of this fold from one chunk. Moments are the
    arrays MOMENT_ARRAYS by name.
    """
    chunks = [_open(chunk_path(folder, number)) for number in numbers]
    if _is_summed(chunks):
        return
    folds = {
        fold: sum_fold(_readers(chunks, [fold]))
        for fold in sorted({fold for chunk in chunks for fold in chunk.details["stored"]})
    }
    none = np.empty(0, np.int64)
    write_moments(sum_path(folder), folds, none, none, provenance=_sum_of(chunks), details={})


def _open(path: Path) -> Commit:
    return open_commit(path, MOMENTS, hashed=False)


def _readers(stored: Sequence[Commit], folds: Sequence[int]) -> list[Callable[[], dict[str, np.ndarray]]]:
    """Return functions without arguments that read the moments of `folds` from the `stored` files.

    For each fold in turn, there is one function for each file that has the fold. The functions can be pickled.
    """
    return [
        partial(read_moments, commit.path.with_suffix("").absolute(), fold)
        for fold in folds
        for commit in stored
        if fold in commit.details["stored"]
    ]


def _sum_of(chunks: Sequence[Commit]) -> Provenance:
    """Return the provenance of the sum of these chunks, which must belong to a run."""
    root = chunks[0].root
    assert root is not None  # `open_commit` has checked this.
    return Provenance(root, "sum of moments", 1, {"chunks": [chunk.digest for chunk in chunks]})


def _is_summed(chunks: Sequence[Commit]) -> bool:
    path = commit_path(sum_path(chunks[0].path.parent))
    return Commits(path.parent).is_done(path, _sum_of(chunks))


class PairSet:
    """The target or the auxiliary pairs of a manifest: their moments by fold, and the pairs themselves in blocks.

    `features` and `texts` have the features of the images and the vectors of the captions, and `folder` has the
    moments. `view` and `text` are the settings of the image view and of the text view. `encoders` and `text_encoders`
    have the origin of the vectors of each encoder: {"encoder": digest}, or {"imported": fingerprint} for precomputed
    vectors. `n_folds` is the number of folds. Raises IntegrityError if a chunk in `folder` is missing or not valid. The
    content of a file is only checked when it is read, which raises IntegrityError if the file is damaged.
    """

    def __init__(self, features: Features, texts: Texts, folder: Path) -> None:
        self._features = features
        self._texts = texts
        self.folder = Path(folder)
        chunks = features.manifest.chunks
        self._stored = [_open(chunk_path(self.folder, number)) for number in range(len(chunks))]
        details = self._stored[0].details
        self.view: Mapping[str, Any] = details["view"]
        self.text: Mapping[str, Any] = details["text"]
        self.n_folds: int = details["folds"]["count"]
        self.encoders: Mapping[str, Origin] = details["encoders"]
        self.text_encoders: Mapping[str, Origin] = details["text_encoders"]
        self._opened = OpenedOnUse(len(chunks), lambda number: Shard(chunk_path(self.folder, number), MOMENTS))
        self._chunk_of = {shard: number for number, shards in enumerate(chunks) for shard in shards}

    @property
    def manifest(self) -> Manifest:
        return self._features.manifest

    @property
    def fold_images(self) -> int:
        """Mean number of images in a fold, rounded down."""
        return sum(chunk.rows for chunk in self._stored) // self.n_folds

    @property
    def digest(self) -> str:
        """One digest of the files of all chunks."""
        return combine_digests(chunk.digest for chunk in self._stored)

    def moments(self, folds: Sequence[int]) -> list[Callable[[], dict[str, np.ndarray]]]:
        """Return functions without arguments that read the moments of `folds`, as the arrays MOMENT_ARRAYS by name.

        There is one function per fold if the sum over all chunks is stored. Otherwise, there is a function for each
        fold and each chunk that has pairs of this fold. The functions can be pickled.
        """
        return _readers(self._summed, folds)

    @cached_property
    def _summed(self) -> list[Commit]:
        """The files whose moments add up to the moments of all pairs."""
        return [_open(sum_path(self.folder))] if _is_summed(self._stored) else self._stored

    def blocks(
        self, folds: Sequence[int], encoders: tuple[str, ...], text_encoders: tuple[str, ...], rows: int
    ) -> Iterator[SplitRows]:
        """Yield the pairs in `folds`, in blocks of at most `rows` images.

        The blocks have the features of the image encoders `encoders` and the vectors of `text_encoders`.
        """

        def wanted(number: int) -> np.ndarray:
            chunk = self._opened[self._chunk_of[number]]
            return images_in(self.manifest.shard(number), chunk["image_id"][np.isin(chunk["fold"], folds)])

        texts = {name: self._texts[name] for name in text_encoders}
        return read_pairs(self._features, texts, encoders, wanted, rows)


class JoinedPairs:
    """Two sets of pairs as a single set. The folds of the first set have the lower numbers, and the folds of the second
    set have the numbers after them.

    The caller makes sure that both sets have the same views and encoders.
    """

    def __init__(self, first: PairSet, second: PairSet) -> None:
        self._parts = (first, second)
        self.view = first.view
        self.text = first.text
        self.encoders = first.encoders
        self.text_encoders = first.text_encoders
        self.n_folds = first.n_folds + second.n_folds

    def moments(self, folds: Sequence[int]) -> list[Callable[[], dict[str, np.ndarray]]]:
        """Return functions without arguments that read the moments of `folds`, as the arrays MOMENT_ARRAYS by name.

        If several functions read the same fold, each reads a part of the pairs, and the caller sums their results.
        """
        return [reader for part, own in self._split_folds(folds) for reader in part.moments(own)]

    def blocks(
        self, folds: Sequence[int], encoders: tuple[str, ...], text_encoders: tuple[str, ...], rows: int
    ) -> Iterator[SplitRows]:
        """Yield the pairs in `folds`, in blocks of at most `rows` images.

        The blocks have the features of the image encoders `encoders` and the vectors of `text_encoders`.
        """
        for part, own in self._split_folds(folds):
            yield from part.blocks(own, encoders, text_encoders, rows)

    def _split_folds(self, folds: Sequence[int]) -> list[tuple[PairSet, list[int]]]:
        """Return each of the two sets with its share of the `folds`. In the result, the folds of each set are numbered
        from 0."""
        first, second = self._parts
        own = [fold for fold in folds if fold < first.n_folds]
        return [(first, own), (second, [fold - first.n_folds for fold in folds if fold >= first.n_folds])]
