"""Rows of all shards of a manifest by their ids: features through memory maps, sentences in memory."""

from pathlib import Path

import numpy as np
from scipy import sparse

from pipeline.ragged import offsets_of
from pipeline.storage.chained import Chained
from pipeline.storage.fingerprint import require_same
from pipeline.storage.gather import Features, Sentences, TextShards
from pipeline.storage.manifest import Manifest
from pipeline.storage.provenance import origin_of, same_origin
from pipeline.storage.tokens import TokenShards
from pipeline.storage.trees import FIELDS, TreeShards


class FeatureRows:
    """(n, dim) of one encoder for the images `image_id` (n,): `rows[[3, 1]]` reads no other image.

    `fingerprints` are those of the shards, `origins` (file -> origin) what made each; see
    pipeline.storage.provenance. Raises as `Features.open` does, and where two shards are of different encoders.
    """

    def __init__(self, features: Features, encoder: str, image_id: np.ndarray) -> None:
        shards = [features.open(encoder, number) for number in range(features.manifest.n_shards)]
        self.origins = {str(shard.path): origin_of(shard.sidecar) for shard in shards}
        self.origin = same_origin(encoder, self.origins)
        self.fingerprints = {f"features/{encoder}/{n:05d}": shard.fingerprint for n, shard in enumerate(shards)}
        self._features, self._image_id = Chained([shard["features"] for shard in shards]), image_id
        self.shape = (len(image_id), self._features.shape[1])

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        return self._features[self._image_id[rows]]


class _TextRows:
    """All sentences by sentence_id, from `shards`; the fingerprint of their `vocabulary`, and their own."""

    def __init__(self, name: str, opened: TextShards) -> None:
        self.shards = [opened.open(number) for number in range(opened.manifest.n_shards)]
        self.vocabulary = require_same("vocabulary", {str(shard.path): shard.vocabulary for shard in self.shards})
        self.fingerprints = {f"{name}/{n:05d}": shard.fingerprint for n, shard in enumerate(self.shards)}


class TokenRows(_TextRows):
    """`ids` (total,) and `offsets` (m + 1,) of all sentences."""

    def __init__(self, manifest: Manifest, folder: Path | None) -> None:
        super().__init__("tokens", TokenShards(manifest, folder))
        self.ids = np.concatenate([shard.ids for shard in self.shards])
        self.offsets = offsets_of(np.concatenate([np.diff(shard.offsets) for shard in self.shards]))


class TfidfRows(_TextRows):
    """`matrix` (m, d) of all sentences."""

    def __init__(self, manifest: Manifest, folder: Path | None) -> None:
        super().__init__("tfidf", Sentences(manifest, folder))
        self.matrix = sparse.vstack([shard.matrix for shard in self.shards], format="csr")


class TreeRows(_TextRows):
    """`trees`, the packed arrays of pipeline.text.trees.Trees by name, of one `kind`; `labels` is the fingerprint of
    what their labels refer to."""

    def __init__(self, kind: str, manifest: Manifest, folder: Path | None) -> None:
        super().__init__("trees", TreeShards(manifest, folder))
        self.labels = require_same("label table", {str(shard.path): shard.labels for shard in self.shards})
        packed = [getattr(shard, kind) for shard in self.shards]
        self.trees = {name: np.concatenate([arrays[name] for arrays in packed]) for name in FIELDS}
        self.trees["offsets"] = offsets_of(np.concatenate([np.diff(arrays["offsets"]) for arrays in packed]))


def open_rows(view: str, manifest: Manifest, folder: Path) -> TokenRows | TfidfRows | TreeRows:
    """All sentences in the form `view`, from the folder of their shards."""
    if view.endswith("-trees"):
        return TreeRows(view.removesuffix("-trees"), manifest, folder)
    return {"tfidf": TfidfRows, "tokens": TokenRows}[view](manifest, folder)
