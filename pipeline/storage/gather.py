"""Rows of a manifest's shards, by shard or by image: what the linear and the neural stages read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from scipy import sparse

from pipeline.errors import IntegrityError
from pipeline.storage.files import plain
from pipeline.storage.manifest import Manifest
from pipeline.storage.shards import FEATURES, Shard, shard_path
from pipeline.storage.text_shards import Texts

Matrix = np.ndarray | sparse.csr_array


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


class Features:
    """The feature shards `<root>/<encoder>/shard-00000.h5` of a manifest."""

    def __init__(self, manifest: Manifest, root: Path) -> None:
        self.manifest = manifest
        self.root = Path(root)
        self._computed: dict[str, tuple[Path, str]] = {}
        self._last: dict[str, tuple[int, Shard]] = {}  # of each encoder: its bytes are hashed when it is opened

    def open(self, encoder: str, number: int) -> Shard:
        """Shard `number` of `encoder`. Raises IntegrityError where two shards were computed in different precisions."""
        if self._last.get(encoder, (None,))[0] == number:
            return self._last[encoder][1]
        shard = Shard(shard_path(self.root / plain(encoder, "the model"), number), FEATURES)
        self._require_precision(shard, encoder)
        self._last[encoder] = number, shard
        return shard

    def _require_precision(self, shard: Shard, encoder: str) -> None:
        precision = shard.details.get("encoder", {}).get("precision", "their own")
        path, first = self._computed.setdefault(encoder, (shard.path, precision))
        if precision != first:
            raise IntegrityError(
                f"{shard.path} was computed in {precision} and {path} in {first}, since precision auto goes by"
                " the machine; name extract.precision and run extract again"
            )


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
        folder = features.manifest.folder
        raise IntegrityError(f"the {split} split of {folder} has no image with a sentence; add some, then run ingest")
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
        own = find()
        if not own.any():
            continue
        first_image = features.manifest.shard(number).first_image
        texts = sentences.open(number)
        shard = next(iter(texts.values()))
        chosen = np.flatnonzero(own[shard.image_id - first_image])
        image_id = np.unique(shard.image_id[chosen])
        opened = {name: features.open(name, number)["features"] for name in encoders}
        for start in range(0, len(image_id), rows):
            ids = image_id[start : start + rows]
            first, last = np.searchsorted(shard.image_id[chosen], [ids[0], ids[-1] + 1])
            here = chosen[first:last]
            yield SplitRows(
                ids,
                {name: block[ids - first_image] for name, block in opened.items()},
                {name: one.matrix[here] for name, one in texts.items()},
                shard.sentence_id[here],
                np.searchsorted(ids, shard.image_id[here]),
            )


def stack_rows(parts: Sequence[Matrix]) -> Matrix:
    """The rows of all `parts`, one after another."""
    return sparse.vstack(parts, format="csr") if sparse.issparse(parts[0]) else np.concatenate(parts)
