"""The images of splits and their sentences: their ids, and their rows of features and of text vectors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from pipeline.errors import InputError, IntegrityError
from pipeline.storage.features import Features
from pipeline.storage.manifest import Manifest
from pipeline.storage.texts import Matrix, Texts, stack_rows


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
            f"the {' and '.join(splits)} split of {manifest.folder} has no image with a sentence (images: {counts});"
            " put some into it and run ingest again, or leave it out of evaluate.splits"
        )
    sentence_id, sentence_images = map(np.concatenate, zip(*shards, strict=True))
    image_id, owners = np.unique(sentence_images, return_inverse=True)
    return SplitPairs(image_id, sentence_id, owners)


def undescribed(manifest: Manifest, split: str, limit: int) -> SplitPairs:
    """The first `limit` images of a split, without their sentences."""
    none = np.empty(0, np.int64)
    return SplitPairs(split_ids(manifest, (split,))["images"][:limit], none, none)


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
    wanted = {number: partial(_in_split, manifest, split, number) for number in range(manifest.n_shards)}
    for part in read_pairs(features, sentences, encoders, wanted, limit):
        parts.append(part.first(limit))
        limit -= len(parts[-1].image_id)
        if not limit:
            break
    if not parts:
        raise IntegrityError(
            f"the {split} split of {manifest.folder} has no image with a sentence; add some, then run ingest"
        )
    starts = np.cumsum([0] + [len(part.image_id) for part in parts])
    return SplitRows(
        np.concatenate([part.image_id for part in parts]),
        {name: np.concatenate([part.features[name] for part in parts]) for name in encoders},
        {name: stack_rows([part.sentences[name] for part in parts]) for name in parts[0].sentences},
        np.concatenate([part.sentence_id for part in parts]),
        np.concatenate([part.owners + start for part, start in zip(parts, starts, strict=False)]),
    )


def _in_split(manifest: Manifest, split: str, number: int) -> np.ndarray:
    return manifest.shard_splits(number) == split


def read_pairs(
    features: Features,
    sentences: Texts,
    encoders: tuple[str, ...],
    wanted: Mapping[int, Callable[[], np.ndarray]],
    rows: int,
) -> Iterator[SplitRows]:
    """The images with sentences for which `wanted` (shard -> its images (n,) bool, found when their turn comes) is
    true, in blocks of at most `rows` images of one shard."""
    for number, find in wanted.items():
        here = find()
        if not here.any():
            continue
        first_image = features.manifest.shard(number).first_image
        texts = sentences.open(number)
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
