"""The images of splits and their sentences: their ids, their rows of features and of text vectors, and the moments of
these rows. One file has the moments of a chunk of shards, by fold, with the images of each fold.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import InputError, IntegrityError
from pipeline.storage.commit import Commit, Commits, Provenance, combined, commit_path, open_commit
from pipeline.storage.features import Features
from pipeline.storage.json_files import Json
from pipeline.storage.manifest import Manifest, ShardRows
from pipeline.storage.parameters import Origin
from pipeline.storage.shards import MOMENTS, OpenedOnUse, Shard, chunk_path, write_shard
from pipeline.storage.texts import Matrix, Texts, open_texts, stack_rows


@dataclass(frozen=True)
class SplitPairs:
    """The images of a split that have sentences, `image_id` (n,), and these sentences, `sentence_id` (m,). Sentence j
    belongs to image `image_id[owners[j]]`."""

    image_id: np.ndarray
    sentence_id: np.ndarray
    owners: np.ndarray

    def first(self, count: int) -> "SplitPairs":
        """Only the first `count` images, with their sentences."""
        m = int(np.searchsorted(self.owners, count))
        return SplitPairs(self.image_id[:count], self.sentence_id[:m], self.owners[:m])

    def blocks(self, images: int) -> Iterator["SplitPairs"]:
        """All pairs in blocks of at most `images` images, with their sentences."""
        for start in range(0, len(self.image_id), images):
            first, last = np.searchsorted(self.owners, [start, start + images])
            image_id = self.image_id[start : start + images]
            yield SplitPairs(image_id, self.sentence_id[first:last], self.owners[first:last] - start)


def split_pairs(manifest: Manifest, *splits: str) -> SplitPairs:
    """The pairs of one or several splits. Raises InputError if there are none."""
    shards = list(described_rows(manifest, splits))
    if not sum(len(sentence_id) for sentence_id, _ in shards):
        counts = ", ".join(f"{name} {count}" for name, count in manifest.summary["splits"].items())
        raise InputError(
            f"the {' and '.join(splits)} split of {manifest.folder} has no image with a caption (images: {counts});"
            " add some and run ingest again, or leave it out of evaluate.splits"
        )
    sentence_id, sentence_images = map(np.concatenate, zip(*shards, strict=True))
    image_id, owners = np.unique(sentence_images, return_inverse=True)
    return SplitPairs(image_id, sentence_id, owners)


def split_ids(manifest: Manifest, splits: Sequence[str], shards: Sequence[int] | None = None) -> dict[str, np.ndarray]:
    """The ascending ids (n,) of all `images` of some splits, even those without sentences, and (m,) of all their
    `sentences`; of all shards or some, of which alone the tables are read."""
    ids = {"images": [np.empty(0, np.int64)], "sentences": [np.empty(0, np.int64)]}
    for number in range(manifest.n_shards) if shards is None else shards:
        wanted, (sentence_id, _) = _described(manifest, splits, number)
        ids["images"].append(manifest.shard(number).first_image + np.flatnonzero(wanted))
        ids["sentences"].append(sentence_id)
    return {modality: np.concatenate(parts) for modality, parts in ids.items()}


def described_rows(manifest: Manifest, splits: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(m,), (m,) int64: of each shard the ids of the sentences of some splits, and of their images."""
    return (_described(manifest, splits, number)[1] for number in range(manifest.n_shards))


