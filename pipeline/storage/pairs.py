"""The images of splits and their sentences, by their ids."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.errors import InputError
from pipeline.storage.manifest import Manifest


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
            chosen = slice(start, start + images)
            yield SplitPairs(self.image_id[chosen], self.sentence_id[first:last], self.owners[first:last] - start)


def split_pairs(manifest: Manifest, *splits: str) -> SplitPairs:
    """The pairs of one or several splits. Raises InputError if there are none."""
    found = list(described_rows(manifest, splits))
    if not sum(len(sentence_id) for sentence_id, _ in found):
        counts = ", ".join(f"{name} {count}" for name, count in manifest.summary["splits"].items())
        raise InputError(
            f"the {' and '.join(splits)} split of {manifest.folder} has no image with a sentence (images: {counts});"
            " put some into it and run ingest again, or leave it out of evaluate.splits"
        )
    sentence_id, sentence_images = (np.concatenate(one) for one in zip(*found, strict=True))
    image_id, owners = np.unique(sentence_images, return_inverse=True)
    return SplitPairs(image_id, sentence_id, owners)


def split_ids(manifest: Manifest, splits: Sequence[str], shards: Sequence[int] | None = None) -> dict[str, np.ndarray]:
    """The ids of all `images` of some splits, even those without sentences, and of all their `sentences`; of all shards
    or some, of which alone the tables are read."""
    images, sentences = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for number in range(manifest.n_shards) if shards is None else shards:
        wanted, (own, _) = _described(manifest, splits, number)
        images.append(manifest.shard(number).first_image + np.flatnonzero(wanted))
        sentences.append(own)
    return {"images": np.concatenate(images), "sentences": np.concatenate(sentences)}


def described_rows(manifest: Manifest, splits: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(m,), (m,) int64: of each shard the ids of the sentences of some splits, and of their images."""
    return (_described(manifest, splits, number)[1] for number in range(manifest.n_shards))


def _described(
    manifest: Manifest, splits: Sequence[str], number: int
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """(n,) bool, which images of a shard are of some splits, and what `described_rows` gives of the shard."""
    wanted, rows = np.isin(manifest.shard_splits(number).astype(str), splits), manifest.shard(number)
    owners = manifest.owners(number) if wanted.any() else np.empty(0, np.int64)
    own = wanted[owners - rows.first_image]
    return wanted, (rows.first_sentence + np.flatnonzero(own), owners[own])
