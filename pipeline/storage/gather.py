"""Rows of a manifest's shards, by shard or by image: what the linear and the neural stages read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from scipy import sparse

from pipeline.errors import IntegrityError
from pipeline.storage.atomic import Sidecar, read_sidecar
from pipeline.storage.manifest import Manifest
from pipeline.storage.names import plain
from pipeline.storage.places import stated
from pipeline.storage.reading import is_there
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
    """The feature shards `<root>/<encoder>/shard-00000.h5` of a manifest, checked to be of its images."""

    def __init__(self, manifest: Manifest, root: Path) -> None:
        self.manifest = manifest
        self.root = Path(root)
        self._computed: dict[str, tuple[Path, str]] = {}
        self._last: dict[str, tuple[int, Shard]] = {}  # of each encoder: its bytes are hashed when it is opened

    def open(self, encoder: str, number: int) -> Shard:
        """Shard `number` of `encoder`. Raises IntegrityError unless that made it from the manifest's images."""
        if self._last.get(encoder, (None,))[0] == number:
            return self._last[encoder][1]
        shard = Shard(shard_path(self.root / plain(encoder, "the model"), number), FEATURES)
        self._check(shard.path, shard.sidecar, encoder, number)
        self._last[encoder] = number, shard
        return shard

    def sidecar(self, encoder: str, number: int) -> Sidecar:
        """Its sidecar alone, without the features. Raises as `open` does."""
        path = shard_path(self.root / plain(encoder, "the model"), number)
        found = read_sidecar(path, FEATURES)
        self._check(path, found, encoder, number)
        return found

    def _check(self, path: Path, sidecar: Sidecar, encoder: str, number: int) -> None:
        require_encoder_name(path, sidecar, encoder)
        if sidecar.details["inputs"]["images"] != self.manifest.shard(number).fingerprints["images"]:
            raise IntegrityError(f"{path} was made from other images than the manifest's; run extract again")
        if encoder not in self._computed:
            first = shard_path(self.root / plain(encoder, "the model"), 0)
            known = (first, read_sidecar(first, FEATURES)) if is_there(first) else (path, sidecar)
            self._computed[encoder] = known[0], _precision(known[1])
        other, precision = self._computed[encoder]
        if _precision(sidecar) != precision:
            raise IntegrityError(
                f"{path} was computed in {_precision(sidecar)} and {other} in {precision}, since precision auto goes by"
                " the machine; name extract.precision and run extract again"
            )


def _precision(sidecar: Sidecar) -> str:
    about = sidecar.details.get("encoder")
    return str(about.get("precision", "their own")) if isinstance(about, Mapping) else "their own"


def require_encoder_name(path: Path, sidecar: Sidecar, encoder: str) -> None:
    """Raises IntegrityError if a shard is of an encoder of another name."""
    if (held := stated(sidecar.details).get("encoder", encoder)) != encoder:
        raise IntegrityError(f"{path} is of the encoder {held}, not of {encoder}; run its stage again")


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