def _described(
    manifest: Manifest, splits: Sequence[str], number: int
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """(n,) bool, which images of a shard are of some splits, and what `described_rows` gives of the shard."""
    wanted, rows = np.isin(manifest.shard_splits(number).astype(str), splits), manifest.shard(number)
    owners = manifest.owners(number) if wanted.any() else np.empty(0, np.int64)
    here = wanted[owners - rows.first_image]
    return wanted, (rows.first_sentence + np.flatnonzero(here), owners[here])


@dataclass(frozen=True)
class SplitRows:
    """The images of one split that have sentences, with these sentences.

    `image_id` (n,), `features` encoder -> (n, dim) as stored, `sentences` text encoder -> (m, dim) as stored, sparse or
    dense, `sentence_id` (m,), and `owners` (m,): the row among the n images that each sentence belongs to.
    """

    image_id: np.ndarray
    features: dict[str, np.ndarray]
    sentences: dict[str, Matrix]
    sentence_id: np.ndarray
    owners: np.ndarray

    def first(self, count: int) -> "SplitRows":
        """Only the first `count` images, with their sentences."""
        m = int(np.searchsorted(self.owners, count))
        features = {name: block[:count] for name, block in self.features.items()}
        sentences = {name: block[:m] for name, block in self.sentences.items()}
        return SplitRows(self.image_id[:count], features, sentences, self.sentence_id[:m], self.owners[:m])


def read_split(features: Features, sentences: Texts, encoders: tuple[str, ...], split: str, limit: int) -> SplitRows:
    """The first `limit` images of `split` that have sentences. Raises IntegrityError if there are none."""
    parts: list[SplitRows] = []
    manifest = features.manifest
    for part in read_pairs(features, sentences, encoders, lambda n: manifest.shard_splits(n) == split, limit):
        parts.append(part.first(limit))
        limit -= len(parts[-1].image_id)
        if not limit:
            break
    if not parts:
        raise IntegrityError(
            f"the {split} split of {manifest.folder} has no image with a caption; add some, then run ingest"
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
    """The images with sentences for which `wanted` (shard -> its images (n,) bool) is true, in blocks of at most `rows`
    images of one shard; of all shards or some."""
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
"""The file with the sum of the moments in all chunks beside it."""
NAMES = ("n", "mean_x", "mean_y", "xx", "xy", "yy")


def write_moments(
    path: Path,
    folds: Mapping[int, Mapping[str, np.ndarray]],
    image_id: np.ndarray,
    fold_of: np.ndarray,
    *,
    details: Mapping[str, Json],
    provenance: Provenance | None = None,
) -> None:
    """Publish the arrays of each fold's moments, stacked along a first axis; image `image_id[i]` is in `fold_of[i]`.

    `folds` has only the folds in which the chunk has a pair: moments are large, and many chunks have no target image.
    """
    arrays = {"stored": np.array(sorted(folds), np.int64), "image_id": image_id, "fold": fold_of}
    for name in NAMES if folds else ():
        arrays[name] = np.stack([folds[fold][name] for fold in sorted(folds)])
    details = {**details, "stored": sorted(folds)}
    write_shard(path, MOMENTS, arrays, rows=len(image_id), provenance=provenance, details=details)


def read_moments(path: Path, fold: int) -> dict[str, np.ndarray]:
    """Read the arrays of the moments of one of the folds in the file of a chunk, or in the sum of all chunks."""
    shard = Shard(path, MOMENTS)
    (place,) = np.flatnonzero(shard["stored"] == fold)
    return {name: shard[name][place] for name in NAMES}


def sum_path(folder: Path) -> Path:
    return Path(folder) / SUM


def write_sum(folder: Path, numbers: range, add_up: Callable[[list[Callable]], Mapping]) -> None:
    """Publish the sum of the moments of chunks, unless it is there.

    `add_up` makes the arrays of one fold from functions that read the arrays of this fold in each chunk.
    """
    chunks = [_open(chunk_path(folder, number)) for number in numbers]
    if _is_summed(chunks):
        return
    folds = {
        fold: add_up(_readers(chunks, [fold]))
        for fold in sorted({fold for chunk in chunks for fold in chunk.details["stored"]})
    }
    none = np.empty(0, np.int64)
    write_moments(sum_path(folder), folds, none, none, provenance=_sum_of(chunks), details={})


def _open(path: Path) -> Commit:
    return open_commit(path, MOMENTS, hashed=False)


def _readers(stored: Sequence[Commit], folds: Sequence[int]) -> list[Callable[[], dict[str, np.ndarray]]]:
    """Functions that read the moments of `folds`, fold by fold; they can be pickled."""
    return [
        partial(read_moments, commit.path.with_suffix("").absolute(), fold)
        for fold in folds
        for commit in stored
        if fold in commit.details["stored"]
    ]


def _sum_of(chunks: Sequence[Commit]) -> Provenance:
    """Return what makes the sum of these chunks, which lie at their places in a run."""
    root = chunks[0].root
    assert root is not None  # `open_commit` refuses a commit that lies elsewhere
    return Provenance(root, "sum of moments", 1, {"chunks": [chunk.digest for chunk in chunks]})


def _is_summed(chunks: Sequence[Commit]) -> bool:
    path = commit_path(sum_path(chunks[0].path.parent))
    return Commits(path.parent).is_done(path, _sum_of(chunks))


class PairSet:
    """The target or the auxiliary pairs of a manifest: their moments by fold, and the pairs themselves in blocks.

    `view` is the image view and `text` the text view, `encoders` and `text_encoders` the origins of their blocks.
    Raises IntegrityError if a chunk is missing or not valid, and, when it is read, if one is damaged.
    """

    def __init__(self, features: Features, texts: Texts, folder: Path) -> None:
        self._features, self._texts = features, texts
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
        """Images in a fold, on average."""
        return sum(chunk.rows for chunk in self._stored) // self.n_folds

    @property
    def digest(self) -> str:
        """The digest of all chunks together."""
        return combined(chunk.digest for chunk in self._stored)

    def moments(self, folds: Sequence[int]) -> list[Callable[[], dict[str, np.ndarray]]]:
        """Return functions that read the moments of `folds`: from the sum over all chunks if it is there, or else one
        function for each chunk with pairs in them. They can be pickled."""
        return _readers(self._summed, folds)

    @cached_property
    def _summed(self) -> list[Commit]:
        """The files that add up to all moments."""
        return [_open(sum_path(self.folder))] if _is_summed(self._stored) else self._stored

    def blocks(
        self, folds: Sequence[int], encoders: tuple[str, ...], text_encoders: tuple[str, ...], rows: int
    ) -> Iterator[SplitRows]:
        """The pairs in `folds`, in blocks of at most `rows` images."""

        def wanted(number: int) -> np.ndarray:
            chunk = self._opened[self._chunk_of[number]]
            return images_in(self.manifest.shard(number), chunk["image_id"][np.isin(chunk["fold"], folds)])

        texts = {name: self._texts[name] for name in text_encoders}
        return read_pairs(self._features, texts, encoders, wanted, rows)


class JoinedPairs:
    """Two sets of pairs as one: the folds of the first, then those of the second."""

    def __init__(self, first: PairSet, second: PairSet) -> None:
        self._parts = (first, second)
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
